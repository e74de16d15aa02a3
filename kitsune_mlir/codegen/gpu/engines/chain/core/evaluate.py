"""Element-wise work of a chain on fragments: tensors are pulled pair by pair through the operations that make them.

What does not depend on the row or on the column is computed once and shared. Rounding to 16 bits happens pair by pair, in one
instruction with a ReLU around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith

from kitsune_mlir.codegen.gpu.contraction.axes import COL, ROW
from kitsune_mlir.codegen.gpu.contraction.elementwise import Step, is_constant
from kitsune_mlir.codegen.gpu.contraction.packed_pair import Lanes, add_packed, exchange, pin
from kitsune_mlir.codegen.gpu.contraction.scalar_body import constant_of, is_zero
from kitsune_mlir.codegen.gpu.emit.approx_math import approximations_for, exact_enough
from kitsune_mlir.codegen.gpu.emit.convert import pack_pair
from kitsune_mlir.codegen.gpu.emit.inline_ptx import pinned
from kitsune_mlir.codegen.gpu.emit.operation import clone
from kitsune_mlir.codegen.gpu.emit.value import Value, cast, wrap
from kitsune_mlir.codegen.gpu.engines.chain.core.body import QUAD, Chain
from kitsune_mlir.codegen.gpu.engines.chain.core.comparisons import Bits
from kitsune_mlir.codegen.gpu.engines.chain.core.fragment_index import FragmentIndex
from kitsune_mlir.codegen.gpu.engines.chain.core.operand_reads import RUN, Memory, to_integer
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import sides_of
from kitsune_mlir.codegen.gpu.engines.chain.core.row_reduce import reduce_rows
from kitsune_mlir.codegen.gpu.engines.chain.core.seams import SEAM
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.products import body_of, yield_of
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["Evaluator"]


class Evaluator:
    """Pulls tensors of one tile; one object a warpgroup and tile.

    Args:
        chain: the body.
        memory: reads loads at places.
        index: emits an `index` value of the task, i32.
        folded: for values of bodies that a product's sums already are (`chain.core.accumulator_init`), the product's result.
    """

    def __init__(self, chain: Chain, memory: Memory, index: Callable[[ir.Value], Value], folded: dict[ir.Value, ir.Value]):
        self.chain, self.memory, self.index = chain, memory, index
        self.folded = folded
        self.sums: dict[ir.Value, list[Value]] = {}
        """Accumulators of each product."""
        self.known: dict[tuple, Lanes] = {}
        self.kept: dict[tuple, Lanes] = {}
        self.pieces: dict[tuple, list[Value]] = {}
        self.held: dict[tuple, Lanes] = {}
        """Values of bodies that `keep` does not forget."""
        self.bits: Bits | None = None
        """Comparisons of tensors that are not kept themselves."""
        self._deps: dict[tuple, frozenset[str]] = {}

    def keep(self, values: tuple[ir.Value, ...], blocks: range | None = None) -> None:
        """Forget everything but `values`, which stay in registers at all places.

        Args:
            blocks: those of which values are computed now, if not all; others stay where they were kept before.
        """
        made: dict[tuple, Lanes] = {}
        kept: dict[tuple, Lanes] = {}
        for value in values:
            for place in self.places(value):
                key = self._key(value, self._tensor_deps(value), place)
                if key in self.kept:
                    kept[key] = self.kept[key]
                elif key not in made and (blocks is None or place.block in blocks):
                    made[key] = self.tensor(value, place).settled()
        self.kept, self.known, self.pieces = kept | pin(made), {}, {}
        self.memory.forget()

    def hide(self, nothing: Value) -> None:
        """Let neither LLVM nor ptxas know that packed pairs which are kept are the same as before.

        They compute what follows from them again where it is used, instead of holding it in registers.

        Args:
            nothing: an i32 that is 0, of which the compilers do not know it.
        """
        self.kept = {
            key: Lanes(lanes.dtype, word=lanes.word ^ nothing) if lanes.short and not lanes.uniform else lanes
            for key, lanes in self.kept.items()
        }
        self.kept = pin(self.kept)

    def reduce(self, value: ir.Value, places: Sequence[FragmentIndex]) -> None:
        """Reduce the rows of `places` side by side; `value` is the result."""
        results = reduce_rows(self, self.chain.steps[value], places)
        for place, result in zip(places, results, strict=True):
            self.known[self._key(value, self._tensor_deps(value), place)] = result

    def set(self, value: ir.Value, place: FragmentIndex, word: Value) -> None:
        """Take a packed pair of a tensor from elsewhere."""
        self.kept[self._key(value, self._tensor_deps(value), place)] = Lanes(_element(value), word=word)

    def places(self, value: ir.Value) -> list[FragmentIndex]:
        """All places of a tensor."""
        shape = shape_of(value)
        blocks = -(-shape[1] // 8) if len(shape) == 2 else 1
        return [FragmentIndex(half, block) for block in range(blocks) for half in range(2)]

    # --- tensors -----------------------------------------------------------------------------------------------------

    def tensor(self, value: ir.Value, place: FragmentIndex) -> Lanes:
        """The elements of a computed tensor."""
        key = self._key(value, self._tensor_deps(value), place)
        if key in self.kept:
            return self.kept[key]
        if key not in self.known:
            self.known[key] = self._tensor(value, place)
        return self.known[key]

    def piece(self, value: ir.Value, place: FragmentIndex) -> list[Value]:
        """16 bytes of a 16-bit tensor: the 8 columns of block `place.block` (a multiple of 4) + the thread's quarter."""
        key = (value, place, "piece")
        if key not in self.pieces:
            words = [self.tensor(value, dataclasses.replace(place, block=place.block + part)).word for part in range(QUAD)]
            self.pieces[key] = words if self.memory.plan.run == RUN else exchange(words, self.memory.quad)
        return self.pieces[key]

    def _tensor(self, value: ir.Value, place: FragmentIndex) -> Lanes:
        if value in self.sums:
            first = 4 * place.block + 2 * place.half
            return Lanes("f32", scalars=self.sums[value][first : first + 2])
        step = self.chain.steps[value]
        if step.kind == "alias":
            return self._alias(value, step, place)
        if step.kind == "concat":
            return self._concat(step, place)
        if step.kind == "reduce":
            return reduce_rows(self, step, [place])[0]
        if step.op.name == "linalg.fill":
            return self.operand(step.op, 0, place)
        return self.inner(step.op, yield_of(step.op).operands[list(step.op.results).index(value)], place)

    def _alias(self, value: ir.Value, step: Step, place: FragmentIndex) -> Lanes:
        source = step.op.operands[0]
        lanes = self.any(source, dataclasses.replace(place, block=0))
        if len(shape_of(value)) == 1 and len(shape_of(source)) == 2 and not lanes.uniform:
            return Lanes(lanes.dtype, scalars=[self.memory.first_of_row(lanes.at(0))])
        return lanes

    def _concat(self, step: Step, place: FragmentIndex) -> Lanes:
        block = place.block
        *before, last = step.op.operands  # by place: a tensor may be joined to itself
        for part in before:
            blocks = shape_of(part)[1] // SEAM
            if block < blocks:
                return self.any(part, dataclasses.replace(place, block=block))
            block -= blocks
        return self.any(last, dataclasses.replace(place, block=block))

    def any(self, value: ir.Value, place: FragmentIndex) -> Lanes:
        """The elements of a tensor that is computed or constant, or a row of which is loaded as a row."""
        if is_constant(value):
            return Lanes(_element(value), scalars=[constant_of(value)])
        load = self.chain.task.load_of(value)
        if load is None:
            return self.tensor(value, place)
        return self.memory.load(load, tuple(sides_of(value)), place, shape_of(value)[-1])

    def operand(self, op: ir.Operation, number: int, place: FragmentIndex) -> Lanes:
        """The elements of an operand of a generic."""
        value = op.operands[number]
        if is_constant(value):
            return Lanes(_element(value), scalars=[constant_of(value)])
        load = self.chain.task.load_of(value)
        sides = self.chain.operand_sides(op, number) if op.name != "linalg.fill" else ()
        if load is not None:
            shape = [extent for extent in shape_of(value) if extent != 1]
            cols = shape[sides.index(COL)] if COL in sides else 1
            return self.memory.load(load, sides, place, cols)
        if COL not in sides:
            place = dataclasses.replace(place, block=0)
            lanes = self.tensor(value, place)
            if len(shape_of(value)) == 2 and not lanes.uniform:  # one column, read by all
                return Lanes(lanes.dtype, scalars=[self.memory.first_of_row(lanes.at(0))])
            return lanes
        return self.tensor(value, place)

    # --- bodies ------------------------------------------------------------------------------------------------------

    def inner(self, op: ir.Operation, value: ir.Value, place: FragmentIndex) -> Lanes:
        """The elements of a value of a generic's body."""
        if value in self.folded:
            return self.tensor(self.folded[value], place)
        key = (op, *self._key(value, self._inner_deps(op, value), place))
        if key in self.held:
            return self.held[key]
        if key not in self.known:
            self.known[key] = self._inner(op, value, place)
        return self.known[key]

    @staticmethod
    def inner_constant(value: ir.Value) -> Value:
        """A constant that a body uses."""
        return constant_of(value)

    def hold_index(self, op: ir.Operation, value: ir.Value, place: FragmentIndex) -> None:
        """Compute a row's number (an index value of a body, below 2^31) here, and keep it in a register."""
        found = self.inner(op, value, place).at(0)
        number = pinned([cast(to_integer(found), "i32")])[0]
        key = (op, *self._key(value, self._inner_deps(op, value), place))
        self.held[key] = Lanes("index", scalars=[self._to_index(number)])

    def _inner(self, op: ir.Operation, value: ir.Value, place: FragmentIndex) -> Lanes:
        block = op.regions[0].blocks[0]
        if isinstance(value.owner, ir.Block):
            if value.owner == block:
                return self.operand(op, list(block.arguments).index(value), place)
            return Lanes("index", scalars=[self._to_index(self.index(value))])
        maker = value.owner.operation
        if maker.block != block:
            if maker.name == "arith.constant":
                return Lanes(str(value.type), scalars=[constant_of(value)])
            return Lanes("index", scalars=[self._to_index(self.index(value))])
        if self.bits is not None and maker in self.bits.tests:
            return Lanes("i1", scalars=self.bits.read(maker, place))
        if maker.name == "linalg.index":
            return self._index(op, ir.IntegerAttr(maker.attributes["dim"]).value, place)
        if maker.name == "tensor.extract":
            return self._extract(op, maker, place)
        wide = COL in self._inner_deps(op, value)
        if str(value.type) in HALF_TYPES and wide:
            rounded = self._rounded(op, value, place)
            if rounded is not None:
                return rounded
        if maker.name == "arith.extf" and str(value.type) == "f32":
            return Lanes("f32", scalars=self.inner(op, maker.operands[0], place).wide)
        operands = [self.inner(op, operand, place) for operand in maker.operands]
        number = list(maker.results).index(value)
        lanes = [[operand.at(lane) for operand in operands] for lane in range(2 if wide else 1)]
        if str(value.type) == "f32" and (function := _quick(op).get(maker.name)) is not None:
            return Lanes("f32", scalars=[function(*lane) for lane in lanes])
        return Lanes(str(value.type), scalars=[clone(maker, lane)[number] for lane in lanes])

    def _rounded(self, op: ir.Operation, value: ir.Value, place: FragmentIndex) -> Lanes | None:
        """A 16-bit value that is a rounded f32 value, with a ReLU before or after; None if it is made otherwise."""
        relu, dtype = False, str(value.type)
        while True:
            if (source := relu_of(value)) is not None:
                relu, value = True, source
            elif (
                _is(value, "arith.truncf")
                and _is(value.owner.operands[0], "arith.extf")
                and (str(value.owner.operands[0].owner.operands[0].type) == dtype)
            ):
                value = value.owner.operands[0].owner.operands[0]
            elif _is(value, "arith.truncf") and (source := relu_of(value.owner.operands[0])) is not None:
                if not _is(source, "arith.extf"):
                    wide = self.inner(op, source, place)
                    return Lanes(dtype, word=pack_pair(wide.at(0), wide.at(1), dtype, True))
                relu, value = True, source.owner.operands[0]
                if str(value.type) != dtype:
                    return None
            else:
                break
        if not _is(value, "arith.truncf") or str(value.owner.operands[0].type) != "f32":
            if not relu:
                return None
            wide = self.inner(op, value, place).wide
            return Lanes(dtype, word=pack_pair(wide[0], wide[-1], dtype, True))
        source = value.owner.operands[0]
        if not relu and (parts := self._sum_of_short(op, source, dtype)):
            a, b = (self.inner(op, part, place) for part in parts)
            return Lanes(dtype, word=add_packed(a.word, b.word, dtype))
        wide = self.inner(op, source, place)
        return Lanes(dtype, word=pack_pair(wide.at(0), wide.at(1), dtype, relu))

    def _sum_of_short(self, op: ir.Operation, value: ir.Value, dtype: str) -> list[ir.Value] | None:
        """The two 16-bit values whose f32 sum `value` is, if both differ from column to column."""
        if not _is(value, "arith.addf"):
            return None
        parts = [x.owner.operands[0] for x in value.owner.operands if _is(x, "arith.extf")]
        if len(parts) != 2 or any(str(x.type) != dtype or COL not in self._inner_deps(op, x) for x in parts):
            return None
        return parts

    def _index(self, op: ir.Operation, loop: int, place: FragmentIndex) -> Lanes:
        if self.chain.sides[op][loop] == ROW:
            return Lanes("index", scalars=[self._to_index(self.memory.row(place))])
        col = self.memory.col(place)
        return Lanes("index", scalars=[self._to_index(col), self._to_index(col + 1)])

    def _extract(self, op: ir.Operation, maker: ir.Operation, place: FragmentIndex) -> Lanes:
        load = self.chain.task.load_of(maker.operands[0])
        assert load is not None
        places = [self.inner(op, operand, place) for operand in list(maker.operands)[1:]]
        last = maker.operands[len(maker.operands) - 1]
        along = _is(last, "linalg.index") and not places[-1].uniform
        cols = max((shape_of(r)[1] for r in op.results if len(shape_of(r)) == 2), default=1)
        return self.memory.extract(load, [p.scalars for p in places], along, place, cols)

    @staticmethod
    def _to_index(value: Value) -> Value:
        return wrap(arith.index_castui(ir.IndexType.get(), value.ir))

    # --- what depends on what ----------------------------------------------------------------------------------------

    @staticmethod
    def _key(value: ir.Value, deps: frozenset[str], place: FragmentIndex) -> tuple:
        return (
            value,
            place.half if ROW in deps else None,
            place.block if COL in deps else None,
        )

    def _tensor_deps(self, value: ir.Value) -> frozenset[str]:
        key = (value,)
        if key not in self._deps:
            shape = shape_of(value)
            deps = {ROW} | ({COL} if len(shape) == 2 else set())
            step = self.chain.steps.get(value)
            if step is not None and step.kind == "map" and step.op.name == "linalg.generic":
                deps = set(self._inner_deps(step.op, yield_of(step.op).operands[list(step.op.results).index(value)]))
            elif step is not None and step.op.name == "linalg.fill":
                deps = set()
            self._deps[key] = frozenset(deps)
        return self._deps[key]

    def _inner_deps(self, op: ir.Operation, value: ir.Value) -> frozenset[str]:
        key = (op, value)
        if key not in self._deps:
            self._deps[key] = frozenset(self._find_deps(op, value))
        return self._deps[key]

    def _find_deps(self, op: ir.Operation, value: ir.Value) -> set[str]:
        block = op.regions[0].blocks[0]
        if isinstance(value.owner, ir.Block):
            if value.owner != block:
                return set()
            number = list(block.arguments).index(value)
            operand = op.operands[number]
            if is_constant(operand):
                return set()
            sides = set(self.chain.operand_sides(op, number))
            if self.chain.task.load_of(operand) is None:
                return set(self._tensor_deps(operand)) & (sides | {ROW})
            return sides
        maker = value.owner.operation
        if maker.block != block:
            return set()
        if maker.name == "linalg.index":
            return {self.chain.sides[op][ir.IntegerAttr(maker.attributes["dim"]).value]}
        found: set[str] = set()
        for operand in maker.operands:
            if not isinstance(operand.type, ir.ShapedType):
                found |= self._inner_deps(op, operand)
        return found


def relu_of(value: ir.Value) -> ir.Value | None:
    """What `value` is the ReLU of, or None."""
    if _is(value, "arith.maximumf"):
        a, b = value.owner.operands
        return a if is_zero(b) else b if is_zero(a) else None
    if _is(value, "arith.select") and _is(value.owner.operands[0], "arith.cmpf"):
        test, yes, no = value.owner.operands
        a, b = test.owner.operands
        greater = ir.IntegerAttr(test.owner.attributes["predicate"]).value in (2, 9)  # ogt, ugt
        # ogt makes 0 of NaN, where torch and `cvt.relu` keep it; only ugt is the same.
        if (
            greater
            and a == yes
            and is_zero(b)
            and is_zero(no)
            and ir.IntegerAttr(test.owner.attributes["predicate"]).value == 9
        ):
            return a
    return None


def _quick(op: ir.Operation) -> Mapping[str, Callable[..., Value]]:
    """Functions that are exact enough for an operation's results."""
    return exact_enough(approximations_for(ir.ShapedType(result.type).element_type for result in op.results), body_of(op))


def _is(value: ir.Value, name: str) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == name


def _element(value: ir.Value) -> str:
    return str(ir.ShapedType(value.type).element_type if isinstance(value.type, ir.ShapedType) else value.type)
