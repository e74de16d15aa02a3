"""The smallest engine there can be: differences of two f32 tensors of one dimension, a thread an element."""

from __future__ import annotations

from typing import ClassVar

from kitsune_mlir.codegen.gpu.emit.control_flow import for_
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.access import is_tensor
from kitsune_mlir.dialects.products import body_of, is_generic
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.machine.rates import ENGINES
from kitsune_mlir.machine.target import Target

__all__ = ["BreakingEngine", "ToyEngine"]

TILE = 100


class ToyEngine(Engine):
    """See the module's docstring."""

    name: ClassVar[str] = "toy"
    traits: ClassVar[Traits] = Traits(ENGINES["simt"])

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline:
        ops = [op for op in candidate.space.ops if is_generic(op)]
        if len(ops) != 1 or len(candidate.space.dims) != 1 or candidate.space.dims[0].size < TILE:
            return Decline(self.name, f"it is not one operation on vectors of {TILE} elements or more")
        types = {str(value.type) for value in [*ops[0].operands, *ops[0].results] if is_tensor(value)}
        if len(types) != 1 or "xf32" not in types.pop() or [op.name for op in body_of(ops[0])] != ["arith.subf"]:
            return Decline(self.name, "it is no difference of two f32 tensors")
        return Offer(self.name, (TILE,))

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        if len(task.loads) != 2 or len(task.stores) != 1:
            return Decline(self.name, f"it loads {len(task.loads)} tensors and stores {len(task.stores)}")
        return Plan(self.name, task)

    def emit_tile(self, plan: Plan, tile: TileContext) -> None:
        tile.wait()

        def place(access):
            return offset(tile.pointer(access.buffer), tile.index(access.offsets[0]) * 4)

        left, right = map(place, plan.task.loads)
        result = place(plan.task.stores[0])

        def element(number) -> None:
            difference = load(offset(left, number * 4), "f32") - load(offset(right, number * 4), "f32")
            store(difference, offset(result, number * 4))

        for_(tile.task.thread, TILE, tile.task.threads, element)
        tile.finish()


class BreakingEngine(ToyEngine):
    """Offers what it then declines."""

    name: ClassVar[str] = "breaking"

    def plan(self, task: TaskView, options: KernelOptions) -> Plan | Decline:
        return Decline(self.name, "it has changed its mind")
