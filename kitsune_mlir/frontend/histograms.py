"""Histograms: elements are counted in many copies of the bins, so that neighbours do not wait for each other, then added up.

Few bins are counted by `kitsune::counts`, a reduction that compares with the number of its result; of many, elements are added
to copies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_mlir import ir
from torch_mlir.dialects import arith, linalg, tensor

from kitsune_mlir.dialects.attribute_table import COMBINE, PARTIAL
from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.own_operators import define, implement, lowering

__all__ = ["HISTOGRAMS"]

aten = torch.ops.aten
COUNTERS = 1 << 16
"""Of all copies together."""
FEW_BINS = 128
"""Counted by a reduction."""
PARTS, LEAST_PART = 512, 8192
"""Of a long row, and the elements that each has at least."""

define("counts(Tensor places, int bins) -> Tensor", lambda places, bins: places.new_empty((bins,)))
implement("counts", lambda places, bins: torch.bincount(places.reshape(-1) + 1, minlength=bins + 1)[1:].to(torch.int32))


@lowering("counts")
def _lowered(op: ir.Operation, tensors: list[ir.Value]) -> ir.Value:
    """parts[p, b] is the sum over l of places[p, l] == b, and the result [b] the sum of all parts."""
    (places,) = tensors
    bins = ir.IntegerAttr(op.operands[1].owner.attributes["value"]).value
    parts = ir.RankedTensorType(places.type).shape[0]
    zero = arith.constant(_word(), 0)
    p, b, along = (ir.AffineDimExpr.get(number) for number in range(3))

    def equal(place: ir.Value) -> ir.Value:
        number = arith.index_cast(_word(), linalg.IndexOp(1).result)
        return arith.extui(_word(), arith.cmpi(arith.CmpIPredicate.eq, place, number))

    start = linalg.fill(zero, outs=[tensor.empty([parts, bins], _word())])
    maps = [ir.AffineMap.get(3, 0, [p, along]), ir.AffineMap.get(3, 0, [p, b])]
    counted = _sum(places, start, maps, ("parallel", "parallel", "reduction"), equal)
    counted.attributes[PARTIAL] = ir.UnitAttr.get()
    start = linalg.fill(zero, outs=[tensor.empty([bins], _word())])
    maps = [ir.AffineMap.get(2, 0, [p, b]), ir.AffineMap.get(2, 0, [b])]
    combined = _sum(counted.results[0], start, maps, ("reduction", "parallel"), lambda count: count)
    combined.attributes[COMBINE] = ir.UnitAttr.get()
    return combined.results[0]


def _word() -> ir.Type:
    """Of a count."""
    return ir.IntegerType.get_signless(32)


def _sum(
    source: ir.Value, start: ir.Value, maps: list[ir.AffineMap], kinds: tuple[str, ...], term: Callable[[ir.Value], ir.Value]
) -> ir.Operation:
    """A `linalg.generic` that adds up what `term` makes of each element of a source."""
    attributes = {
        "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
        "iterator_types": ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
    }
    made = ir.Operation.create("linalg.generic", [start.type], [source, start], attributes, regions=1)
    block = made.regions[0].blocks.append(_word(), _word(), arg_locs=[ir.Location.current] * 2)
    with ir.InsertionPoint(block):
        ir.Operation.create("linalg.yield", [], [arith.addi(block.arguments[1], term(block.arguments[0]))])
    return made


def _counts(values: Tensor, bins: int, place: Callable[[Tensor], Tensor]) -> Tensor:
    """How often each number below `bins` is in place(values [n]), element by element; long ones in parts."""
    n = values.shape[0]
    parts = max(1, min(PARTS, n // LEAST_PART))
    each = n // parts // 8 * 8 if parts > 1 else n
    rest = n - parts * each
    total = torch.ops.kitsune.counts(place(values[: n - rest].reshape(parts, each)), bins)
    return total + torch.ops.kitsune.counts(place(values[n - rest :].reshape(1, rest)), bins) if rest else total


def _histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Of integers too, which PyTorch has on GPUs alone: there all is counted in integers."""
    exact = not x.dtype.is_floating_point
    if x.dtype in (torch.bool, torch.complex64, torch.complex128) or not x.numel() or bins < 1:
        return NotImplemented
    if exact:
        min, max = int(min), int(max)
    values = (x.to(torch.int64) if exact else widened(x)).reshape(-1)
    if min == max:
        least, most = values.amin(), values.amax()
        apart = (most == least).to(values.dtype)
        least, most = least - apart, most + apart
    else:
        least, most = values.new_full((), min), values.new_full((), max)
    span = most - least

    def place(values: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers of bins, and where there is one."""
        far = values - least
        number = torch.div(far * bins, span, rounding_mode="floor") if exact else (far / span * bins).floor()
        return number.clamp(0, bins - 1), (values >= least) & (values <= most)

    return _tally(values, bins, place).to(x.dtype)


def _tally(values: Tensor, bins: int, place: Callable[[Tensor], tuple[Tensor, Tensor]], weight: Tensor | None = None) -> Tensor:
    """How many values [n] each bin has, or the sum of their weights.

    Args:
        place: numbers of values' bins, and whether they are in one.
    """

    def number(values: Tensor) -> Tensor:
        bin, inside = place(values)
        return torch.where(inside, bin, -1).to(torch.int32)

    if bins <= FEW_BINS and weight is None:
        return _counts(values, bins, number)
    bin, inside = place(values)
    copies = COUNTERS // bins if bins < COUNTERS else 1
    copy = torch.arange(values.numel(), device=values.device) % copies
    each = torch.where(inside, bin, 0).to(torch.int64) + copy * bins
    one = inside.to(values.dtype) if weight is None else torch.where(inside, weight.reshape(-1), 0.0)
    counts = values.new_zeros(copies * bins).index_add(0, each, one)
    return counts.reshape(copies, bins).sum(0)


def _histogram_of_edges(x: Tensor, edges: Tensor, *, weight: Tensor | None = None, density: bool = False) -> Any:
    """Of bins between edges that rise: each has its first edge, and the last one both."""
    if x.dtype not in (torch.float32, torch.float64) or not x.numel() or edges.ndim != 1 or len(edges) < 2:
        return NotImplemented
    bins = len(edges) - 1

    def place(values: Tensor) -> tuple[Tensor, Tensor]:
        inside = (values >= edges[0]) & (values <= edges[-1])
        return (torch.searchsorted(edges, values, right=True) - 1).clamp(max=bins - 1), inside

    counts = _tally(x.reshape(-1), bins, place, weight).to(x.dtype)
    if density:
        counts = counts / (counts.sum() * (edges[1:] - edges[:-1]))
    return counts, edges.clone()


def _histogram(
    x: Tensor, bins: int = 100, *, range: Sequence[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> Any:
    """Of equal bins, whose edges PyTorch counts from the nearer end; of one number they are 1 wide in all."""
    if x.dtype not in (torch.float32, torch.float64) or not x.numel() or bins < 1:
        return NotImplemented
    least, most = (x.new_full((), end) for end in range) if range is not None else (x.amin(), x.amax())
    half = torch.where(least == most, 0.5, 0.0).to(x.dtype)
    least, most = least - half, most + half
    number = torch.arange(bins + 1, dtype=x.dtype, device=x.device)
    step = (most - least) / bins
    edges = torch.where(number < (bins + 1) // 2, least + step * number, most - step * (bins - number))
    return _histogram_of_edges(x, edges, weight=weight, density=density)


HISTOGRAMS: dict[Any, Callable[..., Any]] = {
    aten.histc.default: _histc,
    aten.histogram.bin_ct: _histogram,
    aten.histogram.bins_tensor: _histogram_of_edges,
}
"""Operator → decomposition."""
