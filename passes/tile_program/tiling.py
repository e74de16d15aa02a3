"""Cloning the body of a stage for one tile: every op again, on tile-sized tensors.

This is where "a stage's body is linalg and no scheduling pass rewrites it" pays off: the tile's code is the stage's code with
smaller types, offsets added where indices are asked for, and loads of slices where tensors come from outside.
"""

from collections.abc import Callable, Collection

from torch_mlir import ir
from torch_mlir.dialects import arith, tensor

from kitsune_mlir.dialects.access import dropped_dims, is_tensor, shape_of, static_ints
from kitsune_mlir.dialects.attribute_table import OPERAND_SUM
from kitsune_mlir.dialects.cloning import replace_uses_inside
from kitsune_mlir.dialects.edges import Grid, Slice
from kitsune_mlir.dialects.iteration import is_halo
from kitsune_mlir.dialects.products import defining_op
from kitsune_mlir.dialects.verify import captures, walk

DYNAMIC = ir.ShapedType.get_dynamic_size()


class Tiling:
    """Clones the ops of a stage at the insertion point for the tile at `offsets` (one index value a shared dimension).

    `load(value, slices)` makes the tensor that a tile reads of an outside value.
    """

    def __init__(self, grid: Grid, offsets: list[ir.Value | None], load: Callable[[ir.Value, list[Slice]], ir.Value]):
        self.grid = grid
        self.offsets = offsets
        self.load = load
        self.mapping: dict[ir.Value, ir.Value] = {}
        self.beside: dict[tuple, ir.Value] = {}  # what a product and a sum of its operand both read

    def run(self) -> None:
        """Clone every op, in order."""
        inside = {r for op in self.grid.space.ops for r in op.results}
        for n, op in enumerate(self.grid.space.ops):
            if op.name == "tensor.extract_slice" and op.operands[0] not in inside and self._load_slice(n, op):
                continue
            local = {v: self.mapping[v] for v in [*op.operands, *captures(op)] if v in inside}
            parts = self._load_operands(n, op, inside, local)
            self._slice_constants(n, op, local, parts)
            self._slice_halos(n, op, local, parts)
            copy = op.clone().operation
            replace_uses_inside(copy, local)
            for k, part in parts.items():
                copy.operands[k] = part
            self._shrink(n, op, copy)
            self._shift_indices(n, copy, {local[v]: v for v in captures(op) if v in inside})
            self.mapping.update(zip(op.results, copy.results, strict=True))

    def _load_slice(self, n: int, op: ir.Operation) -> bool:
        """Read only what a slice of an outside tensor keeps, where it is a box; whether that was so."""
        source, sizes = op.operands[0], static_ints(op, "static_sizes")
        access = self.grid.space.accesses[n]
        strided = any(s != 1 for s in static_ints(op, "static_strides"))
        if access is None or strided or len(op.operands) > 1 or not _is_outside(source):
            return False
        starts, dropped = static_ints(op, "static_offsets"), dropped_dims(op)
        slices = [
            Slice(shared, a.scale, a.extent, a.start, size)
            if shared is not None
            else Slice(None, start=start, length=size, dropped=dim in dropped)
            for dim, ((shared, a), start, size) in enumerate(
                zip(self.grid.space.along(n, access.operands[0]), starts, sizes, strict=True)
            )
        ]
        self.mapping[op.results[0]] = self.load(source, slices)
        return True

    def result_slices(self, value: ir.Value) -> list[Slice]:
        """Where a tile's part of a yielded value belongs in the whole."""
        for n, op in enumerate(self.grid.space.ops):
            for r, result in enumerate(op.results):
                if result == value:
                    return [Slice(d) for d in self.grid.space.result_dims(n, r)]
        return [Slice(None)] * len(shape_of(value))

    def _load_operands(self, n: int, op: ir.Operation, inside: set[ir.Value], local: dict) -> dict[int, ir.Value]:
        """Outside tensors: a slice where an operand is walked tile by tile, the whole where a body reads it by index.

        Returns the operands (by number) that are loads; one tensor may be walked in several ways by one op.
        """
        parts: dict[int, ir.Value] = {}
        loaded: dict[tuple, ir.Value] = self.beside if OPERAND_SUM in op.attributes else {}
        access = self.grid.space.accesses[n]
        gathered = [v for v in captures(op) if is_tensor(v) and v not in inside]  # some of them may be operands as well
        for value in gathered:
            local[value] = self.load(value, [Slice(None)] * len(shape_of(value)))
        for k, value in enumerate(op.operands):
            if value in inside or not is_tensor(value):
                continue
            along = access.operands[k] if access is not None else ()
            slices = [Slice(d, a.scale, a.extent) for d, a in self.grid.space.along(n, along)]
            key = (value, *slices)
            if key not in loaded:
                loaded[key] = self.load(value, slices or [Slice(None)] * len(shape_of(value)))
            parts[k] = loaded[key]
        return parts

    def _slice_constants(self, n: int, op: ir.Operation, local: dict, parts: dict[int, ir.Value]) -> None:
        """A constant tensor has no loops: it is cloned whole and cut here for ops that walk it tile by tile."""
        access = self.grid.space.accesses[n]
        for k, value in enumerate(op.operands):
            maker = defining_op(value)
            if maker is None or maker.name not in ("arith.constant", "tensor.splat") or value not in local or access is None:
                continue
            slices = [Slice(d, a.scale, a.extent) for d, a in self.grid.space.along(n, access.operands[k])]
            if all(s.dim is None or self.offsets[s.dim] is None for s in slices):
                continue
            offsets, sizes = self.place(slices, shape_of(value))
            parts[k] = extract_slice(local[value], offsets, sizes)

    def _slice_halos(self, n: int, op: ir.Operation, local: dict, parts: dict[int, ir.Value]) -> None:
        """What is padded for a convolution is whole along the padded dimensions: the window of the tile is cut out here."""
        access = self.grid.space.accesses[n]
        for k, value in enumerate(op.operands):
            maker = defining_op(value)
            if maker is None or not is_halo(maker) or access is None:
                continue
            kept = self.grid.space.result_dims(self.grid.space.ops.index(maker), 0)
            slices = [Slice(d, a.scale, a.extent) for d, a in self.grid.space.along(n, access.operands[k])]
            slices = [Slice(None) if d is not None else s for s, d in zip(slices, kept, strict=True)]
            if any(s.dim is not None and self.offsets[s.dim] is not None for s in slices):
                parts[k] = extract_slice(local[value], *self.place(slices, shape_of(local[value])))

    def place(self, slices: list[Slice], shape: list[int]) -> tuple[list[ir.Value | int], list[int]]:
        """Offsets (values where they move, else 0) and sizes of a tile's part of a tensor of `shape`."""
        offsets: list[ir.Value | int] = []
        sizes: list[int] = []
        for part, extent in zip(slices, shape, strict=True):
            moving = self.offsets[part.dim] if part.dim is not None else None
            if part.dim is None or moving is None:
                offsets.append(part.start)
                sizes.append(extent if part.length is None else part.length)
                continue
            start = moving
            if part.scale != 1:
                start = arith.muli(moving, arith.constant(ir.IndexType.get(), part.scale))
            if part.start:
                start = arith.addi(start, arith.constant(ir.IndexType.get(), part.start))
            offsets.append(start)
            sizes.append(part.size(self.grid.tile[part.dim]))
        return offsets, sizes

    def _shrink(self, n: int, op: ir.Operation, copy: ir.Operation) -> None:
        """Give a clone the tile's result types, and the attributes that repeat them."""
        if self.grid.space.accesses[n] is None:
            return
        for r, result in enumerate(copy.results):
            shape = shape_of(op.results[r])
            for d, shared in enumerate(self.grid.space.result_dims(n, r)):
                if shared is not None and self.offsets[shared] is not None:
                    shape[d] = self.grid.tile[shared]
            result.set_type(ir.RankedTensorType.get(shape, ir.ShapedType(result.type).element_type))
        if op.name == "tensor.expand_shape":
            copy.attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(shape_of(copy.results[0]))
        if op.name == "tensor.extract_slice":
            sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
            along = self.grid.space.along(n, self.grid.space.accesses[n].operands[0])  # type: ignore[union-attr]
            for d, (shared, _) in enumerate(along):
                if shared is not None and self.offsets[shared] is not None:
                    sizes[d] = self.grid.tile[shared]
            copy.attributes["static_sizes"] = ir.DenseI64ArrayAttr.get(sizes)

    def _shift_indices(self, n: int, copy: ir.Operation, inside: dict[ir.Value, ir.Value]) -> None:
        """`linalg.index` asks for a position in the whole: add the tile's offset.

        Args:
            inside: by their tiles, the values of the stage that the body reads by index.
        """
        for inner in list(walk(copy)):
            if inner.name != "linalg.index":
                continue
            loop = ir.IntegerAttr(inner.attributes["dim"]).value
            shared = [i for i, d in enumerate(self.grid.space.dims) if d.loops.get(n) == loop]
            offset = self.offsets[shared[0]] if shared else None
            if offset is None:
                continue
            users = [(use.owner, use.operand_number) for use in inner.results[0].uses]
            users = [(user, number) for user, number in users if not self._is_local(user.operation, number, inside)]
            if not users:
                continue
            with ir.InsertionPoint.after(inner), inner.location:
                total = arith.addi(inner.results[0], offset)
            for user, number in users:
                user.operation.operands[number] = total

    def _is_local(self, user: ir.Operation, number: int, inside: dict[ir.Value, ir.Value]) -> bool:
        """Whether a use is an index into a tile along a dimension that is tiled: a position in the tile."""
        if user.name != "tensor.extract" or not number or user.operands[0] not in inside:
            return False
        return self.result_slices(inside[user.operands[0]])[number - 1].dim is not None


def _is_outside(value: ir.Value) -> bool:
    """Whether a tensor is an argument, a stage's result or a view of one: something with a buffer."""
    maker = defining_op(value)
    return maker is None or maker.name not in ("arith.constant", "tensor.splat")


def extract_slice(source: ir.Value, offsets: list[ir.Value | int], sizes: list[int], dropped: Collection[int] = ()) -> ir.Value:
    """tensor.extract_slice with unit strides, static sizes, and offsets that are values or 0; dimensions `dropped`, of extent
    1, are left out."""
    element = ir.ShapedType(source.type).element_type
    dynamic = [o for o in offsets if not isinstance(o, int)]
    static = [o if isinstance(o, int) else DYNAMIC for o in offsets]
    type_ = ir.RankedTensorType.get([size for dim, size in enumerate(sizes) if dim not in dropped], element)
    return tensor.ExtractSliceOp(type_, source, dynamic, [], [], static, sizes, [1] * len(sizes)).result
