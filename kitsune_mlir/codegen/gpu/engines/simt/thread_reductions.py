"""Reductions that a thread makes alone: short ones, and those over windows."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import for_
from kitsune_mlir.codegen.gpu.emit.reduce import identity, over_registers
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Index, Linear, add, divmod_index
from kitsune_mlir.codegen.gpu.engines.simt.cached import Coordinates, PointEvaluator
from kitsune_mlir.codegen.gpu.engines.simt.graph import ArgReduction, generic_sizes, reduced_size
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import Lanes, carrier
from kitsune_mlir.dialects.access import iterator_kinds
from kitsune_mlir.errors import UnsupportedError

__all__ = ["private_reduction"]

_UNROLLED = 32
"""Reductions of up to this many elements have no loop."""
_STEPS = (8, 12, 11, 10, 9, 7, 6)
"""Elements of a turn of a loop, whose loads are under way together: the first of these that divides a reduction; where none
does, what is left of turns of the first follows."""


def private_reduction(evaluator: PointEvaluator, op: ir.Operation, tensor: ir.Value, coordinates: Coordinates) -> Lanes:
    """A reduction done by the thread alone."""
    loops = evaluator.loops_of(op, tensor, coordinates)
    recipe = evaluator.graph.reductions[op]
    kinds, sizes = iterator_kinds(op), generic_sizes(op)
    reduced = [loop for loop, kind in enumerate(kinds) if kind == "reduction"]
    total = reduced_size(op)
    if isinstance(recipe, ArgReduction):
        raise UnsupportedError(op.name, "threads look for an extreme's index together", None, str(op.location))
    reduction = recipe[list(op.results).index(tensor)]
    register = carrier(ir.RankedTensorType(tensor.type).element_type)

    def value(number: Linear) -> Lanes:
        filled = list(loops)
        rest: Index = number
        for loop in reversed(reduced):
            rest, filled[loop] = divmod_index(rest, sizes[loop], evaluator.width)
        values = evaluator.body(op, filled, [reduction.value])[0]
        return [values[e if len(values) > 1 else 0] for e in range(evaluator.width)]

    def fold(parts: list[Lanes]) -> Lanes:
        return [over_registers(reduction.kind, [part[e] for part in parts]) for e in range(evaluator.width)]

    start = evaluator.initial(op, tensor, coordinates)
    if total <= _UNROLLED:
        whole = fold([value(Linear(const=number)) for number in range(total)])
        return fold([start, evaluator.divided(reduction, coordinates, whole)])
    step = next((size for size in _STEPS if total % size == 0), _STEPS[0])

    def iterate(number: Value, *carried: Value) -> Lanes:
        with evaluator.scope():
            base = Linear.of(Atom(number, step, total))
            return fold([list(carried), *(value(add(base, s)) for s in range(step))])  # type: ignore[arg-type]

    neutral = [identity(reduction.kind, register)] * evaluator.width
    whole = for_(0, total - total % step, step, iterate, neutral)
    if total % step:
        whole = fold([whole, *(value(Linear(const=number)) for number in range(total - total % step, total))])
    return fold([start, evaluator.divided(reduction, coordinates, whole)])
