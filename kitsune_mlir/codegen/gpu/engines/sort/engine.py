"""The sort engine: rows that a block can hold are put in order by a network, elements with their places.

Results are read again at the places found, so what is moved along may be computed (places in the row, converted keys). Equal
elements keep their order: a place is part of what is compared. Longer rows are sorted in parts, which are merged
(`frontend/orders.py`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, minimum
from kitsune_mlir.codegen.gpu.engines.sort.keys import word_types, words
from kitsune_mlir.codegen.gpu.engines.sort.network import Item, Network
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.elements import Elements, follows, stores_only, unreadable
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.thread_group import ThreadGroup
from kitsune_mlir.codegen.gpu.interface.tile_index import delinearize
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.codegen.tile_sizes import fit
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["LONGEST", "SortEngine"]

LONGEST = 8192
"""Elements of a row."""
THREADS = 256
BARRIER = 1
PLACES = (1 << 31) - 1
"""Bits of a place."""
_COMPARED = {"ole": False, "olt": False, "sle": False, "slt": False, "oge": True, "ogt": True, "sge": True, "sgt": True}
_UNSIGNED = {"ule": False, "ult": False, "uge": True, "ugt": True}


@dataclasses.dataclass(frozen=True)
class Sort:
    """A sort that the engine does, along dimension `axis`; `signed`: how integers are compared."""

    op: ir.Operation
    axis: int
    descending: bool
    signed: bool
    type: ir.Type

    @property
    def length(self) -> int:
        """Of a row."""
        return shape_of(self.op.results[0])[self.axis]

    def network(self, threads: int) -> Network:
        """What sorts as many rows as a block of so many threads holds, at least `THREADS`."""
        length = max(2, 1 << (self.length - 1).bit_length())
        held = min(length, 4 if length <= 4 * THREADS else 8)
        lanes = max(THREADS, length // held)
        working = min(lanes, 1 << threads.bit_length() - 1)
        return Network(length, held, working, word_types(self.type), lanes // working)


def read(ops: list[ir.Operation]) -> Sort | str:
    """The one sort among some ops, with maps before and after it; a reason where it is more, or other, than that."""
    sorts = [op for op in ops if op.name == "tm_tensor.sort"]
    if len(sorts) != 1:
        return "it holds no sort" if not sorts else "it holds several sorts"
    (op,) = sorts
    block = op.regions[0].blocks[0]
    inner, pair = [o.operation for o in block.operations], list(block.arguments)[:2]
    compares = inner[0].name in ("arith.cmpf", "arith.cmpi") and list(inner[0].operands) == pair
    with_nan = [o.name for o in inner[1:-1]] == ["arith.cmpf", "arith.ori"] and inner[1].operands[0] == inner[1].operands[1]
    if not compares or (len(inner) != 2 and not with_nan):
        return "its rows are not ordered by one comparison"
    type = ir.RankedTensorType(op.operands[0].type).element_type
    predicate = _predicate(inner[0])
    signed = predicate in _COMPARED
    if not signed and (predicate not in _UNSIGNED or inner[0].name == "arith.cmpf" or ir.IntegerType(type).width >= 32):
        return f"its rows are ordered by comparison '{predicate}'"
    others = [o for o in ops if o != op]
    place = ops.index(op)
    if (reason := unreadable(others) or follows(ops[place + 1 :], list(op.results))) is not None:
        return reason
    axis = ir.IntegerAttr(op.attributes["dimension"]).value
    found = Sort(op, axis, {**_COMPARED, **_UNSIGNED}[predicate], signed, type)
    if found.length > LONGEST:
        return f"its rows have {found.length} elements, a block sorts {LONGEST} at most"
    return found


def _predicate(op: ir.Operation) -> str:
    """Name of a comparison's predicate."""
    number = ir.IntegerAttr(op.attributes["predicate"]).value
    if op.name == "arith.cmpf":
        return {2: "ogt", 3: "oge", 4: "olt", 5: "ole"}.get(number, f"number {number}")
    names = {2: "slt", 3: "sle", 4: "sgt", 5: "sge", 6: "ult", 7: "ule", 8: "ugt", 9: "uge"}
    return names.get(number, f"number {number}")


class SortEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "sort"
    traits: ClassVar[Traits] = Traits(ENGINES["sort"], keeps_order=True, along_rows=True)

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        sort = read(candidate.space.ops)
        if isinstance(sort, str):
            return Decline(self.name, sort)
        network = sort.network(options.threads)
        rows = network.items // network.length
        return Offer(self.name, tuple(fit([dim.size for dim in candidate.space.dims], rows)))

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        sort = read(task.work())
        if isinstance(sort, str):
            return Decline(self.name, sort)
        if not stores_only(task, sort.op):
            return Decline(self.name, "it stores what the sort does not make")
        if options.threads < THREADS:
            return Decline(self.name, f"its rows need {THREADS} threads; the kernel has {options.threads}")
        network = sort.network(options.threads)
        steps = (network.length.bit_length() - 1) * network.length.bit_length() // 2
        return Plan(
            self.name,
            task,
            shared_bytes=network.shared_bytes,
            threads=network.threads,
            registers=64,
            parameters={"length": network.length, "held": network.held, "steps": steps},
            streaming=True,
            private=(sort, network),
        )

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.resolve()
        tile.wait()
        _SortTile(tile, *plan.private).emit()
        tile.finish()


class _SortTile:
    """Emits a tile."""

    def __init__(self, tile: TileContext, sort: Sort, network: Network):
        self.tile, self.sort, self.network = tile, sort, network
        self.elements = Elements(tile, sort.axis)
        self.sizes = [size for dim, size in enumerate(shape_of(sort.op.results[0])) if dim != sort.axis]
        self.thread = tile.task.thread
        self.group = ThreadGroup.leading(tile.task, self.network.threads, BARRIER)

    def emit(self) -> None:
        """All rows of the tile."""
        rows = math.prod(self.sizes)
        at_once = self.network.items // self.network.length

        def work() -> None:
            for_(0, rows, at_once, lambda first: self._rows(first, rows))

        self.group.only(work)

    def _rows(self, first: Value, rows: int) -> None:
        network, sort, length = self.network, self.sort, self.sort.length
        each = network.length // network.held  # lanes of a row

        def place_of(lane: Value) -> tuple[Sequence[Value], Value]:
            """Where a lane's row is, and whether (i1) there is one."""
            row = first + lane // each
            return (delinearize(minimum(row, rows - 1), self.sizes) if self.sizes else ()), row < rows

        def read(lane: Value) -> list[Item]:
            where, _ = place_of(lane)
            items = []
            for number in range(network.held):  # whatever the order, so neighbouring threads read neighbours
                place = lane % each + number * each
                (value,) = self._read(0, where, minimum(place, length - 1))
                items.append(words(value, place, place < length, sort.descending, sort.signed))
            return items

        def write(lane: Value, items: list[Item]) -> None:
            where, inside = place_of(lane)
            start = lane % each * network.held
            # The low bits of the last word; what stands for no element has the largest number.
            places = [minimum(cast(item[-1], "i32") & PLACES, length - 1) for item in items]
            results = [[self._read(r, where, place)[0] for place in places] for r in self._used()]
            known = {sort.op.results[r]: values for r, values in zip(self._used(), results, strict=True)}
            for window in self.tile.task.view.stores:
                values = self.elements.at(window.tensor, self._at(where, start), network.held, known)
                width = self.elements.width(window, network.held)
                for low in range(0, network.held, width):
                    exists = inside & (start + low < length)
                    self._store(window, self._at(where, start + low), values[low : low + width], exists)

        network.emit(read, write, self.thread, self.tile.task.shared, self.group.sync)

    def _store(self, window, where: list[Value], values: list[Value], exists: Value) -> None:
        write: Callable[[], None] = lambda: self.elements.store(window, where, values)  # noqa: E731
        if_(exists, write)

    def _used(self) -> list[int]:
        """Numbers of the results that somebody reads."""
        return [number for number, result in enumerate(self.sort.op.results) if list(result.uses)]

    def _at(self, where, along: Value) -> list[Value]:
        return [*where[: self.sort.axis], along, *where[self.sort.axis :]]

    def _read(self, operand: int, where, place: Value) -> list[Value]:
        return self.elements.at(self.sort.op.operands[operand], self._at(where, place), 1)
