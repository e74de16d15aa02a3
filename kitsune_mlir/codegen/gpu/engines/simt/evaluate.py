"""Evaluates a task's tensors at points: what an element is, pulled through the operations that make it, down to loads.

Every value is remembered by its tensor and coordinates; those made inside a loop or branch are forgotten at its end (`scope`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Container, Iterator, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.approx_math import reciprocal
from kitsune_mlir.codegen.gpu.emit.convert import packed_source, unpack_values
from kitsune_mlir.codegen.gpu.emit.inline_ptx import pinned
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, fma
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import (
    Atom,
    Index,
    Linear,
    add,
    affine,
    divmod_index,
    opaque,
    with_units,
)
from kitsune_mlir.codegen.gpu.engines.simt.cached import Coordinates, Kept, Windows
from kitsune_mlir.codegen.gpu.engines.simt.column_affine import Fold
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph, Reduction, needed
from kitsune_mlir.codegen.gpu.engines.simt.memory import CrossedWindow, Memory
from kitsune_mlir.codegen.gpu.engines.simt.scalar_body import Lanes, ScalarEmitter, carrier, materialize
from kitsune_mlir.codegen.gpu.engines.simt.tensor_moves import MOVES
from kitsune_mlir.codegen.gpu.engines.simt.thread_reductions import private_reduction
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of
from kitsune_mlir.dialects.deep import Steps, evaluate
from kitsune_mlir.dialects.tile_records import Load, Offset, Store
from kitsune_mlir.errors import UnsupportedError

__all__ = ["Evaluator"]


class Evaluator:
    """Evaluates tensors for vectors of `width` points of one tile.

    Args:
        shared: reductions whose results threads make together: they are put in by `define`, never evaluated here.
        windows: loads (by tensor) and stores whose windows are in shared memory.
        kept: values that are not evaluated again.
    """

    def __init__(
        self,
        graph: Graph,
        tile: TileContext,
        width: int,
        shared: Sequence[ir.Operation] = (),
        windows: Windows | None = None,
        kept: Kept | None = None,
    ):
        self.graph, self.tile, self.width = graph, tile, width
        self.shared = set(shared)
        self.scalars = ScalarEmitter(width, graph.precision)
        self.memory = Memory(tile, self.scalars)
        self.windows = windows or {}
        self.kept = kept
        self._meet = kept.meet if kept is not None else None
        self._folds = kept.folds if kept is not None else {}
        # By operation, the value of the body that has to be known for its result instead of its operands.
        self._stands_for = {**graph.left_out, **{op: fold.base for op, fold in self._folds.items()}}
        self.crossed: dict[ir.Value, int] = {}
        self._early: dict[tuple[ir.Value, Coordinates], list[Value]] = {}
        self._memo: list[dict] = [{}]
        self._coordinates = [
            Linear.of(Atom(value, 1, extent)) if extent > 1 else Linear()
            for value, extent in zip(tile.coordinates, graph.task.grid, strict=True)
        ]

        # The tile computes an offset where it is first asked for: here, before any loop or branch.
        slices = [op for op in graph.task.work() if op.name == "tensor.extract_slice"]
        offsets = [offset for record in (*graph.task.loads, *graph.task.stores) for offset in record.offsets]
        offsets += [op.operands[2] for op in graph.scatters]
        for offset in (*offsets, *(operand for op in slices for operand in list(op.operands)[1:])):
            self.outer(offset)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """What is emitted inside the `with` block is inside a loop or branch."""
        self._memo.append({})
        self.memory.enter()
        packed, bounded = self.scalars.packed, self.scalars.bounded
        self.scalars.packed, self.scalars.bounded = dict(packed), dict(bounded)
        yield
        self.scalars.packed, self.scalars.bounded = packed, bounded
        self.memory.leave()
        self._memo.pop()

    def define(self, tensor: ir.Value, coordinates: Coordinates, values: Lanes) -> None:
        """From now on, in this scope, `tensor` is `values` at these coordinates."""
        self._memo[-1][tensor, coordinates] = values

    def forget(self, level: int) -> None:
        """Forget the elements of tensors that depend on reductions of this level or later ones."""
        for memo in self._memo:
            for key in [k for k in memo if isinstance(k, tuple) and isinstance(k[0], ir.Value)]:
                if self.graph.level(key[0]) >= level:
                    del memo[key]

    def hold_loads(self) -> None:
        """Have the pairs that were loaded in registers from here on; what was made of them is made anew, behind this place."""
        for key in [k for k in self._memo[-1] if isinstance(k, tuple) and isinstance(k[0], ir.Value)]:
            lanes = self._memo[-1].pop(key)
            pairs = [packed_source(low, high) for low, high in zip(lanes[::2], lanes[1::2], strict=False)]
            words = [word for word in pairs if word is not None]
            if key[0] in self.graph.loads and len(words) == len(pairs) > 0:
                self._memo[-1][key] = unpack_values(pinned(words), "bf16")

    def make_early(self, op: ir.Operation, loops: list[Index], values: Sequence[ir.Value]) -> None:
        """Make bf16 values of a body at loop indices now; they wait as pairs until the rest of the body is evaluated."""
        if self.width % 2 or not values:
            return
        for value, lanes in zip(values, self.body(op, loops, values), strict=True):
            full = [lanes[e if len(lanes) > 1 else 0] for e in range(self.width)]
            self._early[value, tuple(loops)] = pinned(self.scalars.words(full, "bf16"))

    def tensor(self, tensor: ir.Value, coordinates: Coordinates) -> Lanes:
        """The elements at some coordinates: one for each point of the vector, or a single one if all are the same.

        Raises:
            UnsupportedError: something on the way to them has no pointwise form.
        """
        return evaluate(self.tensor_steps(tensor, coordinates))

    def tensor_steps(self, tensor: ir.Value, coordinates: Coordinates) -> Steps[Lanes]:
        """The same for computations that go on below: a stage may hold long chains of operations."""
        key = (tensor, coordinates)
        for memo in reversed(self._memo):
            if key in memo:
                return memo[key]
        if tensor in self.graph.loads:
            load = self.graph.loads[tensor]
            self._see(load, coordinates)
            values = self.memory.load(self.windows.get(tensor, load.buffer), self._place(load, tensor, coordinates))
        else:
            op = tensor.owner
            if isinstance(op, ir.Block):
                raise UnsupportedError("kitsune.task", "tensors come from loads or from the body", str(tensor.type))
            values = yield self._made(op.operation, tensor, coordinates)
        self._memo[-1][key] = values
        return values

    def prepared(self, store: Store, coordinates: Coordinates) -> Callable[[], None]:
        """Make elements of a result; what is returned writes them."""
        values = self.tensor(store.tensor, coordinates)
        return lambda: self.store(store, coordinates, values)

    def store(self, store: Store, coordinates: Coordinates, values: Lanes) -> None:
        """Write elements of a result."""
        window = self.windows.get(store, store.buffer)
        assert not isinstance(window, CrossedWindow)  # only loads are
        self.memory.store(window, self._place(store, store, coordinates), values)

    def _place(self, window: Load | Store, key: object, coordinates: Coordinates) -> Coordinates:
        """Coordinates in the buffer, or in its part in shared memory, of a tensor's coordinates."""
        full = with_units(coordinates, shape_of(window.tensor), window.sizes)
        if key in self.windows:
            return tuple(full)
        return tuple(add(index, self.outer(offset)) for index, offset in zip(full, window.offsets, strict=True))

    def places(self, window: Load | Store, coordinates: Coordinates) -> Coordinates:
        """Coordinates in the buffer of those of a window."""
        return tuple(add(index, self.outer(start)) for index, start in zip(coordinates, window.offsets, strict=True))

    def _see(self, load: Load, coordinates: Coordinates) -> None:
        """Note a load whose vectors run along another dimension than its rows."""
        full = with_units(coordinates, shape_of(load.tensor), load.sizes)
        moving = [dim for dim, index in enumerate(full) if isinstance(index, tuple) or index.lane]
        if len(moving) == 1 and moving[0] != len(full) - 1 and load.sizes[-1] > 1:
            self.crossed.setdefault(load.tensor, moving[0])

    def outer(self, offset: Offset) -> Linear:
        """An index computed in the task from its coordinates."""
        if isinstance(offset, int):
            return Linear(const=offset)
        for memo in self._memo:
            if offset in memo:
                return memo[offset]
        found = self._outer(offset)
        self._memo[-1][offset] = found
        return found

    def _outer(self, value: ir.Value) -> Linear:
        views = list(self.graph.task.coordinates)
        if value in views:
            return self._coordinates[views.index(value)]
        op = value.owner
        if not isinstance(op, ir.Block):
            if op.name == "arith.constant":
                return Linear(const=ir.IntegerAttr(op.attributes["value"]).value)
            if op.name in ("arith.addi", "arith.muli", "arith.subi"):
                found = self.scalars.emit(op.operation, [self.outer(operand) for operand in op.operands])
                if isinstance(found, Linear):
                    return found
            if op.name in ("arith.minui", "arith.minsi"):
                parts = [self.outer(operand) for operand in op.operands]
                last = min((part.const for part in parts if not part.terms), default=None)
                bound = last + 1 if last is not None else None
                return Linear.of(Atom(self.tile.index(value), math.gcd(*(part.multiple for part in parts)), bound))
        return Linear.of(Atom(self.tile.index(value)))

    def spread(self, number: Index, extents: tuple[int, ...]) -> Coordinates:
        """Row-major coordinates of point `number` of a shape; the same ones whenever it is asked again in this scope."""
        key = ("spread", number, extents)
        for memo in reversed(self._memo):
            if key in memo:
                return memo[key]
        where: list[Index] = []
        rest = number
        for extent in reversed(extents[1:]):
            rest, index = divmod_index(rest, extent, self.width)
            where.insert(0, index)
        found = (rest, *where) if extents else ()
        self._memo[-1][key] = found
        return found

    # --- operations

    def _made(self, op: ir.Operation, tensor: ir.Value, coordinates: Coordinates) -> Steps[Lanes]:
        if op.name == "linalg.generic":
            if op not in self.graph.reductions:
                return (yield self._map(op, tensor, coordinates))
            if op in self.shared:
                limit = "the result of a reduction over threads is used for the rows that it was made for"
                raise UnsupportedError(op.name, limit, None, str(op.location))
            return private_reduction(self, op, tensor, coordinates)
        if op.name in MOVES:
            return (yield MOVES[op.name](self, op, coordinates))
        maker = getattr(self, "_" + op.name.replace(".", "_"), None)
        if maker is None:
            raise UnsupportedError(op.name, "simt does maps, reductions and movement of tensors", None, str(op.location))
        return maker(op, coordinates)

    def loops_of(self, op: ir.Operation, tensor: ir.Value, coordinates: Coordinates) -> list[Index]:
        """Loop indices of a linalg.generic that make a result at some coordinates; reduced ones are zero, to be filled in.

        Raises:
            UnsupportedError: a result is indexed by more than plain loops, or not by every parallel one.
        """
        maps, kinds = affine_maps(op), iterator_kinds(op)
        number = list(op.results).index(tensor)
        loops: list[Index] = [Linear()] * len(kinds)
        named: set[int] = set()
        for expression, index in zip(maps[len(maps) - len(op.results) + number].results, coordinates, strict=True):
            if not isinstance(expression, ir.AffineDimExpr):
                raise UnsupportedError(op.name, "results are indexed by plain loops", str(expression), str(op.location))
            loops[expression.position] = index
            named.add(expression.position)
        if any(loop not in named and kind == "parallel" for loop, kind in enumerate(kinds)):
            raise UnsupportedError(op.name, "every parallel loop runs along the result", None, str(op.location))
        return loops

    def _map(self, op: ir.Operation, tensor: ir.Value, coordinates: Coordinates) -> Steps[Lanes]:
        loops = self.loops_of(op, tensor, coordinates)
        number = list(op.results).index(tensor)
        yielded = list(op.regions[0].blocks[0].operations)[-1].operands[number]
        return (yield self._body(op, loops, [yielded]))[0]

    def body(self, op: ir.Operation, loops: list[Index], wanted: Sequence[ir.Value]) -> list[Lanes]:
        """Values of the body of a linalg.generic at loop indices; outs are read as inputs are."""
        return evaluate(self._body(op, loops, wanted))

    def _body(self, op: ir.Operation, loops: list[Index], wanted: Sequence[ir.Value]) -> Steps[list[Lanes]]:
        block = op.regions[0].blocks[0]
        maps = affine_maps(op)
        known = self._kept_values(op, loops, needed(block, wanted, (), self._stands_for))
        made = {value: self._early.get((value, tuple(loops))) for value, _ in self._early}
        known |= {value: unpack_values(words, "bf16") for value, words in made.items() if words is not None}
        used = needed(block, wanted, known, self._stands_for)
        for argument, operand, map_ in zip(block.arguments, op.operands, maps, strict=True):
            if argument not in used or argument in known:
                continue
            if isinstance(operand.type, ir.RankedTensorType):
                where = tuple(affine(expression, loops, self.width) for expression in map_.results)
                known[argument] = yield self.tensor_steps(operand, where)
            else:
                known[argument] = self.scalar(operand, known, loops)
        for inner in block.operations:
            if any(result in used and result not in known for result in inner.operation.results):
                known[inner.operation.results[0]] = yield self._inner(inner.operation, known, loops)
        return [materialize(self.scalar(value, known, loops), value.type, self.width) for value in wanted]

    def _kept_values(self, op: ir.Operation, loops: list[Index], used: Container[ir.Value]) -> dict[ir.Value, Lanes | Index]:
        """What is kept of a body's values, at loop indices."""
        if self.kept is None:
            return {}
        mine = [value for value in self.kept.windows if value in used]
        if mine:
            self.meet()
        return {value: self.memory.load(self.kept.windows[value], self.kept.index(op, loops)) for value in mine}

    @property
    def meets(self) -> bool:
        """Whether a barrier is to come before what is kept is read."""
        return self._meet is not None

    def meet(self) -> None:
        """That barrier, if it has not come yet."""
        if self._meet is not None:
            self._meet()
            self._meet = None

    def _folded(self, fold: Fold, known: dict, loops: Sequence[Index]) -> Lanes:
        """An fma with coefficients that are kept."""
        assert self.kept is not None and self.kept.coefficients is not None
        base = materialize(self.scalar(fold.base, known, loops), fold.base.type, self.width)
        self.meet()
        factor, addend = self.kept.coefficients(fold, self.kept.index(fold.op, loops))
        return [fma(base[e if len(base) > 1 else 0], factor[e], addend[e]) for e in range(self.width)]

    def scalar(self, value: ir.Value, known: dict, loops: Sequence[Index]) -> Lanes | Index:
        """A scalar used in a body: made there, or outside the operation.

        Raises:
            UnsupportedError: it comes from elsewhere.
        """
        if value in known:
            return known[value]
        if value in list(self.graph.task.coordinates):
            return self.outer(value)
        if isinstance(value.owner, ir.Block):
            raise UnsupportedError("linalg.generic", "scalars come from the task or the body", str(value.type))
        found = evaluate(self._inner(value.owner.operation, known, loops))
        known[value] = found
        return found

    def _inner(self, op: ir.Operation, known: dict, loops: Sequence[Index]) -> Steps[Lanes | Index]:
        if op in self._folds:
            return self._folded(self._folds[op], known, loops)
        if op in self.graph.left_out:
            return self.scalar(self.graph.left_out[op], known, loops)
        if op.name == "linalg.index":
            return loops[ir.IntegerAttr(op.attributes["dim"]).value]
        if op.name == "tensor.extract":
            where = []
            for operand in list(op.operands)[1:]:
                index = self.scalar(operand, known, loops)
                where.append(opaque(index) if isinstance(index, list) else index)
            return (yield self.tensor_steps(op.operands[0], tuple(where)))
        return self.scalars.emit(op, [self.scalar(operand, known, loops) for operand in op.operands])

    def divided(self, reduction: Reduction, coordinates: Coordinates, values: Lanes) -> Lanes:
        """A reduction's results at some coordinates, divided by what was left out of its elements, if anything was."""
        if reduction.divisor is None:
            return values
        divisors = self.tensor(reduction.divisor, coordinates)
        return [value * reciprocal(divisors[e if len(divisors) > 1 else 0]) for e, value in enumerate(values)]

    def initial(self, op: ir.Operation, tensor: ir.Value, coordinates: Coordinates) -> Lanes:
        """What a reduction's result starts from, at some coordinates, one value a point."""
        number = list(op.results).index(tensor)
        values = self.tensor(list(op.operands)[len(op.operands) - len(op.results) + number], coordinates)
        return [values[e if len(values) > 1 else 0] for e in range(self.width)]

    def _linalg_fill(self, op: ir.Operation, coordinates: Coordinates) -> Lanes:
        return self.splat(op.operands[0])

    _tensor_splat = _linalg_fill

    def splat(self, value: ir.Value) -> Lanes:
        """A scalar for all points."""
        return materialize(self.scalar(value, {}, ()), value.type, self.width)

    def _tensor_from_elements(self, op: ir.Operation, coordinates: Coordinates) -> Lanes:
        if len(op.operands) > 1:
            raise UnsupportedError(op.name, "one element", len(op.operands), str(op.location))
        return self.splat(op.operands[0])

    def _tensor_empty(self, op: ir.Operation, coordinates: Coordinates) -> Lanes:
        return [constant(0, carrier(ir.RankedTensorType(op.results[0].type).element_type))]

    def _arith_constant(self, op: ir.Operation, coordinates: Coordinates) -> Lanes:
        attribute = op.attributes["value"]
        if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
            raise UnsupportedError(op.name, "tensors of one repeated constant", None, str(op.location))
        element = attribute.get_splat_value()
        number = element.value  # type: ignore[attr-defined]  # a float, integer or bool attribute
        return [constant(number, carrier(ir.RankedTensorType(op.results[0].type).element_type))]
