"""Elements of a task's tensors at coordinates, through maps: what engines read that are not about maps themselves.

Loads, and element-wise `linalg.generic` ops whose operands are indexed by single loops. `simt.evaluate` knows far more; an
engine that takes what this reads before and after its own operation saves stages that only convert.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.operation import create
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, i64, minimum, wrap
from kitsune_mlir.codegen.gpu.emit.vectors import dtype_bytes, load_elements, store_elements
from kitsune_mlir.codegen.gpu.interface.context import TileContext
from kitsune_mlir.dialects.access import affine_maps, is_tensor, iterator_kinds, kept_dims, reassociation, shape_of, static_ints
from kitsune_mlir.dialects.iteration import is_trivial_reshape
from kitsune_mlir.dialects.products import body_of, constant_fill, defining_op, is_generic, yield_of
from kitsune_mlir.dialects.tile_records import Load, Store, TaskView

__all__ = ["beside_reduction", "Elements", "follows", "needed_for", "stores_only", "unreadable"]

VECTOR_BYTES = 16
"""Of a load or store; arguments and the arena are aligned to more."""


def beside_reduction(op: ir.Operation, used: Iterable[int], ops: list[ir.Operation]) -> str | None:
    """Why what stands beside reduction `op` in `ops` is more than maps before and after it; None where it is not.

    Args:
        used: numbers of the operands that are read as elements; what makes the start alone is nobody's.
    """
    place = ops.index(op)
    before, after = ops[:place], ops[place + 1 :]
    starts = needed_for(op.operands[len(op.operands) - 1], before)
    needed = {o for number in used for o in needed_for(op.operands[number], before)}
    rest = [o for o in before if o not in starts or o in needed]
    return unreadable([*rest, *after]) or follows(after, [op.results[0]])


def unreadable(ops: Sequence[ir.Operation]) -> str | None:
    """Why elements of what ops make cannot be read one by one; None if they can."""
    for op in ops:
        if op.name == "tensor.empty" or constant_fill(op) is not None or is_trivial_reshape(op) or _is_plain_slice(op):
            continue
        if op.name == "arith.constant" and (not is_tensor(op.results[0]) or _splat(op) is not None):
            continue
        if not is_generic(op):
            return f"'{op.name}' is no map"
        if any(kind != "parallel" for kind in iterator_kinds(op)) or len(op.results) != 1:
            return "it holds a reduction"
        if not affine_maps(op)[-1].is_permutation or not all(_plain(map_) for map_ in affine_maps(op)):
            return "operands are indexed by more than single loops"
        if any(inner.regions or not inner.name.startswith(("arith.", "math.", "linalg.index")) for inner in body_of(op)):
            return "a map reads elements by index"
    return None


def _is_plain_slice(op: ir.Operation) -> bool:
    """Whether an op cuts out every element from a place on, at places that are known."""
    return op.name == "tensor.extract_slice" and len(op.operands) == 1 and set(static_ints(op, "static_strides")) <= {1}


def _splat(op: ir.Operation) -> ir.Attribute | None:
    """The one number of a tensor that is a constant; None if it has several."""
    value = op.attributes["value"]
    return value.get_splat_value() if isinstance(value, ir.DenseElementsAttr) and value.is_splat else None


def _plain(map_: ir.AffineMap) -> bool:
    return all(isinstance(e, ir.AffineDimExpr) or (isinstance(e, ir.AffineConstantExpr) and e.value == 0) for e in map_.results)


def needed_for(value: ir.Value, ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """The ops among `ops` that make a tensor, in their order."""
    found: set[ir.Operation] = set()
    pending = [value]
    while pending:
        op = defining_op(pending.pop())
        if op is not None and op in ops and op not in found:
            found.add(op)
            pending += op.operands
    return [op for op in ops if op in found]


def follows(ops: Sequence[ir.Operation], made: Collection[ir.Value]) -> str | None:
    """Why ops after the one that makes `made` are not element-wise at its own coordinates; None if they are."""
    known = set(made)
    for op in ops:
        if not any(value in known for value in op.operands):
            continue
        if not is_generic(op):
            return f"'{op.name}' of what it makes"
        for value, map_ in zip([*op.operands, *op.results], [*affine_maps(op), affine_maps(op)[-1]], strict=True):
            if (value in known or value in list(op.results)) and map_ != ir.AffineMap.get_identity(map_.n_dims):
                return "a map turns what it makes"
        known.update(op.results)
    return None


def stores_only(task: TaskView, op: ir.Operation) -> bool:
    """Whether a task stores something, and nothing but what an operation and those after it make."""
    work = task.work()
    made = {result for one in work[work.index(op) :] for result in one.results}
    return bool(task.stores) and all(store.tensor in made for store in task.stores)


class Elements:
    """The elements of a tile's tensors, while its code is emitted.

    Args:
        tile: of which task.
        axis: dimension along which neighbours are asked for.
    """

    def __init__(self, tile: TileContext, axis: int):
        self.tile, self.axis = tile, axis
        self.loads = {load.tensor: load for load in tile.task.view.loads}

    def width(self, window: Load | Store, count: int) -> int:
        """Elements, a power of two that divides `count`, that neighbours along the axis have side by side and aligned."""
        strides, size = window.buffer.strides, dtype_bytes(str(window.buffer.element))
        dims = _kept(window)
        if strides[dims[self.axis]] != 1:
            return 1
        whole = window.sizes[dims[self.axis]]
        others = [s * size for d, s in enumerate(strides) if d != dims[self.axis] and window.buffer.shape[d] > 1]
        starts = [0 if o == 0 else size for d, o in enumerate(window.offsets) if d == dims[self.axis]]
        width = VECTOR_BYTES // size
        while width > 1 and (
            any(n % (width * size) for n in (*others, *starts, window.buffer.offset)) or whole % width or count % width
        ):
            width //= 2
        return max(1, width)

    def at(
        self, tensor: ir.Value, where: Sequence[Value], count: int, known: Mapping[ir.Value, list[Value]] | None = None
    ) -> list[Value]:
        """`count` neighbours along the axis from coordinates on; beyond the last element, elements that are there.

        Args:
            where: i32, a coordinate for each dimension.
            known: tensors whose elements at these places are there already.
        """
        return self._at(tensor, list(where), self.axis, count, dict(known or {}))

    def _at(self, tensor: ir.Value, where: list[Value], axis: int | None, count: int, known: dict) -> list[Value]:
        if tensor in known:
            return known[tensor]
        if tensor in self.loads:
            return self._load(self.loads[tensor], where, axis, count)
        op = defining_op(tensor)
        assert op is not None
        filled = constant_fill(op)
        if filled is not None:
            return [self._constant(filled)] * count
        if op.name == "arith.constant":
            value = _splat(op)
            assert value is not None
            element = ir.RankedTensorType(tensor.type).element_type
            return [create("arith.constant", [], [element], {"value": value})[0]] * count
        if _is_plain_slice(op):
            return self._sliced(op, where, axis, count)
        if op.name == "tensor.empty":
            element = ir.RankedTensorType(tensor.type).element_type
            return [constant(0, element)] * count
        if is_trivial_reshape(op):
            return self._reshaped(op, where, axis, count, known)
        return self._map(op, where, axis, count, known)

    def _sliced(self, op: ir.Operation, where: list[Value], axis: int | None, count: int) -> list[Value]:
        """Through a slice, which may leave out dimensions of one element."""
        starts, shape = static_ints(op, "static_offsets"), shape_of(op.results[0])
        kept = kept_dims(static_ints(op, "static_sizes"), shape)

        def inner(place: list[Value]) -> list[Value]:
            zero = where[0] * 0
            return [(place[kept.index(dim)] if dim in kept else zero) + start for dim, start in enumerate(starts)]

        if axis is None or starts[kept[axis]] == 0:
            return self._at(op.operands[0], inner(where), None if axis is None else kept[axis], count, {})
        places = [minimum(where[axis] + e, shape[axis] - 1) for e in range(count)]  # not aligned as the source is
        return [self._at(op.operands[0], inner([*where[:axis], at, *where[axis + 1 :]]), None, 1, {})[0] for at in places]

    def _reshaped(self, op: ir.Operation, where: list[Value], axis: int | None, count: int, known: dict) -> list[Value]:
        """Through a reshape by extents of 1."""
        expands = op.name == "tensor.expand_shape"
        wide = shape_of(op.results[0] if expands else op.operands[0])
        inner, inner_axis = [], None
        for narrow, group in enumerate(reassociation(op)):
            moving = next((d for d in group if wide[d] != 1), group[0])
            for dim in [moving] if expands else group:
                outer = dim if expands else narrow
                inner.append(where[outer] if dim == moving else where[outer] * 0)
                inner_axis = len(inner) - 1 if dim == moving and outer == axis else inner_axis
        if inner_axis is None:
            return self._at(op.operands[0], inner, None, 1, {}) * count
        return self._at(op.operands[0], inner, inner_axis, count, known)

    def _map(self, op: ir.Operation, where: list[Value], axis: int | None, count: int, known: dict) -> list[Value]:
        block, maps = op.regions[0].blocks[0], affine_maps(op)
        loops: list[Value] = [where[0]] * maps[-1].n_dims
        for expression, index in zip(maps[-1].results, where, strict=True):
            loops[ir.AffineDimExpr(expression).position] = index
        moving = None if axis is None else ir.AffineDimExpr(maps[-1].results[axis]).position
        used = {value for inner in [*body_of(op), yield_of(op)] for value in inner.operands}
        values: dict[ir.Value, list[Value]] = {}
        for argument, operand, map_ in zip(block.arguments, op.operands, maps, strict=True):
            if argument not in used:
                continue
            if not is_tensor(operand):
                values[argument] = [self._outer(operand)] * count
                continue
            inner_axis, inner = None, []
            for dim, expression in enumerate(map_.results):
                loop = expression.position if isinstance(expression, ir.AffineDimExpr) else None
                inner.append(loops[loop] if loop is not None else loops[0] * 0)
                inner_axis = dim if loop is not None and loop == moving else inner_axis
            if inner_axis is None:
                values[argument] = self._at(operand, inner, None, 1, {}) * count
            else:
                values[argument] = self._at(operand, inner, inner_axis, count, known)
        for inner_op in body_of(op):
            result = inner_op.results[0]
            if inner_op.name == "linalg.index":
                dim = ir.IntegerAttr(inner_op.attributes["dim"]).value
                base = loops[dim]
                places = [base + e if dim == moving else base for e in range(count)]
                values[result] = [create("arith.index_castui", [place], ["index"])[0] for place in places]
                continue
            lanes = [values[v] if v in values else [self._outer(v)] * count for v in inner_op.operands]
            attributes = {name: inner_op.attributes[name] for name in inner_op.attributes}
            values[result] = [
                create(inner_op.name, [lane[e] for lane in lanes], [result.type], attributes)[0] for e in range(count)
            ]
        out = yield_of(op).operands[0]
        return values[out] if out in values else [self._outer(out)] * count

    def _outer(self, value: ir.Value) -> Value:
        """A scalar from outside a map's body: a constant, or an index of the tile."""
        op = defining_op(value)
        if op is not None and op.name == "arith.constant":
            return self._constant(op)
        return create("arith.index_castui", [self.tile.index(value)], ["index"])[0]

    @staticmethod
    def _constant(op: ir.Operation) -> Value:
        return wrap(create("arith.constant", [], [op.results[0].type], {"value": op.attributes["value"]})[0])

    def _load(self, load: Load, where: list[Value], axis: int | None, count: int) -> list[Value]:
        dtype = str(load.buffer.element)
        size, dims = dtype_bytes(dtype), _kept(load)
        if axis is None or count == 1:
            return load_elements(self.place(load, where), dtype, 1)
        width = self.width(load, count) if axis == self.axis else 1
        extent, found = load.sizes[dims[axis]], list[Value]()
        for first in range(0, count, width):
            start = where[axis] + first
            start = minimum(start, extent - width)
            inside = [*where[:axis], start, *where[axis + 1 :]]
            found += load_elements(self.place(load, inside), dtype, width, align=width * size)
        return found

    def place(self, window: Load | Store, where: Sequence[Value]) -> Value:
        """Pointer to the element of a window at coordinates of its tensor."""
        address: Value = i64(0)
        dims, size = _kept(window), dtype_bytes(str(window.buffer.element))
        for dim, stride in enumerate(window.buffer.strides):
            start = window.offsets[dim]
            if start != 0:
                address = address + i64(self.tile.index(start)) * (stride * size)
            if dim in dims and window.buffer.shape[dim] > 1:
                address = address + i64(where[dims.index(dim)]) * (stride * size)
        return offset(self.tile.pointer(window.buffer), address)

    def store(self, window: Store, where: Sequence[Value], values: Sequence[Value]) -> None:
        """Store neighbours along the axis, side by side and aligned as `width` says."""
        dtype = str(window.buffer.element)
        store_elements(values, self.place(window, where), dtype, align=len(values) * dtype_bytes(dtype))


def _kept(window: Load | Store) -> list[int]:
    """The buffer's dimension of each dimension of the tensor."""
    return kept_dims(window.sizes, shape_of(window.tensor))
