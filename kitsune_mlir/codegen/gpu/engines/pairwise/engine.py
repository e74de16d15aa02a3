"""The pairwise engine: reductions over what pairs of rows give, such as distances, of any terms.

A thread has a column: its row of the right operand is in registers, read once for some rows of the left one, which the threads
of a warp read together. So a term costs its own operations, and not a read of memory.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.operation import clone, clone_lanes
from kitsune_mlir.codegen.gpu.emit.reduce import combine, identity, over_registers
from kitsune_mlir.codegen.gpu.emit.value import Value, minimum
from kitsune_mlir.codegen.gpu.engines.pairwise.match import Pairwise, read
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.elements import Elements, stores_only
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.tile_index import delinearize
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.access import affine_maps, shape_of
from kitsune_mlir.dialects.products import constant_fill, defining_op
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["PairwiseEngine"]

THREADS = 256
LEAST_COLUMNS = 128
"""Fewer leave threads without a column."""
ROWS = 32
"""Of a tile, where there are enough tiles."""
MOST_OPERATIONS = 768
"""Of the code of a few rows' chunks."""


class PairwiseEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "pairwise"
    traits: ClassVar[Traits] = Traits(ENGINES["pairwise"], keeps_order=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        space = candidate.space
        pairs = read(list(space.ops))
        if isinstance(pairs, str):
            return Decline(self.name, pairs)
        shape = shape_of(pairs.op.results[0])
        if space.result_dims(space.ops.index(pairs.op), 0) != list(range(len(shape))) or len(space.dims) != len(shape):
            return Decline(self.name, "its results are dealt out in another order than they lie in memory")
        if shape[-1] < LEAST_COLUMNS:
            return Decline(self.name, f"there are {shape[-1]} columns; its threads have one each")
        columns = min(shape[-1], THREADS)
        others = math.prod(shape[:-2]) * -(-shape[-1] // columns)
        rows = ROWS
        while rows > 1 and others * -(-shape[-2] // rows) < 2 * machine.workers:
            rows //= 2
        return Offer(self.name, (*[1] * (len(shape) - 2), min(rows, shape[-2]), columns))

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        pairs = read(task.work())
        if isinstance(pairs, str):
            return Decline(self.name, pairs)
        if not stores_only(task, pairs.op):
            return Decline(self.name, "it stores what is not reduced")
        return Plan(
            self.name, task, threads=THREADS, registers=96, parameters={"chunk": pairs.chunk}, streaming=True, private=pairs
        )

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.resolve()
        tile.wait()
        _Tile(tile, plan.private).emit()
        tile.finish()


@dataclasses.dataclass
class _Tile:
    """Emits a tile."""

    tile: TileContext
    pairs: Pairwise

    def __post_init__(self) -> None:
        pairs = self.pairs
        *self.outer, self.rows, self.columns = shape_of(pairs.op.results[0])
        self.maps = affine_maps(pairs.op)
        self.type = ir.RankedTensorType(pairs.op.results[0].type).element_type
        self.results = Elements(self.tile, len(self.outer) + 1)
        most = MOST_OPERATIONS // (pairs.chunk * (len(pairs.body) + 1))
        self.together = next(rows for rows in (8, 4, 2, 1) if rows <= max(1, min(most, self.rows)))

    def emit(self) -> None:
        """All results of the tile."""
        pairs = self.pairs

        def column(where, j: Value) -> None:
            known = None if pairs.chunk < pairs.terms else self._read(pairs.right, [*where, j, j], j * 0)

            def rows(first: Value) -> None:
                places = [minimum(first + n, self.rows - 1) for n in range(self.together)]

                def chunk(k: Value, *sums: Value) -> list[Value]:
                    right = known if known is not None else self._read(pairs.right, [*where, j, j], k)
                    return [self._added(sum, i, [*where, i, j], k, right) for sum, i in zip(sums, places, strict=True)]

                neutral = [identity(pairs.kind, self.type)] * self.together
                if known is not None:
                    sums = chunk(j * 0, *neutral)
                else:
                    sums = for_(0, pairs.terms, pairs.chunk, chunk, neutral)
                for n, (sum, i) in enumerate(zip(sums, places, strict=True)):
                    self._write([*where, i, j], sum, None if self.rows % self.together == 0 else first + n < self.rows)

            for_(0, self.rows, self.together, rows)

        def some(number: Value) -> None:
            where = delinearize(number, self.outer) if self.outer else ()
            for_(self.tile.task.thread, self.columns, self.tile.task.threads, lambda j: column(where, j))

        for_(0, math.prod(self.outer), 1, some)

    def _read(self, numbers: tuple[int, ...], loops: list[Value], k: Value) -> dict[ir.Value, list[Value]]:
        """A chunk's elements of some operands, from term `k` on; `loops` are the result's."""
        op, found = self.pairs.op, {}
        arguments = list(op.regions[0].blocks[0].arguments)
        for number in numbers:
            dims = [ir.AffineDimExpr(e).position for e in self.maps[number].results]
            elements = Elements(self.tile, len(dims) - 1)
            place = [*(loops[self._result_dim(dim)] for dim in dims[:-1]), k]
            found[arguments[number]] = elements.at(op.operands[number], place, self.pairs.chunk)
        return found

    def _result_dim(self, loop: int) -> int:
        return next(d for d, e in enumerate(self.maps[-1].results) if ir.AffineDimExpr(e).position == loop)

    def _added(self, sum: Value, i: Value, loops: list[Value], k: Value, right: dict[ir.Value, list[Value]]) -> Value:
        """A row's chunk of terms, combined with those before."""
        known = {**right, **self._read(self.pairs.left, loops, k)}
        chunk = self.pairs.chunk
        clone_lanes(self.pairs.body, known, chunk)
        terms = known[self.pairs.term]
        # Four sums side by side: short chains of dependences, and few values that live at a time.
        side = [terms[n] for n in range(min(4, chunk))]
        for n in range(4, chunk):
            side[n % 4] = combine(self.pairs.kind, side[n % 4], terms[n])
        return combine(self.pairs.kind, sum, over_registers(self.pairs.kind, side))

    def _write(self, where: list[Value], sum: Value, exists: Value | None) -> None:
        op = self.pairs.op
        maker = defining_op(op.operands[len(op.operands) - 1])
        start = constant_fill(maker) if maker is not None else None
        assert start is not None
        total = combine(self.pairs.kind, clone(start, [])[0], sum)

        def write() -> None:
            for window in self.tile.task.view.stores:
                values = self.results.at(window.tensor, where, 1, {op.results[0]: [total]})
                self.results.store(window, where, values)

        write() if exists is None else if_(exists, write)
