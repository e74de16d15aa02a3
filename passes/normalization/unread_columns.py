"""Products of which only some columns are read: the others are not computed.

The gradient of what a layer reads is one product for all that is joined there; where a part of it is an input that needs no
gradient, its columns are cut off.
"""

from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import tensor

from kitsune_mlir.dialects.access import shape_of, static_ints
from kitsune_mlir.dialects.products import is_projected_product
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.normalization.column_parts import Parts, leaves_of, weight_of

__all__ = ["leave_out_columns"]

UNIT = 8
"""Columns that are left begin at and are multiples of these: rows of 16-bit numbers then lie as well as before."""


def leave_out_columns(module: ir.Operation) -> None:
    """Rebuild such products, and the element-wise ops up to where the columns are cut out."""
    for op in [op for op in walk(module) if is_projected_product(op)]:
        if weight_of(op) is None:
            continue
        made: set[ir.Value] = set()
        leaves = leaves_of(op.results[0], made)
        if leaves is None:
            continue
        starts = [static_ints(leaf, "static_offsets")[-1] for leaf in leaves]
        ends = [start + static_ints(leaf, "static_sizes")[-1] for start, leaf in zip(starts, leaves, strict=True)]
        start, end = min(starts), max(ends)
        if end - start < shape_of(op.results[0])[-1] and start % UNIT == 0 and (end - start) % UNIT == 0:
            Columns(1, made, start=start, size=end - start).cut_leaves(leaves)


@dataclass
class Columns(Parts):
    """Columns [start, start + size) of a product."""

    start: int = 0
    size: int = 0

    def width(self, columns: int) -> int:
        return self.size

    def cut_leaves(self, leaves: list[ir.Operation]) -> None:
        """Replace each leaf by the columns that are left, or some of them; what they were cut out of is left without a use."""
        for leaf in leaves:
            made = self._part(leaf.operands[0], 0)
            offsets, sizes = static_ints(leaf, "static_offsets"), static_ints(leaf, "static_sizes")
            if made.type == leaf.results[0].type:
                leaf.results[0].replace_all_uses_with(made)
            else:
                offsets[-1] -= self.start
                with ir.InsertionPoint(leaf), leaf.location:
                    steps = [1] * len(sizes)
                    part = tensor.ExtractSliceOp(leaf.results[0].type, made, [], [], [], offsets, sizes, steps)
                leaf.results[0].replace_all_uses_with(part.result)
            leaf.erase()

    def _slice(self, value: ir.Value, dim: int, number: int) -> ir.Value:
        shape = shape_of(value)
        shape[dim] = self.size
        type_ = ir.RankedTensorType.get(shape, ir.ShapedType(value.type).element_type)
        offsets = [self.start if d == dim else 0 for d in range(len(shape))]
        return tensor.ExtractSliceOp(type_, value, [], [], [], offsets, shape, [1] * len(shape)).result
