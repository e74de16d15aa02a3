"""The `pairs` engine: dot products of all pairs of a sample's vectors, some picked by index and joined with other columns.

A tile is some samples, and a block holds all their vectors in shared memory at once: gathered rows come by `cp.async`, before
the task's waits. Warps multiply: 16 vectors of a sample with all of its
vectors (`sm90.mma_sync`), and rounded products go to shared memory. A table has, for every column of the result, where in a
sample's shared memory it is; so stores are the same for columns from memory, picked products and zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from kitsune_mlir.codegen.gpu.contraction.packed_pair import Lanes
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, lane_id, warp_id
from kitsune_mlir.codegen.gpu.emit.convert import pack_pair
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, constant, i32, minimum, select, unpack
from kitsune_mlir.codegen.gpu.engines.chain.few_rows.emit import FewRows
from kitsune_mlir.codegen.gpu.engines.pairs import tiles
from kitsune_mlir.codegen.gpu.engines.pairs.memory import PairsMemory
from kitsune_mlir.codegen.gpu.engines.pairs.plan import LAYER_WARPS, PairsPlan, picks_wait, read_plan
from kitsune_mlir.codegen.gpu.interface.context import TaskContext, TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.gpu.sm90.mbarrier import fence_async_shared
from kitsune_mlir.codegen.gpu.sm90.mma_sync import multiply_add
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["PairsEngine"]

THREADS = 384
REGISTERS, LAYER_REGISTERS = 128, 168
CREWS = (1, 2)
"""Named barriers of the warps that gather and of those that do layers."""
SUMS = 64
"""Registers for sums up to which a warp has all products of a sample, and reads every vector once."""


class PairsEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "pairs"
    traits: ClassVar[Traits] = Traits(ENGINES["pairs"])

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        return tiles.offer(self.name, candidate, machine)

    def make_plan(self, task: TaskView, options: KernelOptions) -> Plan:
        plan = read_plan(task, options.shared_bytes)
        if plan.bytes > options.shared_bytes:
            samples = f"{plan.samples} samples need {plan.bytes} bytes of shared memory"
            raise MatchFailure(f"{samples}; there are {options.shared_bytes}")
        threads = min(THREADS, options.threads // 32 * 32)
        if plan.layers and threads < THREADS:
            raise MatchFailure(f"layers beside gathered vectors need {THREADS} threads; there are {threads}")
        ring = plan.layers.ring if plan.layers else None
        parameters: dict[str, Any] = {"samples": plan.samples, "vectors": plan.pairs.count}
        if plan.layers:
            parameters["layers"] = [[layer.layer.depth, layer.layer.cols] for layer in plan.layers.layers]
        if ring:
            parameters["ring"] = f"{ring.slots} x {ring.slot_bytes} bytes"
        return Plan(
            self.name,
            task,
            shared_bytes=plan.bytes,
            threads=threads,
            registers=LAYER_REGISTERS if plan.layers else REGISTERS,
            parameters=parameters,
            barriers=(*([1] if plan.early else []), *(ring.barriers(LAYER_WARPS) if ring else ())),
            tensor_maps=ring.map_uses if ring else (),
            avoids_producers=bool(plan.early),
            private=plan,
        )

    def emit(self, plan: Plan, task: TaskContext) -> None:
        def tile(tile: TileContext, turn: Value) -> Value:
            self._tile(plan.private, tile, turn)
            return turn + 1

        task.for_each_tile(tile, [i32(0)])

    def _tile(self, pairs: PairsPlan, tile: TileContext, turn: Value) -> None:
        tile.resolve()
        emitter = _Emitter(pairs, tile, ThreadGroup.block(tile.task))
        if pairs.layers is None:
            emitter.bring_early(turn)
            if tile.task.view.waits:
                tile.wait()
            else:
                tile.task.sync()
        else:
            self._side_by_side(pairs, tile, turn)
        emitter.copy_vectors(pairs.late)
        emitter.copy_columns()
        if picks_wait(pairs):
            emitter.write_table()
        if pairs.early:
            emitter.await_early(turn)
        emitter.await_copies()
        emitter.multiply(pairs.ahead)
        tile.task.sync()
        emitter.write_result(True if pairs.parted else None)
        fence_async_shared()  # the next tile's rows come by the async proxy
        tile.finish()

    def _side_by_side(self, pairs: PairsPlan, tile: TileContext, turn: Value) -> None:
        """Some warps do the layers, the others bring the gathered vectors and multiply these."""
        assert pairs.layers is not None
        task, first = tile.task, 32 * LAYER_WARPS
        if task.view.waits:
            tile.wait()
        gatherers = _Emitter(pairs, tile, ThreadGroup.part(task, first, THREADS - first, CREWS[0]))
        group, shared = ThreadGroup.part(task, 0, first, CREWS[1]), offset(task.shared, pairs.products_at)
        layers = FewRows(pairs.layers, tile, group, shared, len(pairs.early) and 1, turn)
        maker = _Emitter(pairs, tile, layers.group)
        if_(task.thread < first, lambda: layers.run(maker.write_made))
        if_((task.thread >= first) & (task.thread < THREADS), lambda: gatherers.bring_early(turn))
        task.sync()


class _Emitter(PairsMemory):
    """Emits the parts of a tile that some threads do."""

    def bring_early(self, turn: Value) -> None:
        """What waits for nothing: gathered vectors, their products, the table, and what of the result follows from these."""
        if self.plan.early:
            self.fetch_early()
        if not picks_wait(self.plan):
            self.write_table()
        if self.plan.ahead:
            self.await_early(turn)
            self.multiply(False)
        if self.plan.parted:
            self.group.sync()
            self.write_result(False)

    def await_early(self, turn: Value) -> None:
        """Until the rows that are gathered early are there; `turn`: number of the tile among the block's."""
        self.task.barriers[0].wait(turn & 1)

    def write_made(self, row: Value, col: Value, lanes: Lanes) -> None:
        """Put two neighbouring results of the layers where the sample has them, as a vector and as columns."""
        sample, before = self._sample(row), 0
        for part in self.pairs.vectors:
            if self.plan.makes(part.value):
                store(lanes.word, offset(self.task.shared, sample + col * 2 + before * self.pairs.vector_bytes), 4)
            before += part.count
        for number, part in enumerate(self.pairs.columns):
            if part.kind == "rows" and self.plan.makes(part.value):
                store(lanes.word, offset(self.task.shared, sample + col * 2 + self.pairs.column_at(number)), 4)

    # --- products -------------------------------------------------------------------------------------------------------

    def multiply(self, late: bool) -> None:
        """All products of all samples: a warp has a sample at a time, or 16 of its vectors with all of the sample's.

        The order of a sum is free, and so is that of the vectors: a lane reads 16 bytes of a vector and uses them in two
        instructions, and eight lanes read vectors that are four apart, which lie in different banks (as in `gemv.multiply`).

        Args:
            late: only the products of vectors that came late, whose products were undefined until now.
        """
        groups = self.plan.late_groups if late else list(range(self.pairs.padded // 16))
        whole = len(groups) * -(-self.pairs.count // 8) * 4 <= SUMS
        units = 1 if whole else len(groups)
        warp, lane = warp_id(self.thread), lane_id(self.thread)
        index = lane // 4
        line, quad = index // 2 + index % 2 * 4, lane % 4

        def unit(number: Value) -> None:
            base = offset(self.task.shared, self._sample(number // units))
            products = offset(self.task.shared, number // units * self.pairs.product_bytes + self.plan.products_at)
            firsts = [16 * group for group in groups] if whole else [(number % units + groups[0]) * 16]
            for first, sums in zip(firsts, self._sums(base, firsts, line, quad), strict=True):
                for row, half in ((line + first, 0), (line + first + 8, 2)):
                    pairs = [(block[half], block[half + 1]) for block in sums]
                    if_(self._is_stored(row, late), functools.partial(self._store_row, products, row, quad, pairs, late))

        for_(warp, self.plan.samples * units, self.threads // 32, unit)

    def _is_stored(self, row: Value, late: bool) -> Value:
        if not late:
            return row < self.pairs.count
        return self._any((row >= start) & (row < end) for start, end in self.plan.late_ranges)

    def _store_row(self, products: Value, row: Value, quad: Value, pairs: Sequence[tuple[Value, Value]], late: bool) -> None:
        """Rounded products of a vector, of each eight those at `quad` and four more; late ones also as the others' products."""

        def place(left: Value, right: Value) -> Value:
            return offset(products, (left * self.pairs.pitch + right) * 2)

        for block, pair in enumerate(pairs):
            word = pack_pair(*pair, self.pairs.dtype)
            for more, value in ((0, cast(word, "i16")), (4, cast(word >> 16, "i16"))):
                other = quad + (8 * block + more)
                store(value, place(row, other), 2)
                if late:
                    mirror = functools.partial(store, value, place(other, row), 2)
                    if_((other < self.pairs.count) & (other != row), mirror)

    def _sums(self, base: Value, firsts: Sequence[Value | int], line: Value, quad: Value) -> list[list[list[Value]]]:
        """For each 16 vectors from one of `firsts` on, their accumulators with each eight of the sample's.

        Beyond the last vector the last is read again. A lane needs the same words of a vector whichever factor it is in, so who
        has read all vectors has the 16 too, where they are known.
        """
        blocks = -(-self.pairs.count // 8)
        sums = [[[constant(0.0, "f32")] * 4 for _ in range(blocks)] for _ in firsts]
        last = self.pairs.count - 1
        others = [line + 8 * block for block in range(blocks)]
        others[-1] = minimum(others[-1], last)

        if self.plan.layers and self.group.barrier is not None:  # other warps write what layers make: others are read instead
            made = [number for start, end in self.plan.late_ranges for number in range(start, end)]
            spare = next(number for number in range(self.pairs.count) if number not in made)
            others = [select(self._any(other == number for number in made), spare, other) for other in others]

        def words(vector_: Value, step: int) -> list[Value]:
            place = vector_ * self.pairs.vector_bytes + quad * 16 + 64 * step
            return unpack(load(offset(base, place), "vector<4xi32>", 16))

        def factor(first: Value | int, step: int, right: Sequence[list[Value]]) -> list[list[Value]]:
            if isinstance(first, int):
                return [right[min(first // 8 + half, blocks - 1)] for half in range(2)]
            return [words(minimum(line + first + 8 * half, last), step) for half in range(2)]

        for step in range(self.pairs.width // 32):
            right = [words(vector_, step) for vector_ in others]
            for first, mine in zip(firsts, sums, strict=True):
                low, high = factor(first, step, right)
                for half in (0, 2):
                    fragment = [low[half], high[half], low[half + 1], high[half + 1]]
                    for block in range(blocks):
                        mine[block] = multiply_add(mine[block], fragment, right[block][half : half + 2], self.pairs.dtype)
        return sums
