"""How ATen operators are broken down before torch-mlir sees them.

torch-mlir's own table covers most of them. The ones replaced here come out badly from it: sums of bf16 kept in bf16,
variances in f64, softmax with an unused argmax, products with an extra multiplication by one. All formulas below
compute in f32 where the tensors are bf16 or f16, and round once at the end, as torch's own kernels do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_mlir.extras.fx_decomp_util import get_decomposition_table

from kitsune_mlir.frontend.attention import scaled_dot_product_attention
from kitsune_mlir.frontend.convolutions import convolution
from kitsune_mlir.frontend.dtypes import NARROW, widened, worst_of
from kitsune_mlir.frontend.embedding_bags import BAGS
from kitsune_mlir.frontend.fallbacks import FALLBACKS, with_scalars
from kitsune_mlir.frontend.foreach import FOREACH, copy_strided
from kitsune_mlir.frontend.fused_optimizers import FUSED_OPTIMIZERS
from kitsune_mlir.frontend.gradients import GRADIENTS
from kitsune_mlir.frontend.moments import centred_squares, moments_by_parts
from kitsune_mlir.frontend.orders import topk as sorted_topk
from kitsune_mlir.frontend.products import bmm, grouped, linear, matmul, mm
from kitsune_mlir.frontend.recurrent import RECURRENT
from kitsune_mlir.frontend.repeated_indices import GATHERS
from kitsune_mlir.frontend.scatters import SCATTERS

__all__ = ["decomposition_table"]

aten = torch.ops.aten
ROUNDS, ROUND_LENGTH = 8, 1024
"""Elements that a top-k takes one after the other, and of the rows that it takes them from."""


def _dims(x: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return list(range(x.ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [d % x.ndim for d in dims] if x.ndim else []


def _in_f32(op: Any, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
    """A decomposition that runs `op` itself on f32 copies of narrow tensors, so that it accumulates in f32; asked for bytes or
    truth values, in 64-bit integers, where torch-mlir's lowering ends the process, or adds bits.

    `otherwise` is the decomposition of `op` for other types, if it has one.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if (asked := kwargs.get("dtype")) in (torch.bool, torch.uint8, torch.int8):
            wide = args[0].to(asked).to(torch.int64)
            return op(wide, *args[1:], **{**kwargs, "dtype": torch.int64}).to(asked)
        narrow = next((a.dtype for a in args if isinstance(a, Tensor) and a.dtype in NARROW), None)
        if narrow is None:
            return NotImplemented if otherwise is None else otherwise(*args, **kwargs)
        out = op(*(widened(a) if isinstance(a, Tensor) else a for a in args), **kwargs)
        return out.to(kwargs.get("dtype") or narrow)

    return decomposed


def _softmax_parts(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """`x - max` and the sum of its exponentials, over `dim`."""
    shifted = x - torch.amax(x, dim, keepdim=True)
    return shifted, torch.exp(shifted).sum(dim, keepdim=True)


def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    if x.numel() == 0 or x.ndim == 0:
        return NotImplemented
    shifted, total = _softmax_parts(widened(x), dim)
    return (torch.exp(shifted) / total).to(torch.float32 if half_to_float else x.dtype)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    if x.numel() == 0 or x.ndim == 0:
        return NotImplemented
    shifted, total = _softmax_parts(widened(x), dim)
    return (shifted - torch.log(total)).to(torch.float32 if half_to_float else x.dtype)


def _moments(x: Tensor, dims: list[int], correction: float) -> tuple[Tensor, Tensor]:
    """Mean and variance over `dims`, wide, both keeping the dimensions."""
    mean, total = centred_squares(widened(x), dims)
    return mean, total / max(math.prod(x.shape[d] for d in dims) - correction, 0)


def _var_family(root: bool, with_mean: bool) -> Callable[..., Any]:
    def decomposed(
        x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        if x.dtype.is_complex or x.ndim == 0:
            return NotImplemented
        dims = _dims(x, dim)
        mean, var = _moments(x, dims, 1 if correction is None else correction)
        spread = torch.sqrt(var) if root else var
        if not keepdim:
            mean, spread = mean.squeeze(dims), spread.squeeze(dims)
        return (spread.to(x.dtype), mean.to(x.dtype)) if with_mean else spread.to(x.dtype)

    return decomposed


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        x = x * widened(weight)
    return x if bias is None else x + widened(bias)


FEW = 8
"""Elements of a layer norm's row up to which the first one is subtracted from all, as they may be equal: their sum is rounded,
and what the mean then differs from them would be divided by the root of `eps`."""


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide, dims = widened(x), list(range(x.ndim - len(shape), x.ndim))
    first = None
    if 1 < math.prod(shape) <= FEW:
        first = functools.reduce(lambda part, dim: part.narrow(dim, 0, 1), dims, wide)
        wide = wide - first
    mean, var = _moments(wide, dims, 0)
    scale = torch.rsqrt(var + eps)
    return _affine((wide - mean) * scale, weight, bias).to(x.dtype), mean if first is None else mean + first, scale


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = widened(x).reshape(n, group, c // group * hw)
    # Images are cut along their rows, as channels may lie innermost; of several groups they would lie apart then.
    apart = x.reshape(n, group, c // group, *x.shape[2:])
    parts = moments_by_parts(apart, [*range(3, apart.ndim), 2]) if group == 1 else None
    mean, total = parts or centred_squares(grouped, [2])
    mean, total = mean.reshape(n, group, 1), total.reshape(n, group, 1)
    scale = torch.rsqrt(total / (c // group * hw) + eps)
    per_channel = [c] + [1] * (x.ndim - 2)
    out = _affine(
        ((grouped - mean) * scale).reshape(x.shape),
        None if weight is None else weight.reshape(per_channel),
        None if bias is None else bias.reshape(per_channel),
    )
    return out.to(x.dtype), mean.squeeze(2).to(x.dtype), scale.squeeze(2).to(x.dtype)


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    return _fused_rms_norm(x, shape, weight, eps)[0]


def _fused_rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    wide = widened(x)
    dims = list(range(x.ndim - len(shape), x.ndim))
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    scale = torch.rsqrt((wide * wide).mean(dims, keepdim=True) + eps)
    return _affine(wide * scale, weight, None).to(x.dtype), scale


def _batch_norm_no_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    # One multiplication and one addition per element: the four vectors of a channel become two.
    scale = torch.rsqrt(widened(var) + eps)
    if weight is not None:
        scale = scale * widened(weight)
    shift = -widened(mean) * scale
    if bias is not None:
        shift = shift + widened(bias)
    per_channel = [-1] + [1] * (x.ndim - 2)
    out = widened(x) * scale.reshape(per_channel) + shift.reshape(per_channel)
    empty = x.new_empty((0,))
    return out.to(x.dtype), empty, empty


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    wide = widened(x)
    if approximate == "tanh":
        inner = 0.7978845608028654 * (wide + 0.044715 * (wide * wide * wide))
        return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)
    return (0.5 * wide * (1 + torch.erf(wide * 0.7071067811865476))).to(x.dtype)


def _mish(x: Tensor) -> Tensor:
    """`x·tanh(log(1 + eˣ))` with one exponential: where n is eˣ(eˣ + 2), the tangent is n / (n + 2), and 1 from x = 20 on."""
    if x.dtype == torch.float64:
        return x * torch.tanh(aten.softplus(x))
    wide = widened(x)
    power = torch.exp(torch.clamp(wide, max=20.0))
    grown = power * (power + 2)
    return (wide * (grown / (grown + 2))).to(x.dtype)


def _scaled(x: Tensor, factor: Any) -> Tensor:
    """`x·factor` in x's type: a product of integers takes an integer factor, as in torch's kernels."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        factor = int(factor)
    return x if factor == 1 else x * factor


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = _scaled(torch.mm(widened(a), widened(b)), alpha)
    return (product if beta == 0 else product + _scaled(widened(bias), beta)).to(bias.dtype)


def _baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    product = _scaled(torch.bmm(widened(a), widened(b)), alpha)
    return (product if beta == 0 else product + _scaled(widened(bias), beta)).to(bias.dtype)


def _pow_scalar(x: Tensor, exponent: Any) -> Tensor:
    """Products, roots and quotients for the exponents for which torch's own kernels take them."""
    wide = widened(x)
    if isinstance(exponent, bool | complex) or x.dtype == torch.bool:
        return NotImplemented
    if exponent in (1, 2, 3):
        if isinstance(exponent, float) and not x.dtype.is_floating_point:
            return NotImplemented
        out = {1: lambda: wide.clone(), 2: lambda: wide * wide, 3: lambda: wide * wide * wide}[int(exponent)]()
    elif exponent in (0.5, -0.5, -1, -2) and x.dtype.is_floating_point:
        root = {0.5: torch.sqrt, -0.5: torch.rsqrt, -1: torch.reciprocal, -2: lambda v: 1 / (v * v)}[exponent]
        out = root(wide)
    else:
        return NotImplemented
    return out.to(x.dtype)


def _pow_tensors(x: Tensor, exponent: Tensor) -> Tensor:
    """Powers of floats by whole numbers in the floats' own type, or f32: torch-mlir takes f64 for them."""
    if not x.dtype.is_floating_point or exponent.dtype.is_floating_point or exponent.dtype.is_complex or not x.ndim:
        return NotImplemented
    wide = widened(x)
    return aten.pow.Tensor_Tensor(wide, exponent.to(wide.dtype)).to(x.dtype)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """`k` rounds of taking the largest element that is left: reductions of short rows. Long ones, and for more, are sorted."""
    if x.ndim == 0 or not 0 < k:
        return NotImplemented
    if k > ROUNDS or x.shape[dim] > ROUND_LENGTH or x.dtype == torch.bool:
        return sorted_topk(x, k, dim, largest)
    dtype, x, dim = x.dtype, widened(x), dim % x.ndim
    n = x.shape[dim]
    shape = [n if d == dim else 1 for d in range(x.ndim)]
    lanes = torch.arange(n, device=x.device).reshape(shape)
    worst = worst_of(x.dtype, largest)
    best = torch.amax if largest else torch.amin
    left: Tensor | None = None  # which elements have not been taken; None: all
    values, indices = [], []
    for _ in range(k):
        value = best(x if left is None else torch.where(left, x, worst), dim, keepdim=True)
        # NaN counts as the largest number, as in torch, and equals nothing, itself included.
        hit = (x == value) | (x != x) if x.dtype.is_floating_point else x == value
        index = torch.amin(torch.where(hit if left is None else hit & left, lanes, n - 1), dim, keepdim=True)
        left = lanes != index if left is None else left & (lanes != index)
        values.append(value)
        indices.append(index)
    return torch.cat(values, dim).to(dtype), torch.cat(indices, dim)


def _constant_pad(x: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    """Crops first where an amount is negative: torch-mlir would insert the tensor into one that it does not fit in."""
    if all(amount >= 0 for amount in pad):
        return NotImplemented
    for number, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        dim = x.ndim - 1 - number
        if before < 0 or after < 0:
            x = aten.slice(x, dim, max(-before, 0), x.shape[dim] - max(-after, 0))
    wide = [max(amount, 0) for amount in pad]
    return aten.constant_pad_nd(x, wide, value) if any(wide) else x.clone()


_ACCUMULATING = (
    aten.elu.default,  # of what is near 0 the exponential less 1 has no digits in 16 bits
    aten.selu.default,
    aten.celu.default,
    aten.sum.default,
    aten.sum.dim_IntList,
    aten.mean.default,
    aten.mean.dim,
    aten.amax.default,
    aten.amin.default,
    aten.max.default,
    aten.min.default,
    aten.prod.default,
    aten.prod.dim_int,
    aten.cumsum.default,
    aten.cumprod.default,
)

_OWN: dict[Any, Callable[..., Any]] = {
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _log_softmax,
    aten.var.correction: _var_family(root=False, with_mean=False),
    aten.std.correction: _var_family(root=True, with_mean=False),
    aten.var_mean.correction: _var_family(root=False, with_mean=True),
    aten.std_mean.correction: _var_family(root=True, with_mean=True),
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.rms_norm.default: _rms_norm,
    aten._fused_rms_norm.default: _fused_rms_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_no_training,
    aten.gelu.default: _gelu,
    aten.mish.default: _mish,
    aten.constant_pad_nd.default: _constant_pad,
    aten.convolution.default: convolution,
    aten._grouped_mm.default: grouped,
    aten.linear.default: linear,
    aten.matmul.default: matmul,
    aten.mm.default: mm,
    aten.bmm.default: bmm,
    aten.addmm.default: _addmm,
    aten.baddbmm.default: _baddbmm,
    aten.pow.Tensor_Scalar: _pow_scalar,
    aten.pow.Tensor_Tensor: _pow_tensors,
    aten.topk.default: _topk,
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
}

# Kept whole: `prepare.fold_index_lists` evaluates them when importing, rather than in 18 operations at run time.
_KEPT = (aten.tril_indices.default, aten.triu_indices.default)


@functools.cache
def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions`: torch-mlir's, with the replacements above."""
    table = dict(get_decomposition_table())
    table.update({op: _in_f32(op, table.get(op)) for op in _ACCUMULATING})
    table.update(_OWN)
    table.update(FALLBACKS)
    table.update(RECURRENT)
    table.update(SCATTERS)
    table.update(GATHERS)
    table.update(BAGS)
    table.update(FOREACH)
    table[torch.ops.prims.copy_strided.default] = copy_strided
    table.update(FUSED_OPTIMIZERS)
    table.update(GRADIENTS)
    table.update(with_scalars(table))
    for op in _KEPT:
        table.pop(op, None)
    return table
