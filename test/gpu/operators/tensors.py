"""What is left: arithmetic of all types, reductions, norms, shapes, in-place updates, structures."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from test.gpu.operators.case import F32, F64, I32, Case, flags, floats, numbers

__all__ = ["CASES"]

CASES: dict[str, Case] = {}


def each(*functions: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Functions of one tensor, all of which a model returns."""
    return lambda x: tuple(function(x) for function in functions)


CASES |= {
    "where": Case(torch.where, [flags(13, 27), floats(13, 27), floats(27)]),
    "where_scalar": Case(lambda m, x: torch.where(m, x, 0.0), [flags(13, 1), floats(13, 27)]),
    "logic": Case(lambda a, b: (a & b, a | ~b, a ^ b, a.any(-1), b.all(-1)), [flags(13, 27), flags(13, 27)]),
    "compare": Case(lambda x, y: (x > y, x <= y, x == y, x.isnan(), (x > 0).sum(-1)), [floats(13, 27), floats(13, 27)]),
    "integers": Case(
        lambda a, b: (a + b, a * b, a // b, a % b, a & b, a << 2, -a, a.abs(), torch.maximum(a, b)),
        [numbers(99, 13, 27, low=-99), numbers(9, 13, 27, low=1)],
    ),
    "integers_i32": Case(
        lambda a, b: (a + b, a // b, a.sum(-1), a.amax()),
        [numbers(99, 13, 27, dtype=I32, low=-99), numbers(9, 13, 27, dtype=I32, low=1)],
    ),
    "integers_8": Case(
        lambda a, b: (a + 1, a.int() * 3, b * 2, b >> 1),
        [numbers(100, 129, dtype=torch.int8, low=-100), numbers(255, 129, dtype=torch.uint8)],
    ),
    "integers_16": Case(lambda a: (a * 3, a.float()), [numbers(100, 129, dtype=torch.int16, low=-100)]),
    "true_divide": Case(lambda a: (a / 3, a.float() ** 2), [numbers(99, 129)], dtype=F32, plain=True),
    "conversions": Case(
        lambda x: (x.bfloat16(), x.half(), x.double(), (4 * x).int(), (4 * x).long(), x > 0, (x > 0).float()),
        [floats(13, 27, dtype=F32)],
        plain=True,
        dtype=F32,
    ),
    "conversions_bf16": Case(lambda x: (x.float(), x.half(), (4 * x).int(), x.double()), [floats(13, 27)], plain=True),
    "double": Case(
        lambda x, y: (torch.exp(x) + torch.sin(y), torch.softmax(x, -1), x.sum(), torch.log1p(y.abs())),
        [floats(13, 27, dtype=F64)] * 2,
        dtype=F64,
    ),
    "double_more": Case(
        lambda x: (torch.tanh(x), torch.erf(x), x.pow(3), torch.rsqrt(x.abs() + 1), F.gelu(x)),
        [floats(13, 27, dtype=F64)],
        dtype=F64,
    ),
    "double_norm": Case(lambda n, x: n(x), [floats(13, 27, dtype=F64)], lambda: [nn.LayerNorm(27)], dtype=F64),
    "functions": Case(
        each(
            torch.sin,
            torch.cos,
            torch.tan,
            torch.atan,
            torch.sinh,
            torch.cosh,
            torch.exp2,
            torch.expm1,
            torch.erf,
            torch.floor,
            torch.round,
            torch.sign,
        ),
        [floats(13, 27, dtype=F32)],
        dtype=F32,
    ),
    "functions_positive": Case(
        lambda x: each(
            torch.log,
            torch.log2,
            torch.log10,
            torch.sqrt,
            torch.rsqrt,
            torch.reciprocal,
            torch.log1p,
            torch.acosh,
        )(x.abs() + 0.5),
        [floats(13, 27, dtype=F32)],
        dtype=F32,
    ),
    "functions_two": Case(
        lambda x, y: (
            torch.atan2(x, y),
            torch.fmod(x, y),
            torch.remainder(x, y),
            torch.pow(x.abs(), y),
            torch.hypot(x, y),
            torch.copysign(x, y),
            torch.logaddexp(x, y),
            torch.lerp(x, y, 0.3),
        ),
        [floats(13, 27, dtype=F32), floats(13, 27, dtype=F32)],
        dtype=F32,
    ),
    "special": Case(
        lambda x: (x / 0.0, torch.log(x), torch.sqrt(x), torch.nan_to_num(x / 0.0), x.clamp(min=float("-inf"))),
        [floats(13, 27, dtype=F32)],
        dtype=F32,
        plain=True,
    ),
    "reductions": Case(
        lambda x: (
            x.sum(),
            x.mean(0),
            x.amax(1),
            x.amin((0, 2)),
            x.prod(-1),
            x.var(-1),
            x.std(0),
            x.logsumexp(-1),
            x.norm(dim=1),
        ),
        [floats(7, 13, 27, dtype=F32)],
        dtype=F32,
    ),
    "reductions_bf16": Case(lambda x: (x.sum((0, 2)), x.mean(), x.amax(), x.var(1)), [floats(7, 13, 27)]),
    "reductions_arg": Case(
        lambda x: (x.argmax(-1), x.argmin(0), x.argmax(), *x.max(1)), [floats(7, 13, 27, dtype=F32)], dtype=F32
    ),
    "reductions_long": Case(
        lambda x: (x.sum(-1), x.amax(-1), torch.softmax(x, -1)), [floats(3, 100_003, dtype=F32)], dtype=F32
    ),
    "reductions_tall": Case(lambda x: (x.sum(0), x.amax(0)), [floats(100_003, 3, dtype=F32)], dtype=F32),
    "reductions_i64": Case(
        lambda x: (x.sum(-1), x.amax(0), x.float().mean(), x.prod(-1)), [numbers(4, 13, 27, low=1)], dtype=F32
    ),
    "softmax_dims": Case(lambda x: (torch.softmax(x, 0), torch.softmax(x, 1), torch.log_softmax(x, 2)), [floats(7, 13, 27)]),
    "softmax_one": Case(lambda x: torch.softmax(x, -1), [floats(129, 1)]),
    "norms": Case(
        lambda a, b, c, x: (a(x), b(x), c(x)),
        [floats(7, 12, 27)],
        lambda: [nn.LayerNorm(27), nn.LayerNorm([12, 27]), nn.GroupNorm(3, 12)],
    ),
    "norms_plain": Case(lambda x: (F.normalize(x), F.layer_norm(x, (27,)), F.rms_norm(x, (27,))), [floats(129, 27)]),
    "cross_entropy": Case(lambda x, y: F.cross_entropy(x, y), [floats(129, 27, dtype=F32), numbers(27, 129)], dtype=F32),
    "losses": Case(
        lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.cosine_similarity(x, y)),
        [floats(129, 27, dtype=F32)] * 2,
        dtype=F32,
    ),
    "binary_loss": Case(
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), [floats(129, dtype=F32)] * 2, dtype=F32
    ),
    "empty_rows": Case(lambda x: torch.relu(x) + 1, [floats(0, 7)]),
    "empty_sum": Case(lambda x: (x.sum(0), x.sum(1)), [floats(0, 7)]),
    "empty_concat": Case(lambda x, y: torch.cat([x, y]), [floats(0, 7), floats(3, 7)]),
    "empty_index": Case(lambda x, i: x[i], [floats(13, 7), numbers(13, 0)]),
    "empty_linear": Case(lambda f, x: f(x), [floats(0, 7)], lambda: [nn.Linear(7, 3)]),
    "scalar": Case(lambda x: x * 2 + 1, [lambda device: torch.tensor(1.5, device=device)], dtype=F32),
    "one": Case(lambda x: x.exp(), [floats(1, dtype=F32)], dtype=F32),
    "constant_result": Case(
        lambda x: (x + 1, torch.arange(7, device=x.device), torch.ones(3, device=x.device)), [floats(7, dtype=F32)], dtype=F32
    ),
    "input_result": Case(lambda x, y: (x, y + 1, x.T), [floats(13, 27), floats(13)]),
    "same_result": Case(lambda x: (y := x + 1, y, y.reshape(-1)), [floats(13, 27)]),
}


def _in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[2:5] = 1.0
    y[:, 3].mul_(2.0)
    y.relu_()
    y[::2, 1:4] += 0.5
    return y


def _changed_input(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return x * 2


CASES |= {
    "in_place": Case(_in_place, [floats(13, 27)]),
    "in_place_input": Case(_changed_input, [floats(13, 27), floats(13, 27)]),
    "views": Case(lambda x: (x.view(27, 13), x[1:, ::2] + 1, x.unsqueeze(1).expand(13, 3, 27) * 2, x.T[3:5]), [floats(13, 27)]),
    "strided_input": Case(lambda x: x + 1, [lambda device: torch.randn(27, 13, device=device).bfloat16().T]),
    "permutes": Case(
        lambda x: (x.permute(2, 0, 1).contiguous(), x.transpose(0, 2) + 1, x.movedim(0, -1).flatten()), [floats(7, 13, 27)]
    ),
    "splits": Case(lambda x: (*x.split([3, 4, 6]), *x.unbind(1)[:2], *x.chunk(3, 1)), [floats(13, 27)]),
    "concats": Case(
        lambda x, y: (torch.cat([x, y]), torch.stack([x, x], 1), torch.hstack([x, x[:, :3]])), [floats(13, 27), floats(7, 27)]
    ),
    "pads": Case(
        lambda x: (
            F.pad(x, (1, 2, 3, 0)),
            F.pad(x, (2, 2), value=1.0),
            F.pad(x[None], (3, 3), "reflect"),
            F.pad(x[None], (3, 3), "replicate"),
            F.pad(x, (-1, -2)),
        ),
        [floats(13, 27)],
    ),
    "repeats": Case(
        lambda x: (x.repeat(2, 3), x.repeat_interleave(3, 0), x.tile(2), x.roll((1, -2), (0, 1)), x.flip(0, 1)),
        [floats(13, 27)],
    ),
    "triangles": Case(
        lambda x: (x.tril(), x.triu(2), torch.diagonal(x), x.diag_embed()[0], torch.eye(13, 27, device=x.device) * x),
        [floats(13, 27)],
    ),
    "meshes": Case(
        lambda x, y: (
            torch.stack(torch.meshgrid(x, y, indexing="ij")),
            torch.cartesian_prod(x, y),
            torch.cdist(x[:, None], y[:, None]),
        ),
        [floats(13, dtype=F32), floats(7, dtype=F32)],
        dtype=F32,
    ),
    "ranges": Case(
        lambda x: x + torch.arange(27, device=x.device) + torch.linspace(0, 1, 27, device=x.device),
        [floats(13, 27, dtype=F32)],
        dtype=F32,
    ),
    "buckets": Case(
        lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0], device=x.device)), [floats(129, dtype=F32)], dtype=F32
    ),
    "searched_right": Case(
        lambda b, x: torch.searchsorted(b.sort(-1)[0], x, right=True),
        [floats(3, 7, dtype=F32), floats(3, 13, dtype=F32)],
        dtype=F32,
    ),
    "lgamma": Case(torch.lgamma, [floats(13, dtype=F32)], dtype=F32),
    "median_all": Case(lambda x: x.median(), [floats(7, 9, dtype=F32)], dtype=F32),
    "bytes": Case(
        lambda x: (x * 3, x - 1, 7 - x, x // 4, x.float() / 255), [numbers(255, 3, 129, dtype=torch.uint8)], plain=True
    ),
    "searched": Case(
        torch.searchsorted, [lambda device: torch.arange(27.0, device=device), floats(129, dtype=F32, scale=10.0)], dtype=F32
    ),
    "dropout_eval": Case(lambda d, x: d(x), [floats(13, 27)], lambda: [nn.Dropout()]),
    "dict_result": Case(lambda x: {"a": x + 1, "b": [x * 2, x.sum()]}, [floats(13, 27)]),
    "none_result": Case(lambda x: (x + 1, None, 3), [floats(13, 27)]),
    "seven_dims": Case(lambda x: x.permute(6, 5, 4, 3, 2, 1, 0) + 1, [floats(2, 3, 2, 3, 2, 3, 2)]),
    "long_map": Case(lambda x, y: torch.tanh(x) * y + torch.exp(-x.abs()), [floats(1_000_003), floats(1_000_003)]),
    "deep": Case(
        lambda x: torch.stack([torch.sin(x * k) for k in range(1, 40)]).sum(0), [floats(129, 7, dtype=F32)], dtype=F32
    ),
    "many_inputs": Case(
        lambda *x: torch.cat([a * (k + 1) for k, a in enumerate(x)]).sum(0), [floats(3, 7, dtype=F32)] * 40, dtype=F32
    ),
    "many_results": Case(lambda x: tuple(x * k for k in range(40)), [floats(3, 7)]),
}
