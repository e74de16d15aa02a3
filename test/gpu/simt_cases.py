"""What the simt engine is tested with: functions of tensors, as PyTorch runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64,
    "i32": torch.int32, "bool": torch.bool, "i1": torch.bool,
}  # fmt: skip
FLOATS = ("f32", "bf16")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of tensors and what to call it with.

    Attributes:
        run: the function.
        inputs: (dtype, shape) or (dtype, shape, bound): integers below the bound.
    """

    run: Callable[..., Any]
    inputs: tuple[tuple, ...]

    def make(self, device: str, empty: bool = False) -> list[torch.Tensor]:
        """Random inputs, the same each time; with `empty`, only their shapes count."""
        generator = torch.Generator(device).manual_seed(0)
        made = []
        for name, shape, *bound in self.inputs:
            dtype = DTYPES[name]
            if empty:
                made.append(torch.empty(shape, dtype=dtype, device=device))
            elif dtype == torch.bool:
                made.append(torch.rand(shape, generator=generator, device=device) < 0.5)
            elif not dtype.is_floating_point:
                high = bound[0] if bound else 100
                made.append(torch.randint(0, high, shape, generator=generator, device=device, dtype=dtype))
            elif dtype == torch.float64:
                made.append(torch.randn(shape, generator=generator, device=device, dtype=dtype))
            else:
                made.append(torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype))
        return made


def stitch(x, y, weight, bias, b):
    """LayerNorm, sigmoid gate, GELU, softmax, a weighted sum and tanh: one row, one pass."""
    h = F.layer_norm(x + y, x.shape[-1:], weight, bias) * torch.sigmoid(b)
    g = F.gelu(h)
    p = torch.softmax(g, -1)
    return (p * h).sum(-1, keepdim=True) + torch.tanh(g)


def special_functions(x):
    positive = x.abs() + 0.1
    return torch.erf(x) + torch.tanh(x) + torch.log1p(positive) + torch.pow(positive, 1.7) + torch.floor(x) + torch.atan(x)


def rms_norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def group_norm(x):
    return F.group_norm(x, 8)


def batch_statistics(x):
    return x.mean((0, 2)), x.var((0, 2), correction=0)


def _scaled_aggregates(x, y, z):
    """Joined tensors that are scaled and joined again, as a graph layer of several aggregations and scalers does."""
    joined = torch.cat([x, x * y, y.sigmoid(), (x * x + 1).sqrt()], -1)
    return torch.cat([y, torch.cat([joined, joined * z, joined / (z * z + 1)], -1)], -1)


def rows(dtype: str, count: int, length: int) -> tuple:
    return (dtype, (count, length))


def softmax(x):
    return torch.softmax(x, -1)


def norm_case(run, dtype: str, count: int, length: int, weights: int) -> Case:
    return Case(run, (rows(dtype, count, length), *[(dtype, (length,))] * weights))


def stitch_case(dtype: str, count: int, length: int) -> Case:
    return Case(stitch, (rows(dtype, count, length), rows(dtype, count, length), *[(dtype, (length,))] * 3))


CASES: dict[str, Case] = {
    "add_f32": Case(lambda x, y: torch.relu(x + y), (rows("f32", 1000, 128), rows("f32", 1000, 128))),
    "add_broadcast_odd": Case(lambda x, y: torch.relu(x + y), (rows("f32", 1000, 129), ("f32", (129,)))),
    "add_bf16_odd": Case(lambda x, y: x * y - x, (rows("bf16", 77, 129), rows("bf16", 77, 129))),
    "span": Case(lambda x: torch.relu(x * 0.5 + 1), (rows("bf16", 1003, 129),)),
    "span_types": Case(lambda x, y: (x.float() * y, x > y), (rows("bf16", 501, 77), rows("f32", 501, 77))),
    "one_element": Case(lambda x: torch.exp(x), (("f32", (1,)),)),
    "seven": Case(lambda x: x * 3 + 1, (("f32", (7,)),)),
    "outer_broadcast": Case(lambda x, y: x[:, None] * y[None, :] + 1, (("f32", (130,)), ("f32", (250,)))),
    "mixed_types": Case(
        lambda x, m, i: torch.where(m, x, 0.5) + i, (rows("bf16", 60, 64), rows("bool", 60, 64), rows("i32", 60, 64))
    ),
    "bool_out": Case(lambda x, y: (x > y, x.long() + 2), (rows("f32", 60, 65), rows("f32", 60, 65))),
    "i64_math": Case(lambda i, j: (i * j + 3, i // 7, i % 5), (("i64", (300, 12)), ("i64", (300, 12)))),
    "f64_math": Case(lambda x: torch.exp(x) + torch.sin(x), (rows("f64", 30, 100),)),
    "bf16_gelu": Case(lambda x: F.gelu(x) + torch.erf(x), (rows("bf16", 300, 1000),)),
    "f16_gelu": Case(lambda x: F.gelu(x), (rows("f16", 300, 100),)),
    "special_functions": Case(special_functions, (rows("f32", 128, 100),)),
    "arange": Case(lambda x: x * torch.arange(64, device=x.device), (rows("f32", 512, 64),)),
    "cat": Case(lambda x, y: torch.cat([x, y], -1).relu(), (rows("f32", 512, 100), rows("f32", 512, 60))),
    "cat_odd": Case(
        lambda x, y, z: torch.cat([x, y, z], -1) * 2, (rows("bf16", 70, 13), rows("bf16", 70, 7), rows("bf16", 70, 64))
    ),
    # Rows shorter than a vector: its elements are of several rows.
    "cat_panels": Case(_scaled_aggregates, (rows("bf16", 150, 64), rows("bf16", 150, 64), rows("bf16", 150, 1))),
    "cat_panels_f32": Case(_scaled_aggregates, (rows("f32", 37, 24), rows("f32", 37, 24), rows("f32", 37, 1))),
    "cat_panels_uneven": Case(
        lambda x, y, z: torch.cat([x, y.sigmoid(), z], -1) * 2,
        (rows("f32", 129, 32), rows("f32", 129, 96), rows("f32", 129, 16)),
    ),
    "cat_thin": Case(lambda x, y: torch.cat([x, y], -1) * 2, (rows("f32", 70, 1), rows("f32", 70, 1))),
    "cat_thin_odd": Case(
        lambda x, y, z: torch.cat([x, y, z], -1) * 2, (rows("bf16", 70, 1), rows("bf16", 70, 1), rows("bf16", 70, 3))
    ),
    "roll_thin": Case(lambda x: x.expand(3, 3, 2).roll(-3, 2) * 2, (rows("f32", 3, 2),)),
    "stack_thin": Case(lambda x, y: torch.stack([x, y], 1), (("f32", (2,)), ("f32", (2,)))),
    "pad_thin": Case(lambda x: F.pad(x, (1, 0)) + 1, (rows("f32", 70, 1),)),
    "pad": Case(lambda x: F.pad(x, (1, 2)) + 1, (rows("f32", 70, 13),)),
    "slice": Case(lambda x: x[:, 3:60] * 2 + x[:, 4:61], (rows("f32", 70, 64),)),
    "flip_stride": Case(lambda x: x[:, ::2] + 1, (rows("f32", 70, 64),)),
    "permute": Case(lambda x: x.permute(2, 0, 1) + 1, (("bf16", (12, 33, 40)),)),
    "transpose": Case(lambda x: x.t() + 1, (rows("f32", 300, 500),)),
    "embedding": Case(lambda t, i: t[i] * 2, (rows("f32", 512, 100), ("i64", (70,), 512))),
    "embedding_bf16": Case(lambda t, i: F.embedding(i, t), (rows("bf16", 512, 128), ("i64", (9, 17), 512))),
    "gather": Case(lambda x, i: torch.gather(x, 1, i), (rows("f32", 64, 50), ("i64", (64, 20), 50))),
    "gather_rows_sum": Case(
        lambda t, i, j: (t[i] + t[j]).sum(-1), (rows("f32", 512, 64), ("i64", (300,), 512), ("i64", (300,), 512))
    ),
    "pool_max": Case(lambda x: F.max_pool2d(x, 2), (("f32", (2, 16, 32, 32)),)),
    "pool_average_odd": Case(lambda x: F.avg_pool2d(x, 3, 2, 1), (("f32", (2, 5, 31, 31)),)),
    "row_sum": Case(lambda x: x.sum(-1), (rows("f32", 300, 1000),)),
    "row_sum_bf16": Case(lambda x: x.sum(-1), (rows("bf16", 300, 1024),)),
    "row_max_short": Case(lambda x: x.amax(-1), (rows("f32", 3000, 5),)),
    "row_mean_odd": Case(lambda x: x.mean(-1), (rows("f32", 301, 129),)),
    "rows_to_unit_sum": Case(lambda x: x / x.abs().sum(-1, keepdim=True), (rows("f32", 5, 4096),)),
    "softmax_few_long": Case(softmax, (rows("f32", 3, 128256),)),
    "layer_norm_few_long": Case(layer_norm, (rows("bf16", 2, 40000), ("bf16", (40000,)), ("bf16", (40000,)))),
    # Rows are of two dimensions, and what follows the sum has one of one element less.
    "rows_joined": Case(
        lambda w, x, b: F.softplus(w @ x.transpose(1, 2) + b[:, None]),
        (rows("bf16", 300, 48), ("bf16", (1, 3, 48)), ("bf16", (300,))),
    ),
    "row_long": Case(lambda x: x.sum(-1), (rows("f32", 3, 100000),)),
    "row_any": Case(lambda x: ((x > 2).any(-1), (x > -2).all(-1)), (rows("f32", 300, 100),)),
    "row_int": Case(lambda i: (i.sum(-1), i.amax(-1), i.amin(-1)), (("i64", (300, 100)),)),
    "row_prod": Case(lambda x: x.prod(-1), (rows("f64", 300, 40),)),
    "column_sum": Case(lambda x: x.sum(0), (rows("f32", 512, 1000),)),
    "column_sum_odd": Case(lambda x: x.sum(0), (rows("bf16", 515, 77),)),
    "column_softmax": Case(lambda x: torch.softmax(x, 0), (rows("f32", 100, 300),)),
    "column_softmax_long": Case(lambda x: torch.softmax(x, 0), (rows("f32", 5003, 40),)),
    "column_std_long": Case(lambda x: x.std(0), (rows("bf16", 3001, 72),)),
    "middle_softmax": Case(lambda x: torch.softmax(x, 1), (("f32", (6, 50, 64)),)),
    "middle_mean": Case(lambda x: x.mean(1), (("f32", (40, 33, 24)),)),
    "total_sum": Case(lambda x: x.sum(), (rows("f32", 200, 300),)),
    "total_sum_long": Case(lambda x: x.abs().sum(), (rows("f32", 400, 701),)),
    "total_norm_long": Case(lambda x: x.norm(), (rows("bf16", 700, 1001),)),
    "total_extremes_long": Case(lambda i: (i.amax(), i.amin(), (i > 3).all()), (("i64", (500, 1000), 50),)),
    "dot_long": Case(torch.dot, (("f32", (300001,)), ("f32", (300001,)))),
    "column_sum_long": Case(lambda x: x.sum(0), (rows("f32", 8000, 40),)),
    "column_max_long": Case(lambda x: torch.max(x, 0), (rows("f32", 7001, 20),)),
    "channels_last": Case(lambda x: x.permute(0, 2, 3, 1) * 2, (("bf16", (2, 24, 14, 14)),)),
    "channels_last_all": Case(lambda x: x.permute(0, 2, 3, 1) * 2, (("f32", (600, 16, 9, 7)),)),
    "transpose_bf16": Case(lambda x: x.t() * 2, (rows("bf16", 200, 136),)),
    "transpose_odd": Case(lambda x, y: x.t() + y, (rows("f32", 129, 77), rows("f32", 77, 129))),
    "swap_inner": Case(lambda x: x.transpose(1, 2) + 1, (("f32", (5, 64, 72)),)),
    "argmax": Case(lambda x: torch.argmax(x, -1), (rows("f32", 512, 1000),)),
    "argmin_short": Case(lambda x: torch.argmin(x, -1), (rows("f32", 512, 33),)),
    "argmax_ties": Case(lambda i: torch.max(i, -1), (("i64", (128, 300), 7),)),
    "column_argmax": Case(lambda x: torch.max(x, 0), (rows("f32", 200, 100),)),
    "batch_statistics": Case(batch_statistics, (("f32", (20, 12, 49)),)),
    "group_norm": Case(group_norm, (("f32", (4, 32, 7, 7)),)),
    "log_softmax": Case(lambda x: torch.log_softmax(x, -1), (rows("f32", 100, 700),)),
    "cosine": Case(lambda x, y: F.cosine_similarity(x, y, -1), (rows("f32", 100, 200), rows("f32", 100, 200))),
    **{f"softmax_{d}_{n}": Case(softmax, (rows(d, 300, n),)) for d in FLOATS for n in (2, 8, 31, 100, 129, 1000, 1024)},
    **{f"softmax_{d}_{n}": Case(softmax, (rows(d, 5, n),)) for d in FLOATS for n in (4096, 5000, 30000)},
    **{f"layer_norm_{d}_{n}": norm_case(layer_norm, d, 100, n, 2) for d in FLOATS for n in (16, 129, 768, 4096)},
    "layer_norm_long": norm_case(layer_norm, "f32", 5, 20000, 2),
    **{f"rms_norm_{d}_{n}": norm_case(rms_norm, d, 100, n, 1) for d in FLOATS for n in (64, 1000, 4096)},
    "stitch_small": stitch_case("bf16", 64, 1024),
    "stitch_full": stitch_case("bf16", 4096, 1024),
    "stitch_f32": stitch_case("f32", 64, 300),
    "stitch_odd": stitch_case("bf16", 129, 1000),
    "stitch_unaligned": stitch_case("bf16", 77, 129),
    "stitch_wide": stitch_case("bf16", 301, 3000),
    "stitch_short": stitch_case("bf16", 1000, 64),
}


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference relative to the largest value; infinite where NaN or infinity do not agree."""
    a, b = found.double(), wanted.double()
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return float("inf")
    a, b = torch.nan_to_num(a, 0, 0, 0), torch.nan_to_num(b, 0, 0, 0)
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()
