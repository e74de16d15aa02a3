"""Decompositions of operators that torch-mlir lacks, or lowers wrongly, in some or all of their forms.

Found by running torch's own operator samples through the frontend. What is neither here nor lowered by torch-mlir is an
error that names the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.utils._pytree import tree_map, tree_map_only

from kitsune_mlir.frontend.antialiasing import ANTIALIASING
from kitsune_mlir.frontend.bits import BITS
from kitsune_mlir.frontend.distances import DISTANCES
from kitsune_mlir.frontend.divisors import DIVISORS
from kitsune_mlir.frontend.dtypes import widened
from kitsune_mlir.frontend.extrema import EXTREMA
from kitsune_mlir.frontend.fills import FILLS
from kitsune_mlir.frontend.floor_division import floor_division
from kitsune_mlir.frontend.folding import FOLDING
from kitsune_mlir.frontend.grids import GRIDS
from kitsune_mlir.frontend.histograms import HISTOGRAMS
from kitsune_mlir.frontend.losses import LOSSES
from kitsune_mlir.frontend.norms import NORMS
from kitsune_mlir.frontend.orders import ORDERS
from kitsune_mlir.frontend.pooling import POOLING
from kitsune_mlir.frontend.positions import POSITIONS
from kitsune_mlir.frontend.resizing import RESIZING
from kitsune_mlir.frontend.scans import SCANS
from kitsune_mlir.frontend.segments import SEGMENTS
from kitsune_mlir.frontend.small_matrices import SMALL_MATRICES
from kitsune_mlir.frontend.special import SPECIAL
from kitsune_mlir.frontend.statistics import STATISTICS
from kitsune_mlir.frontend.striding import STRIDING
from kitsune_mlir.frontend.whole_numbers import WHOLE_NUMBERS, of_bytes
from kitsune_mlir.frontend.wrapping import WRAPPING

__all__ = ["FALLBACKS", "with_scalars"]

aten = torch.ops.aten


def _scalars_as_rows(op: Any, otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Reductions and scans of a tensor of rank 0, done on rank 1; other ranks go to `otherwise`, or stay."""

    def decomposed(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.ndim:
            return NotImplemented if otherwise is None else otherwise(x, *args, **kwargs)
        out = op(x.reshape(1), *args, **kwargs)
        return tree_map(lambda t: t.reshape(()) if isinstance(t, Tensor) else t, out)

    return decomposed


def _all_dims(op: Any) -> Callable[..., Any]:
    def decomposed(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        dims = range(x.ndim) if not dim else [d % x.ndim for d in dim]
        for d in sorted(dims, reverse=True):
            x = op(x, d, keepdim)
        return x.to(torch.bool)

    return decomposed


def _extreme(op: Any) -> Callable[..., Any]:
    def decomposed(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Tensor:
        if x.ndim == 0:
            return x.clone()
        return NotImplemented if dim else op(x, list(range(x.ndim)), keepdim)

    return decomposed


def _addmv(x: Tensor, matrix: Tensor, vector: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = aten.mm(matrix, vector.unsqueeze(1)).squeeze(1)
    return _blend(x, product, beta, alpha)


def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _blend(x, aten.bmm(a, b).sum(0, dtype=a.dtype), beta, alpha)


def _blend(x: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """`beta·x + alpha·product`; a beta of zero drops x whatever it holds, and integers take integer factors."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        beta, alpha = int(beta), int(alpha)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product.expand(torch.broadcast_shapes(x.shape, product.shape)).clone()
    return (x if beta == 1 else x * beta) + product


def _reciprocal(x: Tensor) -> Tensor:
    # torch-mlir asserts that no integer is zero, where torch gives infinity.
    if x.dtype.is_floating_point or x.dtype.is_complex:
        return NotImplemented
    return torch.div(torch.ones((), dtype=torch.float32, device=x.device), x.to(torch.float32))


def _isfinite(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return NotImplemented
    return (x - x) == 0 if x.dtype.is_floating_point else torch.ones_like(x, dtype=torch.bool)


def _ignoring_nan(op: Any) -> Callable[..., Any]:
    def decomposed(x: Tensor, y: Tensor) -> Tensor:
        if not (x.dtype.is_floating_point or y.dtype.is_floating_point):
            return op(x, y)
        return torch.where(x != x, y, torch.where(y != y, x, op(x, y)))

    return decomposed


def _cdist(a: Tensor, b: Tensor, p: float, mode: int | None) -> Tensor:
    apart = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(a.dtype).sum(-1)
    if math.isinf(p):
        return apart.amax(-1)
    if p == 1:
        return apart.sum(-1)
    return (apart * apart).sum(-1).sqrt() if p == 2 else (apart**p).sum(-1) ** (1 / p)


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """torch-mlir compares indices with 64-bit numbers."""
    small = (torch.int32, torch.int16, torch.int8)
    if not any(i is not None and i.dtype in small for i in indices):
        return NotImplemented
    return aten.index.Tensor(x, [i.to(torch.int64) if i is not None and i.dtype in small else i for i in indices])


def _trilinear(a: Tensor, b: Tensor, c: Tensor, i: list[int], j: list[int], k: list[int], sums: list[int], unroll: int = 1):
    """Bilinear layers, sum of a[n, i]·b[o, i, j]·c[n, j]: a product of all a[n, i]·c[n, j] with the weights."""
    if (i, j, k, sums) != ([1, 3], [0], [1, 2], [2, 3]) or not b.dtype.is_floating_point:
        return NotImplemented
    pairs = a.unsqueeze(2) * c.unsqueeze(1)
    return aten.mm(pairs.flatten(1), b.flatten(1).t())


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """sqrt(x² + y²), scaled by powers of two where squares would leave the range of f32."""
    dtype = torch.result_type(x, y)
    x, y = (widened(v.to(dtype)).abs() for v in (x, y))
    large = torch.maximum(x, y)
    if dtype == torch.float64:
        ratio = torch.minimum(x, y) / large
        found = torch.where(large == 0, large, large * torch.sqrt(1 + ratio * ratio))
    elif dtype == torch.float16:
        found = torch.sqrt(x * x + y * y)
    else:
        down = torch.where(large > 2.0**60, 2.0**-70, torch.where(large < 2.0**-50, 2.0**100, 1.0))
        up = torch.where(large > 2.0**60, 2.0**70, torch.where(large < 2.0**-50, 2.0**-100, 1.0))
        x, y = x * down, y * down
        found = torch.sqrt(x * x + y * y) * up
    return torch.where(torch.isinf(x) | torch.isinf(y), float("inf"), found).to(dtype)


def _isclose(x: Tensor, y: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """What is infinite is close to its like only; torch-mlir's allowance is infinite too, and all are close."""
    close = x == y
    if equal_nan and x.dtype.is_floating_point:
        close = close | ((x != x) & (y != y))
    if rtol == 0 and atol == 0:
        return close
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        x, y = x.to(torch.get_default_dtype()) if x.dtype == torch.bool else x, y.to(torch.get_default_dtype())
    apart = (x - y).abs()
    return close | (torch.isfinite(apart) & (apart <= atol + (rtol * y).abs()))


def _fmod(x: Tensor, y: Any) -> Tensor:
    return torch.fmod(x, torch.full((), y, dtype=torch.result_type(x, y), device=x.device))


def _fmod_of_floats(x: Tensor, y: Tensor) -> Tensor:
    """By the remainder of the sizes, which is exact: torch-mlir's quotient is rounded, in 16 bits where numbers have them."""
    if not torch.result_type(x, y).is_floating_point:
        return NotImplemented
    rest = torch.remainder(x.abs(), y.abs())
    return torch.where(x < 0, -rest, rest)


def _copysign(x: Tensor, y: Any) -> Tensor:
    y = y if isinstance(y, Tensor) else torch.full((), y, dtype=x.dtype, device=x.device)
    if not (dtype := torch.result_type(x, y)).is_floating_point:
        dtype = torch.get_default_dtype()
    x, y = x.to(dtype), y.to(dtype)
    # A zero has a sign too: that of its reciprocal.
    negative = torch.where(y == 0, 1 / y, y) < 0
    return torch.where(negative, -x.abs(), x.abs())


def _copy_of(view: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: tree_map(lambda t: t.clone(), view(*args, **kwargs))


def _diagonal_scatter(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    last = torch.movedim(x, (dim1, dim2), (-2, -1))
    rows, columns = last.shape[-2:]
    row = torch.arange(rows, device=x.device).unsqueeze(1)
    column = torch.arange(columns, device=x.device).unsqueeze(0)
    length = source.shape[-1]
    # Every row (or column) of the matrix gets the whole diagonal; the mask keeps what lies on it.
    along = (row if offset >= 0 else column).clamp(max=max(length - 1, 0)).expand(rows, columns)
    spread = source[..., along]
    filled = torch.where(column - row == offset, spread, last)
    return torch.movedim(filled, (-2, -1), (dim1, dim2))


def _rrelu(x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Tensor:
    """Random only in training."""
    return NotImplemented if training else aten.leaky_relu.default(x, (lower + upper) / 2)


def _rrelu_with_noise(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    return NotImplemented if training else (_rrelu(x, lower, upper), noise.clone())


def _rrelu_backward(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, self_is_result: bool
) -> Tensor:
    """As PyTorch's, which multiplies by the noise only where the slopes differ; torch-mlir's gives other gradients."""
    if training and upper - lower > 1e-6:
        return grad * noise
    return torch.where(x > 0, grad, grad * ((lower + upper) / 2))


def _of_one_type(op: Any) -> Callable[..., Any]:
    """Bounds that are tensors, of other types than what they bound: all are of the type of the result."""

    def decomposed(x: Tensor, *bounds: Tensor | None, **named: Tensor | None) -> Any:
        given = [t for t in (x, *bounds, *named.values()) if t is not None]
        _, kind = elementwise_dtypes(*given, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
        if all(t.dtype == kind for t in given):
            return NotImplemented
        x, bounds, named = tree_map_only(Tensor, lambda t: t.to(kind), (x, bounds, named))
        return op(x, *bounds, **named)

    return decomposed


_EXTREMES = (aten.amax.default, aten.amin.default)
_EXTREMES_OF_ALL = (aten.max.default, aten.min.default)
_ROWS = (
    aten.cumsum.default,
    aten.cumprod.default,
    aten.max.dim,
    aten.min.dim,
    aten.all.dim,
    aten.any.dim,
    aten.prod.dim_int,
    aten.sort.default,
    aten.topk.default,
    aten._softmax.default,
    aten._log_softmax.default,
    aten.var.correction,
    aten.std.correction,
    aten.var_mean.correction,
    aten.std_mean.correction,
)

FALLBACKS: dict[Any, Callable[..., Any]] = {
    **SCANS,
    **ORDERS,
    **FILLS,
    **EXTREMA,
    **POOLING,
    **RESIZING,
    **ANTIALIASING,
    **GRIDS,
    **SEGMENTS,
    **STRIDING,
    **WRAPPING,
    **FOLDING,
    **HISTOGRAMS,
    **LOSSES,
    **NORMS,
    **SPECIAL,
    **BITS,
    **DIVISORS,
    **DISTANCES,
    **POSITIONS,
    **SMALL_MATRICES,
    **STATISTICS,
    aten.addmv.default: _addmv,
    aten.addbmm.default: _addbmm,
    aten.reciprocal.default: _reciprocal,
    aten.isfinite.default: _isfinite,
    aten.fmax.default: _ignoring_nan(torch.maximum),
    aten.fmin.default: _ignoring_nan(torch.minimum),
    aten.all.dims: _all_dims(aten.all.dim),
    aten.any.dims: _all_dims(aten.any.dim),
    aten.index.Tensor: _index,
    aten.hypot.default: _hypot,
    aten.fmod.Scalar: _fmod,
    aten.fmod.Tensor: _fmod_of_floats,
    aten.copysign.Tensor: _copysign,
    aten.copysign.Scalar: _copysign,
    **WHOLE_NUMBERS,
    **{op: floor_division(of_bytes(op)) for op in (aten.div.Tensor_mode, aten.div.Scalar_mode)},
    **{op: _of_one_type(op) for op in (aten.clamp.Tensor, aten.maximum.default, aten.minimum.default)},
    aten.clamp_min.Tensor: aten.maximum.default,
    aten.clamp_max.Tensor: aten.minimum.default,
    aten.rrelu.default: _rrelu,
    aten.rrelu_with_noise_functional.default: _rrelu_with_noise,
    aten.isclose.default: _isclose,
    aten.rrelu_with_noise_backward.default: _rrelu_backward,
    aten._trilinear.default: _trilinear,
    aten._cdist_forward.default: _cdist,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.view_copy.default: _copy_of(aten.view.default),
    aten.permute_copy.default: _copy_of(aten.permute.default),
    aten.narrow_copy.default: _copy_of(aten.narrow.default),
    aten.unbind_copy.int: _copy_of(aten.unbind.int),
    aten.as_strided_copy.default: _copy_of(aten.as_strided.default),
}
"""Operator → decomposition; one that returns NotImplemented leaves the operator to torch-mlir."""


def with_scalars(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Additions to `table` for tensors of rank 0, and for extremes over all dimensions.

    What `table` already says about an operator holds for the other ranks.
    """
    added: dict[Any, Callable[..., Any]] = {op: _scalars_as_rows(op, table.get(op)) for op in _ROWS}
    for op in _EXTREMES:
        added[op] = _first_of(_extreme(op), table.get(op))
    for op in _EXTREMES_OF_ALL:
        added[op] = _first_of(of_bytes(op), table.get(op))
    return added


def _first_of(first: Callable[..., Any], second: Callable[..., Any] | None) -> Callable[..., Any]:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        out = first(*args, **kwargs)
        return second(*args, **kwargs) if out is NotImplemented and second is not None else out

    return decomposed
