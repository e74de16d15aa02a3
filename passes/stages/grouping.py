"""Which ops become one stage: groups of ops that share parallel dimensions, joined greedily while nothing speaks against it."""

import math
from collections.abc import Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.layers import layer_of
from kitsune_mlir.codegen.gpu.engines.registry import traits_of
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline
from kitsune_mlir.codegen.offers import offer_for
from kitsune_mlir.dialects.access import ALONG_ROWS, is_tensor
from kitsune_mlir.dialects.attribute_table import ATTENTION, NO_FUSION, PAIRS
from kitsune_mlir.dialects.deep import postorder
from kitsune_mlir.dialects.iteration import Space, is_free, is_view, iteration_space
from kitsune_mlir.dialects.products import defining_op, is_contraction, is_generic, is_projected_product
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.unchanged import unchanged
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.stage_work import count
from kitsune_mlir.machine.target import Target
from kitsune_mlir.passes.reductions.associative import keeps_apart

from .beside_products import sums_and_products
from .cheap_maps import costs_nothing, made_for_rows
from .column_sums import narrowed, sum_tiles_beside_rows
from .estimates import least_tiles, moving_seconds, product_seconds
from .group_order import GroupOrder
from .joined_sums import rows_differ
from .large_updates import updates_apart
from .levels import in_levels
from .marks import marked
from .short_reductions import made_again
from .small_stages import ends_in_numbers, numbers_of_many, one_row, worth_a_hand_off
from .surroundings import Surroundings, reads, surroundings, surroundings_of_both

TILE_COLUMNS = 256  # what a GPU's tile has at most of the last of several shared dimensions
MOST_OPS = 128  # in a stage: plans look at all of them together, and the code of more is slow to compile
MIN_ROWS = 16  # rows that a tile of a product should have, so that the weights it reads are used that often


def _space(around: Surroundings, group: Sequence[ir.Operation]) -> Space:
    return iteration_space(around.ops, around.outputs or list(group[-1].results))


class Grouping:
    """Which group each op of a block belongs to, and whether two groups may become one.

    Args:
        cuts: hashes of ops, and how many of them a group may hold.
    """

    def __init__(
        self,
        ops: list[ir.Operation],
        returned: list[ir.Value],
        target: Target,
        chains: str,
        cuts: Sequence[tuple[frozenset[int], int]] = (),
    ):
        self.order = {hash(op): n for n, op in enumerate(ops)}
        self.ops = [op for op in ops if not is_free(op) and not is_view(op)]
        self.returned = set(returned)
        self.target = target
        self.chains = chains
        self.cuts = cuts
        self.group_of = {hash(op): n for n, op in enumerate(self.ops)}
        self.members: dict[int, list[ir.Operation]] = {n: [op] for n, op in enumerate(self.ops)}
        self.blocked: list[tuple[ir.Operation, ir.Operation, str]] = []
        self._sources: dict[int, list[ir.Operation]] = {}
        self._surroundings: dict[int, Surroundings] = {}  # of groups, as they are now
        self._spaces: dict[int, Space] = {}
        self._tiles: dict[int, int] = {}
        self._tried: tuple[int, int, Surroundings, Space] | None = None
        self._times: dict[int, float] = {}
        self._offers: dict[int, Offer | None] = {}
        self._line = GroupOrder(self._groups_read_by)

    def sources(self, op: ir.Operation) -> list[ir.Operation]:
        """The grouped ops that `op` reads, looking through free ops and views."""
        if hash(op) not in self._sources:
            self._sources[hash(op)] = self._find_sources(op)
        return self._sources[hash(op)]

    def _find_sources(self, op: ir.Operation) -> list[ir.Operation]:
        found: dict[int, ir.Operation] = {}
        pending = reads(op)
        while pending:
            maker = defining_op(pending.pop())
            if maker is None:
                continue
            if hash(maker) in self.group_of:
                found[hash(maker)] = maker
            elif is_free(maker) or is_view(maker):
                pending += reads(maker)
        return sorted(found.values(), key=lambda o: self.order[hash(o)])

    def with_free(self, group: list[ir.Operation]) -> list[ir.Operation]:
        """The ops of a group and the free ops that they need, in order of the program."""
        return surroundings(group, self.order, self.group_of).ops

    def outputs(self, group: list[ir.Operation]) -> list[ir.Value]:
        """The values of a group that something outside it needs (views, returned values, other groups)."""
        return surroundings(group, self.order, self.group_of).outputs

    def space(self, group: list[ir.Operation]) -> Space:
        """The dimensions that some ops share, with the free ops that they need."""
        return _space(surroundings(group, self.order, self.group_of), group)

    def _around(self, g: int) -> Surroundings:
        if g not in self._surroundings:
            self._surroundings[g] = surroundings(self.members[g], self.order, self.group_of)
        return self._surroundings[g]

    def _space_of(self, g: int) -> Space:
        if g not in self._spaces:
            self._spaces[g] = _space(self._around(g), self.members[g])
        return self._spaces[g]

    def _tiles_of(self, g: int) -> int:
        if g not in self._tiles:
            self._tiles[g] = least_tiles(self._space_of(g))
        return self._tiles[g]

    def would_cycle(self, a: int, b: int) -> bool:
        """Whether some path from producer group a to consumer group b leads through a third group."""
        return self._line.leads_through_others(a, b)

    def order_groups(self) -> None:
        """Order groups that have become others than by being merged."""
        self._line.begin(sorted(self.members, key=lambda g: self.order[hash(self.members[g][-1])]))

    def _groups_read_by(self, g: int) -> list[int]:
        return sorted({self.group_of[hash(s)] for op in self.members[g] for s in self.sources(op)} - {g})

    def try_merge(self, a: int, b: int) -> str | None:
        """Merge producer group a into consumer group b; the reason where that must not be."""
        group = sorted(self.members[a] + self.members[b], key=lambda o: self.order[hash(o)])
        for cut, most in self.cuts:
            if sum(hash(op) in cut for op in group) > most:
                return f"option 'cut' leaves {most} of their ops in a stage"
        if len(group) > MOST_OPS:
            return f"a stage would have {len(group)} operations, at most {MOST_OPS} are planned together"
        if self._through_view(a, b):
            return "a reshape between them splits or merges dimensions"
        around = surroundings_of_both(self._around(a), self._around(b), self.order, self.group_of)
        outputs, merged = around.outputs, _space(around, group)
        self._tried = a, b, around, merged
        along = self.target.is_gpu and any(op.name in ALONG_ROWS for op in group)
        number = self.target.is_gpu and ends_in_numbers(self._space_of(a), self.members[b])
        if not (merged.dims or along or number or self._small(group, merged)):
            return "they share no parallel dimension"
        if self.would_cycle(a, b):
            return "another stage runs between them"
        others = self.target.is_gpu and numbers_of_many(self.members[a], self.members[b], self.group_of)
        if others and not {*self._groups_read_by(b)} <= {a, *self._groups_read_by(a)}:
            return "others read its numbers, and would wait for what this one waits for"
        for rule in (keeps_apart, *((made_again, updates_apart) if self.target.is_gpu and merged.dims else ())):
            if (reason := rule(self.members[a], self.members[b])) is not None:
                return reason
        candidate = Candidate(merged)
        if self.target.is_gpu and not candidate.contractions and (reason := rows_differ(merged, outputs)) is not None:
            return reason
        if self.chains == "false" and candidate.contractions:
            if (reason := candidate.several_passes) is not None:
                return reason
        elif along:
            return self._along_rows(a, b, candidate, outputs)
        elif self.chains == "cost" and candidate.contractions:
            offer, declined = offer_for(candidate, self.target)
            if offer is None or traits_of(offer.engine).catches_all:
                if (reason := self._lost(a, b, candidate, declined)) is not None:
                    return reason
            elif traits_of(offer.engine).several_products:
                return self._slower(a, b, offer)
        elif not self.target.is_gpu and (declined := offer_for(candidate, self.target)[1]):
            return declined[0].reason
        if self.target.is_gpu and (tiles := sum_tiles_beside_rows(group, outputs, self.target)) is not None:
            if not self._small(group, merged, tiles):
                return f"{tiles} tiles would store rows beside a sum of columns, and blocks cannot share them"
        if self.target.is_gpu and (tiles := narrowed(group, math.prod(d.size for d in merged.dims), self.target)) is not None:
            if not self._small(group, merged, tiles):
                return f"too few tiles would be left ({tiles})"
        parts = [b] if self.target.is_gpu and costs_nothing(self.members[a], self.members[b]) else [a, b]
        alone, together = max(map(self._tiles_of, parts)), least_tiles(merged)
        if together < min(alone, -(-self.target.workers // 4)) and not self._small(group, merged):
            return f"too few tiles would be left ({together})"
        needed = self._bytes_per_tile(group, merged)
        if needed > self.target.fast_bytes:
            return f"a tile would need {needed} bytes on chip, there are {self.target.fast_bytes}"
        return None

    def _along_rows(self, a: int, b: int, candidate: Candidate, outputs: Sequence[ir.Value]) -> str | None:
        """Why a scan or a sort stays without what is around it: its engine does not do that on the way, or store it."""
        ops = candidate.space.ops
        first = next(n for n, op in enumerate(ops) if op.name in ALONG_ROWS)
        if not set(outputs) <= {result for op in ops[first:] for result in op.results}:
            return "others read what is made before its rows"
        rows = [self._tiles_of(g) for g in (a, b) if any(op.name in ALONG_ROWS for op in self.members[g])]
        if any(least_tiles(candidate.space) < tiles for tiles in rows):
            return "its rows would no longer be tiles"
        offer, refused = offer_for(candidate, self.target)
        if offer is None or traits_of(offer.engine).catches_all:
            return next((one.reason for one in refused if traits_of(one.engine).along_rows), "no engine does both")
        return None

    def _small(self, group: list[ir.Operation], space: Space, tiles: int | None = None) -> bool:
        """Whether few tiles (by default its points), or one of a single row, of what has no products beat several stages."""
        plain = all(op.name == "tensor.concat" or (is_generic(op) and not is_contraction(op)) for op in group)
        if not plain or not (space.dims or all(map(one_row, group))):
            return False
        values = {v for op in group for v in [*op.operands, *op.results] if is_tensor(v)}
        bytes_ = sum(tensor_bytes(v.type) for v in values)
        tiles = tiles or math.prod(d.size for d in space.dims)
        if not worth_a_hand_off(bytes_, 0.0, tiles, self.target):
            return False  # whatever it computes
        return worth_a_hand_off(bytes_, count(group).vector_ops, tiles, self.target)

    def _lost(self, a: int, b: int, candidate: Candidate, declined: Sequence[Decline]) -> str | None:
        """What is lost if groups a and b become one that only the engine takes which takes anything: why the engines of the
        two declined. None if that engine is theirs already."""
        products = [g for g in (a, b) if any(map(is_contraction, self.members[g]))]
        engines = [found.engine for g in products if (found := self.offer_of(g)) is not None]
        own = [one for one in declined if one.engine in engines]
        if not own and candidate.several_passes is None:
            return None
        several = [one for one in declined if traits_of(one.engine).several_products]
        return (several or own or declined)[0].reason

    def _slower(self, a: int, b: int, offer: Offer) -> str | None:
        """Why groups a and b stay apart although an engine does their products one after the other: they are faster so."""
        together, apart = offer.seconds or 0.0, self._seconds(a) + self._seconds(b)
        return f"as one chain they would take {together * 1e6:.1f} us, apart {apart * 1e6:.1f} us" if together > apart else None

    def offer_of(self, g: int) -> Offer | None:
        """The offer for a group as it is."""
        if g not in self._offers:
            self._offers[g] = offer_for(Candidate(self._space_of(g)), self.target)[0]
        return self._offers[g]

    def _seconds(self, g: int) -> float:
        """Estimated time of a group on a GPU."""
        if g not in self._times:
            self._times[g] = self._find_seconds(g)
        return self._times[g]

    def _find_seconds(self, g: int) -> float:
        group = self.members[g]
        products = [op for op in group if is_contraction(op)]
        if not products:
            values = {v for op in group for v in [*reads(op), *op.results] if is_tensor(v)}
            return moving_seconds(sum(tensor_bytes(v.type) for v in values), self.target)
        offer = self.offer_of(g)
        if offer is not None and offer.seconds is not None and traits_of(offer.engine).several_products:
            return rates.CHAIN_HAND_OFF + offer.seconds
        return sum(product_seconds(layer_of(op), self.target) for op in products)

    def _through_view(self, a: int, b: int) -> bool:
        """Whether an op of group b reads a view of what group a makes, others may read it as it is."""
        pending = [(value, False) for op in self.members[b] for value in reads(op)]
        seen: set[tuple[ir.Value, bool]] = set()
        while pending:
            value, viewed = pending.pop()
            maker = defining_op(value)
            if maker is None or (value, viewed) in seen:
                continue
            seen.add((value, viewed))
            if hash(maker) in self.group_of:
                if viewed and self.group_of[hash(maker)] == a:
                    return True
            elif is_free(maker) or is_view(maker):
                pending += [(read, viewed or is_view(maker)) for read in reads(maker)]
        return False

    def _bytes_per_tile(self, group: list[ir.Operation], space: Space) -> int:
        """Bytes of the values that a smallest tile of the leading dimension keeps between the ops of the group."""
        if self.target.is_gpu and any(is_contraction(op) and not is_projected_product(op) for op in group):
            return 0  # a convolution's tile is cut along every dimension, and stays in registers
        if self.target.is_gpu and all(is_generic(op) and not is_contraction(op) for op in group):
            return 0  # made element by element: what a row needs is read again where it does not fit
        rows = MIN_ROWS if any(is_contraction(op) for op in group) else 1
        # Several dimensions: tiles are cut along the last one too, and rows are all those before it (a batch of matrices).
        leading = space.dims[:-1] if self.target.is_gpu and len(space.dims) > 1 else space.dims[:1]
        lead = math.prod(d.size for d in leading)
        inside = [r for op in group for r in op.results if is_tensor(r)]
        sizes = [tensor_bytes(v.type) * min(rows, lead) // lead for v in inside]
        if self.target.is_gpu and len(space.dims) > 1:  # tiled along the last one too
            columns = space.dims[-1].size
            sizes = [size * min(TILE_COLUMNS, columns) // columns for size in sizes]
        # Values die as the chain goes on; the two largest neighbours are what is alive at a time.
        return sum(sorted(sizes)[-3:])

    def merge(self, a: int, b: int) -> None:
        """Put producer group a into consumer group b."""
        for g in (a, b):
            self.forget(g)
        if self._tried is not None and self._tried[:2] == (a, b):
            self._surroundings[b], self._spaces[b] = self._tried[2:]
        self._tried = None
        self._put(a, b)
        self._line.join(a, b)

    def _put(self, a: int, b: int) -> None:
        self.members[b] = sorted(self.members.pop(a) + self.members[b], key=lambda o: self.order[hash(o)])
        for op in self.members[b]:
            self.group_of[hash(op)] = b

    def run(self) -> None:
        """Greedy: for each op in order, take its producers' groups into its own while nothing speaks against it.

        An attention is one group from the start, and stays one; so are products of pairs.
        """
        with unchanged():
            self._run()

    def _run(self) -> None:
        closed = {self.group_of[hash(op)] for op in self.ops if NO_FUSION in op.attributes}
        for ops in (*marked(self.ops, ATTENTION), *marked(self.ops, PAIRS)):
            into = self.group_of[hash(ops[-1])]
            for op in ops[:-1]:
                self._put(self.group_of[hash(op)], into)
            closed.add(into)
        self.order_groups()
        for pair in sums_and_products(self.ops, self.space, self.target):
            a, b = (self.group_of[hash(op)] for op in pair)
            if not (self.would_cycle(a, b) or self.would_cycle(b, a)):
                self.merge(a, b)
        for reader, source in [(op, one) for op in self.ops for one in self.sources(op) if made_for_rows(one, op)]:
            a, b = self.group_of[hash(source)], self.group_of[hash(reader)]
            if self.target.is_gpu and not {a, b} & closed and self.try_merge(a, b) is None:
                self.merge(a, b)
        for op in self.ops:
            for source in reversed(self.sources(op)):
                a, b = self.group_of[hash(source)], self.group_of[hash(op)]
                if a == b:
                    continue
                alone = "attention, products of pairs and padded weights are stages of their own"
                reason = alone if {a, b} & closed else self.try_merge(a, b)
                if reason is None:
                    self.merge(a, b)
                else:
                    self.blocked.append((op, source, reason))

    def groups_that_read(self, op: ir.Operation) -> list[int]:
        """The groups whose ops read what an op makes."""
        return sorted({self.group_of[hash(one)] for one in self.ops if any(source == op for source in self.sources(one))})

    def adopt(self, ops: Mapping[int, list[ir.Operation]]) -> None:
        """Take new ops of the block into groups, some of whose ops read them now (so their hashes are others)."""
        new = [op for some in ops.values() for op in some]
        if not new:
            return
        self.ops += new
        self.order = {hash(op.operation): n for n, op in enumerate(new[0].block.operations)}
        for g, some in ops.items():
            self.members[g] = sorted(self.members[g] + some, key=lambda o: self.order[hash(o)])
            self.forget(g)
        self.group_of = {hash(op): number for number, members in self.members.items() for op in members}
        self._sources.clear()
        self._surroundings.clear()

    def forget(self, g: int) -> None:
        """Find out anew what is known of a group."""
        for known in (self._surroundings, self._spaces, self._tiles, self._offers, self._times):
            known.pop(g, None)

    def apart(self) -> list[tuple[ir.Operation, str]]:
        """Which ops were not joined with one that they read, and why."""
        found = {
            (hash(op), source.name, reason): (op, f"not joined with {source.name}: {reason}")
            for op, source, reason in self.blocked
            if self.group_of[hash(op)] != self.group_of[hash(source)]
        }
        return list(found.values())

    def sorted_groups(self) -> list[int]:
        """Groups in an order in which producers come before consumers; on a GPU by levels."""
        in_program = sorted(self.members, key=lambda g: self.order[hash(self.members[g][-1])])
        sources = {g: self._groups_read_by(g) for g in in_program}
        done = list(postorder(in_program, sources.__getitem__))
        if not self.target.is_gpu:
            return done
        return in_levels(done, sources, self.members)
