"""`kitsune-place-buffers`: give every edge a place, and every intermediate in memory an offset in one arena."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.dialects import buffer_attr
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.attribute_table import INTO
from kitsune_mlir.dialects.edges import grid_of, producer_of, readers_of, stages_of, trace_views, waits_for_all
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.stage_graph import inputs_of, mode_of, overwritten, results_of, yielded
from kitsune_mlir.dialects.unchanged import unchanged
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.spatial.rings import RingEdge, ring_edge
from kitsune_mlir.passes.stages.rows_in_place import rows_in_place
from kitsune_mlir.passes.tile_program.scatter import handed_over

from .base import Pass, PassFailure

ALIGNMENT = 256  # bytes; what cudaMalloc gives, and more than any vector or bulk copy asks for


@dataclass
class Interval:
    """A buffer's bytes, the first and last stage (by number) that touch it, and its place once it has one."""

    stage: int
    result: int
    size: int
    first: int
    last: int
    offset: int = -1
    before: "Interval | None" = field(default=None, repr=False)  # in whose place it is written row by row


def allocate(
    intervals: list[Interval], slack: int, behind: Callable[[Interval, Interval], bool] = lambda mine, other: True
) -> int:
    """First-fit offsets, largest buffers first; buffers may share bytes when at least `slack` stages lie between them, and the
    later one is `behind` the earlier one.

    Returns the bytes of the arena. (Greedy by size, as in Pisarchyk and Lee, arXiv 2001.03288, section 5.)
    """

    def apart(a: Interval, b: Interval) -> bool:
        if a.first <= b.last + slack and b.first <= a.last + slack:
            return False
        return behind(a, b) if b.last < a.first else behind(b, a)

    placed: list[Interval] = []
    for item in sorted(intervals, key=lambda i: (-i.size, i.first)):
        others = sorted((p for p in placed if not apart(item, p)), key=lambda p: p.offset)
        at = 0
        for other in others:
            if at + item.size <= other.offset:
                break
            at = max(at, other.offset + other.size)
        item.offset = at
        placed.append(item)
    return max([p.offset + p.size for p in placed], default=0)


def last_tenants(mine: Interval, intervals: list[Interval]) -> list[Interval]:
    """The buffers that were the last to lie in some byte of `mine` before it, latest first.

    Those before them need no waiting: the last tenant's writer has waited for their readers.
    """
    free = [(mine.offset, mine.offset + mine.size)]
    found = []
    for other in sorted((i for i in intervals if i.last < mine.first), key=lambda i: -i.first):
        start, end = other.offset, other.offset + other.size
        if any(a < end and start < b for a, b in free):
            found.append(other)
            free = [part for a, b in free for part in ((a, min(b, start)), (max(a, end), b)) if part[0] < part[1]]
    return found


def _ordered(count: int, readers: Mapping[tuple[int, int], Sequence[int]]) -> Callable[[Interval, Interval], bool]:
    """Whether a buffer's writer waits for another one's writer and readers in any case, because of what it reads."""
    before = [0] * count  # the stages that each depends on, as bits
    for (n, _), users in sorted(readers.items()):
        for user in users:
            before[user] |= before[n] | 1 << n

    def behind(mine: Interval, other: Interval) -> bool:
        return all(before[mine.stage] >> n & 1 for n in (other.stage, *readers.get((other.stage, other.result), ())))

    return behind


class _Old:
    """Who reads what stages of a pipeline write over: arguments, or what was written there.

    Args:
        stages: all of them, in order.
    """

    def __init__(self, stages: list[ir.Operation]):
        self._own = [{number for number in overwritten(stage) if number >= 0} for stage in stages]
        self._names = [ir.StringAttr(stage.attributes["sym_name"]).value for stage in stages]
        self._joined: dict[str, set[int]] = {}  # what the scatter-adds write over that a stage does
        self._readers: dict[int, list[int]] = {}
        for own, stage in zip(self._own, stages, strict=True):
            if INTO in stage.attributes:
                self._joined.setdefault(ir.StringAttr(stage.attributes[INTO]).value, set()).update(own)
        written = set().union(*self._own)
        for n, stage in enumerate(stages if written else ()):
            for number in dict.fromkeys(map(_argument_of, inputs_of(stage))):
                if number in written:
                    self._readers.setdefault(number, []).append(n)

    def readers(self, n: int) -> set[int]:
        """The stages that read what stage n, or a scatter-add that it does, writes over."""
        arguments = self._own[n] | self._joined.get(self._names[n], set())
        return {m for number in arguments for m in self._readers.get(number, ()) if m < n}


def _argument_of(value: ir.Value) -> int:
    """The argument of the function in whose memory a tensor lies, or -1."""
    source, _ = trace_views(value)
    maker, result = producer_of(source)
    return ir.BlockArgument(source).arg_number if maker is None else overwritten(maker)[result]


def _in_each_others_place(intervals: Sequence[Interval], stages: list[ir.Operation], readers) -> list[list[Interval]]:
    """The intervals in order, those together of which each is written, row by row, in the place of the one before."""
    chains: dict[tuple[int, int], list[Interval]] = {}  # by the result that is the last of each
    for mine in sorted(intervals, key=lambda i: i.stage):
        places = rows_in_place(stages, readers, mine.stage, mine.result)
        chain = next((chains.pop(p) for p in places if p in chains and chains[p][-1].size == mine.size), [])
        mine.before = chain[-1] if chain else None
        chains[mine.stage, mine.result] = [*chain, mine]
    return list(chains.values())


@dataclass(frozen=True)
class PlaceBuffers(Pass):
    """Give every result of a stage a space and, in memory, an offset in the arena by liveness.

    Values inside a stage live in registers and shared memory (the engine decides); edges between stages are `global`, or in a
    spatial pipeline `queue` where both ends go tile by tile: a ring of `rings` tiles. Buffers share bytes when `slack` stages
    lie between the last reader of one and the writer of the other, and the writer then waits for those readers (attribute
    `after`). Separate launches wait for each other anyway and need no slack. No bytes are shared where all buffers take `apart`
    or less: they stay in L2 in any case, and a wait and the posts for it cost more than the bytes save; of separate launches
    those are shared whose readers the writer waits for in any case: a launch may have stages side by side. What is written over
    an argument waits for those who read what was there. Beside that, rows take the place of rows of which the tile's own waits
    say that nobody reads them any more, as in a chain of layers; that costs no waiting. Options: `slack`; `apart`; `limit`:
    most bytes the arena may take; `rings`: tiles of every ring, instead of the stages' own `ring`; `ring_limit`: most bytes
    that all rings may take together (beyond 9 MiB they spill from an H200's L2).
    """

    name: ClassVar[str] = "kitsune-place-buffers"
    only_schedules: ClassVar[bool] = True
    slack: int = 2
    apart: int = 16 << 20
    limit: int = 0
    rings: int = 0
    ring_limit: int = 9 << 20

    def run(self, module: ir.Operation) -> None:
        with module.context, ir.Location.unknown():
            for op in list(walk(module)):
                if op.name == "kitsune.pipeline":
                    with unchanged():
                        self._place(op)

    def _place(self, pipeline: ir.Operation) -> None:
        stages = stages_of(pipeline)
        number = {hash(stage): n for n, stage in enumerate(stages)}
        # A value that leaves the pipeline is written where the caller wants it.
        leaving = {producer_of(trace_views(v)[0]) for v in yielded(pipeline)}
        leaving_keys = {(hash(stage), result) for stage, result in leaving}
        leaving_keys |= {(hash(stage), result) for stage in stages for result, n in enumerate(overwritten(stage)) if n >= 0}
        intervals: list[Interval] = []
        depths = {n: self._depth(stage) for n, stage in enumerate(stages) if mode_of(pipeline) == "spatial"}
        found = {n: ring_edge(stages[n]) for n, depth in depths.items() if depth}
        rings = {n: edge for n, edge in found.items() if isinstance(edge, RingEdge)}
        readers: dict[tuple[int, int], list[int]] = {}
        names = {ir.StringAttr(stage.attributes["sym_name"]).value: n for n, stage in enumerate(stages)}
        for n, stage in enumerate(stages):
            # A scatter-add that its producer does itself begins with that producer.
            first = names[ir.StringAttr(stage.attributes[INTO]).value] if INTO in stage.attributes else n
            for result, users in readers_of(stage).items():
                readers[n, result] = sorted(number[hash(u)] for u in users)
            for result, value in enumerate(results_of(stage)):
                if (hash(stage), result) in leaving_keys or handed_over(stage, result):
                    continue
                size = max(1, tensor_bytes(value.type))
                last = max([n, *readers.get((n, result), [])])
                if n in rings:  # its bytes are nobody else's
                    size = depths[n] * rings[n].rows * size // shape_of(value)[0]
                    first, last = 0, len(stages)
                size = -(-size // ALIGNMENT) * ALIGNMENT
                intervals.append(Interval(n, result, size, first, last))
        self._check_rings([i for i in intervals if i.stage in rings], stages)
        together = sum(interval.size for interval in intervals)
        slack = 0 if mode_of(pipeline) == "separate" else self.slack
        if slack and together <= min(self.apart, self.limit or self.apart):
            slack = len(stages)
        chains = [[interval] for interval in intervals]
        if 0 < slack < len(stages) and not rings:
            chains = _in_each_others_place(intervals, stages, readers)
        places = [dataclasses.replace(chain[0], last=max(i.last for i in chain)) for chain in chains]
        shares = mode_of(pipeline) == "separate" and together <= min(self.apart, self.limit or self.apart)
        total = allocate(places, slack, *([_ordered(len(stages), readers)] if shares else []))
        for chain, place in zip(chains, places, strict=True):
            for interval in chain:
                interval.offset = place.offset
        if self.limit and total > self.limit:
            largest = max(intervals, key=lambda i: i.size)
            raise PassFailure(
                stages[largest.stage],
                f"intermediates need {total} bytes, the limit is {self.limit}; the largest edge is result "
                f"{largest.result} of this stage with {largest.size} bytes",
            )
        pipeline.attributes["arena"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), total)
        offsets = {(i.stage, i.result): i.offset for i in intervals}
        old = _Old(stages)
        for n, stage in enumerate(stages):
            count = max(1, len(results_of(stage)))
            place = buffer_attr("queue", depths[n]) if n in rings else buffer_attr("global")
            stage.attributes["buffers"] = ir.ArrayAttr.get([place] * count)
            stage.attributes["offsets"] = ir.DenseI64ArrayAttr.get([offsets.get((n, r), -1) for r in range(count)])
            after = sorted({*self._after(n, stages, intervals, readers), *old.readers(n)})
            stage.attributes["after"] = ir.ArrayAttr.get([ir.StringAttr(stages[a].attributes["sym_name"]) for a in after])

    def _depth(self, stage: ir.Operation) -> int:
        """Tiles of the ring that a stage's result is to have; 0 for none, as where the ring would hold all of its tiles."""
        wanted = ir.IntegerAttr(stage.attributes["ring"]).value if "ring" in stage.attributes else 0
        return self.rings or (wanted if wanted < grid_of(stage).extents[0] else 0)

    def _check_rings(self, rings: list[Interval], stages: list[ir.Operation]) -> None:
        """All rings fit their part of L2."""
        total = sum(ring.size for ring in rings)
        if total > self.ring_limit:
            largest = max(rings, key=lambda ring: ring.size)
            raise PassFailure(
                stages[largest.stage],
                f"rings need {total} bytes of L2, the limit is {self.ring_limit}; the largest is that of result "
                f"{largest.result} of this stage with {largest.size} bytes",
            )

    def _after(self, n: int, stages: list[ir.Operation], intervals: list[Interval], readers) -> list[int]:
        """The stages that must have finished before stage n may write: readers of what lay in its buffers' bytes, and its
        writer where no reader waits for all of it."""
        found: set[int] = set()
        for mine in (i for i in intervals if i.stage == n):
            for other in last_tenants(mine, intervals):
                if other is mine.before:
                    continue
                users = readers.get((other.stage, other.result), [])
                found.update(users)
                if not any(waits_for_all(stages[u], stages[other.stage]) for u in users):
                    found.add(other.stage)
        return sorted(found)
