"""The body of a task as the simt engine sees it: which operation makes a tensor, which are reductions, what depends on what."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Container, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.approx_math import jumps
from kitsune_mlir.codegen.gpu.engines.simt.precision import Precision, is_rounded, made_before
from kitsune_mlir.codegen.gpu.interface.task_key import task_key
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, loop_sizes
from kitsune_mlir.dialects.tile_records import Load, TaskView
from kitsune_mlir.dialects.verify import captures, walk
from kitsune_mlir.errors import UnsupportedError

__all__ = ["ArgReduction", "Graph", "Precision", "Reduction", "generic_sizes", "needed", "reduced_size", "unwidened"]

_KINDS = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.mulf": "mul",
    "arith.muli": "mul",
    "arith.maximumf": "max",
    "arith.minimumf": "min",
    "arith.maxsi": "max",
    "arith.minsi": "min",
    "arith.andi": "and",
    "arith.ori": "or",
}

_STRUCTURAL = (
    "linalg.fill",
    "tensor.empty",
    "tensor.concat",
    "tensor.extract_slice",
    "tensor.expand_shape",
    "tensor.collapse_shape",
    "tensor.cast",
    "tensor.splat",
    "tensor.from_elements",
    "tensor.pad",
    "tensor.extract",
    "arith.constant",
)


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A linalg.generic of which result `number` is reduced: out = kind(out, value).

    Attributes:
        quotient: in a sum weighted by a softmax, the division of each weight by their sum, which is left out of `value`: the
            whole sum is divided by it instead, once a row.
    """

    op: ir.Operation
    number: int
    kind: str
    value: ir.Value
    quotient: ir.Operation | None = None

    @property
    def divisor(self) -> ir.Value | None:
        """The tensor that the sum is divided by; it has the result's elements."""
        if self.quotient is None:
            return None
        argument = ir.BlockArgument(unwidened(self.quotient.operands[1]))
        return self.op.operands[argument.arg_number]


@dataclasses.dataclass(frozen=True)
class ArgReduction:
    """A linalg.generic with two results: an extreme value and the index where it comes first.

    Attributes:
        kind: "max" or "min".
        value, index: values of the body for one element.
        result, index_result: numbers of the results.
    """

    op: ir.Operation
    kind: str
    value: ir.Value
    index: ir.Value
    result: int = 0
    index_result: int = 1


def generic_sizes(op: ir.Operation) -> list[int]:
    """Trip counts of the loops of a linalg.generic.

    Raises:
        UnsupportedError: a loop runs along no dimension of an operand.
    """
    sizes = loop_sizes(op, unknown=0)
    if not all(sizes):
        raise UnsupportedError("linalg.generic", "every loop runs along a dimension of an operand", None, str(op.location))
    return sizes


class Graph:
    """A task's tensors.

    Attributes:
        task: the task.
        loads: the load that makes a tensor.
        reductions: by operation, its `Reduction`s (one a result), or its one `ArgReduction`.
        scatters: the operations that put rows of a tensor into those of a buffer.
        precision: what its code may do with floating-point numbers.
        levels: by tensor, how many reductions lie one after the other on the longest way to it.

    Raises:
        UnsupportedError: the body holds something that is no map, reduction or movement of tensors.
    """

    def __init__(self, task: TaskView):
        self.task = task
        self.loads: dict[ir.Value, Load] = {load.tensor: load for load in task.loads}
        self.reductions: dict[ir.Operation, tuple[Reduction, ...] | ArgReduction] = {}
        self.levels: dict[ir.Value, int] = {load.tensor: 0 for load in task.loads}
        self.scatters = [op for op in task.work() if op.name == "kitsune.atomic_scatter"]
        if not task.stores and not self.scatters:
            raise UnsupportedError("kitsune.task", "the results are stored as tensors", "no store", str(task.op.location))
        for op in task.work():
            self._read(op)
        self.precision = self._precision()
        if self.precision.approximate and self.precision.excess:
            self._leave_out_quotients()
        for op in task.work():
            self._count_levels(op)

    def _precision(self) -> Precision:
        """What the types in memory and the operations between allow."""
        single = [load for load in self.task.loads if math.prod(load.buffer.shape) == 1]
        numbers = [load for load in single if str(load.buffer.element) in ("f32", "f64")]
        loads = [load for load in self.task.loads if load not in numbers]
        memory = [window.buffer.element for window in (*loads, *self.task.stores)]
        memory += [ir.RankedTensorType(op.operands[0].type).element_type for op in self.scatters]
        floats = {str(element) for element in memory} & {
            "f16",
            "bf16",
            "f32",
            "f64",
        }
        inner = [op for top in self.task.work() for op in (top, *walk(top))]
        sharp = any(map(jumps, inner))
        # The hardware's tanh has the accuracy of bf16, not of f16.
        powers = [op for op in inner if op.name == "math.exp"]
        lowered = frozenset(op for op in powers if self._is_lowered(op.operands[0]))
        short = frozenset(op for op in powers if not sharp and (is_rounded(op) or self._is_lowered(made_before(op))))
        return Precision(approximate=floats == {"bf16"} and not sharp, excess=not sharp, lowered=lowered, short=short)

    def _is_lowered(self, value: ir.Value) -> bool:
        """Whether a value of a body is x - m with m from a reduction to the maximum."""
        minus = value.owner
        if isinstance(minus, ir.Block) or minus.name != "arith.subf" or not isinstance(minus.operands[1].owner, ir.Block):
            return False
        block, argument = minus.operands[1].owner, ir.BlockArgument(minus.operands[1])
        operands = list(block.owner.operands)
        if argument.arg_number >= len(operands):
            return False
        maker = operands[argument.arg_number].owner
        recipe = None if isinstance(maker, ir.Block) else self.reductions.get(maker.operation)
        return isinstance(recipe, tuple) and recipe[0].kind == "max"

    def _read(self, op: ir.Operation) -> None:
        where = str(op.location)
        if op.name == "linalg.generic":
            if "reduction" in iterator_kinds(op):
                self.reductions[op] = read_reduction(op)
        elif op.name in ("cf.assert", "memref.subview", "kitsune.atomic_scatter"):
            return
        elif op.name not in _STRUCTURAL:
            raise UnsupportedError(op.name, "simt does maps, reductions and movement of tensors", None, where)

    def _count_levels(self, op: ir.Operation) -> None:
        inputs, recipe = self.inputs(op), self.reductions.get(op)
        if isinstance(recipe, tuple):  # what a sum is divided by is needed after it, in the same level
            later = {reduction.divisor for reduction in recipe}
            inputs = [value for value in inputs if value not in later]
        level = max((self.level(value) for value in inputs), default=0)
        for result in op.results:
            self.levels[result] = level + (op in self.reductions)

    def is_sum_of_powers(self, op: ir.Operation, maximum: ir.Operation) -> bool:
        """Whether a reduction sums the exponentials of what its elements have less than their largest, `maximum`'s result.

        Or products with them, whose other factors do not depend on the largest.
        """
        recipe = self.reductions[op]
        if not isinstance(recipe, tuple) or len(recipe) != 1 or recipe[0].kind != "add":
            return False
        value, reader, quotient = unwidened(recipe[0].value), op, recipe[0].quotient
        if quotient is not None:
            value = unwidened(quotient.operands[0])
            others = [v for v in op.operands if v != recipe[0].divisor]
            if isinstance(value.owner, ir.Block):
                others.remove(op.operands[ir.BlockArgument(value).arg_number])
            if any(self.level(v) >= self.level(maximum.results[0]) for v in others):
                return False
        if isinstance(value.owner, ir.Block):
            maker = op.operands[ir.BlockArgument(value).arg_number].owner
            if isinstance(maker, ir.Block) or maker.name != "linalg.generic" or len(maker.results) != 1:
                return False
            reader = maker.operation
            value = unwidened(list(reader.regions[0].blocks[0].operations)[-1].operands[0])
        if isinstance(value.owner, ir.Block) or value.owner.operation not in self.precision.lowered:
            return False
        largest = ir.BlockArgument(value.owner.operands[0].owner.operands[1])
        return reader.operands[largest.arg_number] == maximum.results[0]

    def _leave_out_quotients(self) -> None:
        """Sums of (e / s) * h, e an exponential from 0 to 1 of a softmax and s a number of the row, become sum(e * h) / s."""
        for op, recipe in self.reductions.items():
            if not isinstance(recipe, tuple) or len(recipe) != 1 or recipe[0].kind != "add":
                continue
            quotient = _factor_quotient(recipe[0].value)
            if quotient is None or not self._is_weight(op, quotient.operands[0]):
                continue
            maps, divisor = affine_maps(op), unwidened(quotient.operands[1])
            if isinstance(divisor.owner, ir.Block) and maps[ir.BlockArgument(divisor).arg_number] == maps[-1]:
                self.reductions[op] = (dataclasses.replace(recipe[0], quotient=quotient),)

    def _is_weight(self, op: ir.Operation, value: ir.Value) -> bool:
        """Whether a value of a body is, or was read from a tensor of, `lowered` exponentials."""
        value = unwidened(value)
        if not isinstance(value.owner, ir.Block):
            return value.owner.operation in self.precision.lowered
        maker = op.operands[ir.BlockArgument(value).arg_number].owner
        if isinstance(maker, ir.Block) or maker.name != "linalg.generic" or len(maker.results) != 1:
            return False
        made = unwidened(list(maker.operation.regions[0].blocks[0].operations)[-1].operands[0])
        return not isinstance(made.owner, ir.Block) and made.owner.operation in self.precision.lowered

    @functools.cached_property
    def key(self) -> tuple[str, ...]:
        """Equal for graphs of tasks that are alike: their loads, stores and operations then have the same numbers."""
        return task_key(self.task)

    @functools.cached_property
    def left_out(self) -> dict[ir.Operation, ir.Value]:
        """By a division that is made once a row instead, its numerator."""
        sums = [recipe[0] for recipe in self.reductions.values() if isinstance(recipe, tuple)]
        return {one.quotient: one.quotient.operands[0] for one in sums if one.quotient is not None}

    def level(self, value: ir.Value) -> int:
        """See `levels`; 0 for what comes from outside the task."""
        return self.levels.get(value, 0)

    def inputs(self, op: ir.Operation) -> list[ir.Value]:
        """Tensors and scalars that an operation reads, those that its body captures included."""
        return [*op.operands, *(captures(op) if len(op.regions) else ())]

    def needed(self, value: ir.Value) -> list[ir.Operation]:
        """The reductions that `value` depends on, in program order."""
        found: set[ir.Operation] = set()
        pending, seen = [value], set()
        while pending:
            item = pending.pop()
            if item in seen or item in self.loads or isinstance(item.owner, ir.Block):
                continue
            seen.add(item)
            op = item.owner.operation if hasattr(item.owner, "operation") else item.owner
            if op in self.reductions:
                found.add(op)
            pending += self.inputs(op)
        return [op for op in self.reductions if op in found]


def unwidened(value: ir.Value) -> ir.Value:
    """The value before conversions between floating-point types."""
    while not isinstance(value.owner, ir.Block) and value.owner.name in ("arith.extf", "arith.truncf"):
        value = value.owner.operands[0]
    return value


def _factor_quotient(value: ir.Value) -> ir.Operation | None:
    """A division that a product has as a factor, if nothing else uses it."""
    pending = [value]
    while pending:
        value = unwidened(pending.pop())
        if isinstance(value.owner, ir.Block):
            continue
        maker = value.owner.operation
        if maker.name == "arith.divf":
            return maker
        if maker.name == "arith.mulf" and len(list(value.uses)) == 1:
            pending += reversed(maker.operands)
    return None


def read_reduction(op: ir.Operation) -> tuple[Reduction, ...] | ArgReduction:
    """Recognise what a reducing linalg.generic computes.

    Raises:
        UnsupportedError: it is neither one associative combination a result nor the index of an extreme value.
    """
    block = op.regions[0].blocks[0]
    inner = [o.operation for o in block.operations]
    yielded = list(inner[-1].operands)
    outs = list(block.arguments)[len(block.arguments) - len(op.results) :]
    if len(yielded) == 2 and (found := _read_arg(op, outs, yielded)) is not None:
        return found
    reductions = []
    for number, (out, value) in enumerate(zip(outs, yielded, strict=True)):
        maker = value.owner.operation if not isinstance(value.owner, ir.Block) else None
        uses = list(out.uses)
        if maker is None or maker.name not in _KINDS or len(uses) != 1 or uses[0].owner.operation != maker:
            limit = "a reduction combines by one associative operation"
            raise UnsupportedError("linalg.generic", limit, None, str(op.location))
        first, second = maker.operands
        reductions.append(Reduction(op, number, _KINDS[maker.name], second if first == out else first))
    return tuple(reductions)


def _read_arg(op: ir.Operation, outs: list[ir.Value], yielded: list[ir.Value]) -> ArgReduction | None:
    """`best = max(x, best); where = x > best ? index : where`, either way round."""
    for extreme, place in ((0, 1), (1, 0)):
        best, chosen = yielded[extreme], yielded[place]
        if isinstance(best.owner, ir.Block) or isinstance(chosen.owner, ir.Block):
            continue
        maker, choice = best.owner.operation, chosen.owner.operation
        kind = _KINDS.get(maker.name)
        if kind not in ("max", "min") or choice.name != "arith.select" or choice.operands[2] != outs[place]:
            continue
        test = choice.operands[0].owner
        if isinstance(test, ir.Block) or test.operation.name not in ("arith.cmpf", "arith.cmpi"):
            continue
        value = maker.operands[0] if maker.operands[1] == outs[extreme] else maker.operands[1]
        predicate = ir.IntegerAttr(test.operation.attributes["predicate"]).value
        wanted = {("arith.cmpf", "max"): 2, ("arith.cmpf", "min"): 4, ("arith.cmpi", "max"): 4, ("arith.cmpi", "min"): 2}
        if list(test.operation.operands) != [value, outs[extreme]]:
            continue
        if predicate != wanted[test.operation.name, kind]:
            continue
        return ArgReduction(op, kind, value, choice.operands[1], extreme, place)
    return None


def reduced_size(op: ir.Operation) -> int:
    """Elements that one result of a reduction is made of."""
    kinds = iterator_kinds(op)
    return math.prod(size for size, kind in zip(generic_sizes(op), kinds, strict=True) if kind == "reduction")


def needed(
    block: ir.Block,
    wanted: Sequence[ir.Value],
    known: Container[ir.Value] = (),
    aliases: Mapping[ir.Operation, ir.Value] | None = None,
) -> set[ir.Value]:
    """Values of the block that `wanted` depends on, as far as those that are not `known` do.

    Args:
        aliases: by operation, the one value that its result stands for.
    """
    found = set(wanted)
    for inner in reversed([op.operation for op in block.operations]):
        if any(result in found and result not in known for result in inner.results):
            found.update([aliases[inner]] if aliases and inner in aliases else inner.operands)
    return found
