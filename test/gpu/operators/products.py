"""Products: orders of operands, types, sizes, batches, what comes before and what follows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from test.gpu.operators.case import BF16, F16, F32, F64, I32, I64, TF32, Case, flags, floats, numbers

__all__ = ["CASES"]

CASES: dict[str, Case] = {}
SIZES = ((1, 1, 1), (3, 7, 13), (13, 27, 3), (129, 1, 27), (1, 129, 1000), (27, 13, 129), (129, 1000, 7), (1000, 3, 129))
TYPES = {"bf16": BF16, "f16": F16, "f32": F32, "tf32": TF32, "f64": F64}


def _both(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def _whole(x: Tensor, y: Tensor) -> Tensor:
    """A product of integers, which torch has not on a GPU: there, as the compiler sees only the processor's, in f64."""
    return (x.double() @ y.double()).to(x.dtype) if x.is_cuda else x @ y


def _orders(m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, Case]:
    """Both operands stored by rows and by columns."""
    a, at = floats(m, k, dtype=dtype), floats(k, m, dtype=dtype)
    b, bt = floats(k, n, dtype=dtype), floats(n, k, dtype=dtype)
    return {
        "nn": Case(_both, [a, b]),
        "nt": Case(lambda x, y: x @ y.T, [a, bt]),
        "tn": Case(lambda x, y: x.T @ y, [at, b]),
        "tt": Case(lambda x, y: x.T @ y.T, [at, bt]),
        "out_t": Case(lambda x, y: (x @ y).T, [a, b]),
    }


for _name, _dtype in TYPES.items():
    for _m, _n, _k in SIZES if _name in ("bf16", "f32") else SIZES[1::3]:
        _real = F32 if _dtype == TF32 else _dtype
        _inputs = [floats(_m, _k, dtype=_real), floats(_k, _n, dtype=_real)]
        CASES[f"mm_{_name}_{_m}x{_n}x{_k}"] = Case(_both, _inputs, dtype=_dtype)
    for _order, _case in _orders(129, 27, 100, F32 if _dtype == TF32 else _dtype).items():
        CASES[f"mm_{_name}_{_order}"] = Case(_case.function, _case.inputs, dtype=_dtype)


def _linear_gradients(dy: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of a layer's weight and bias: a product, and the sum of its operand that has the rows."""
    return dy.T @ x, dy.sum(0)


def _linear_update(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return w - 0.125 * (dy.T @ x), dy.sum(0) * 0.5


def _adam(dy: Tensor, x: Tensor, p: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """A weight's gradient, and an update that reads three matrices and writes them."""
    g = dy.T @ x
    m, v = m.lerp(g, 0.125), v.abs() * 0.875 + g * g * 0.125
    return p * 0.75 - 0.25 * m / (v.sqrt() + 1), m, v


def _two_products(dy: Tensor, x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    return dy.T @ x, dy.T @ z, dy.sum(0), dy @ x[: dy.shape[1]]


for _m, _n, _k, _dtype in (
    *((256, 256, 65536, BF16), (128, 128, 8192, BF16), (200, 72, 5000, BF16), (129, 130, 7001, BF16), (33, 64, 20_000, BF16)),
    *((512, 512, 3000, F16), (1000, 300, 3001, F16), (64, 256, 9000, BF16), (8, 256, 100_000, BF16), (1024, 4096, 1024, BF16)),
):
    CASES[f"mm_operand_sum_{_m}x{_n}x{_k}"] = Case(
        _linear_gradients, [floats(_k, _m, dtype=_dtype), floats(_k, _n, dtype=_dtype)], dtype=_dtype
    )

for _m, _n, _k in ((2048, 4096, 512), (1000, 4104, 300), (1300, 2056, 1024), (129, 1001, 640)):
    CASES[f"mm_three_matrices_{_m}x{_n}x{_k}"] = Case(
        _adam, [floats(_k, _m, scale=0.1), floats(_k, _n, scale=0.1), *[floats(_m, _n)] * 3]
    )

CASES |= {
    "mm_one_matrix": Case(lambda x, w, r: (x @ w.T).relu() + r, [floats(1300, 256), floats(4096, 256), floats(1300, 4096)]),
    "mm_operand_sum_update": Case(_linear_update, [floats(20_000, 129), floats(20_000, 256), floats(129, 256)]),
    "mm_operand_sum_wide_update": Case(_linear_update, [floats(1024, 2048), floats(1024, 2048), floats(2048, 2048)]),
    "mm_operand_sum_two": Case(_two_products, [floats(9001, 136), floats(9001, 128), floats(9001, 64)]),
    "mm_mixed_bf16_f32": Case(lambda x, y: x.float() @ y, [floats(129, 27), floats(27, 100, dtype=F32)], plain=True),
    "mm_mixed_f32_f16": Case(lambda x, y: x.half() @ y, [floats(129, 27, dtype=F32), floats(27, 64, dtype=F16)], plain=True),
    "mm_bf16_to_f32": Case(lambda x, y: (x @ y).float(), [floats(129, 64), floats(64, 27)]),
    "mm_i32": Case(_whole, [numbers(9, 13, 27, dtype=I32), numbers(9, 27, 7, dtype=I32)], plain=True),
    "mm_i64": Case(_whole, [numbers(9, 13, 27), numbers(9, 27, 7)], plain=True),
    "mv": Case(lambda x, y: x @ y, [floats(129, 1000), floats(1000)]),
    "vm": Case(lambda x, y: x @ y, [floats(1000), floats(1000, 129)]),
    "dot": Case(lambda x, y: x @ y, [floats(1000, dtype=F32), floats(1000, dtype=F32)], dtype=F32),
    "outer": Case(torch.outer, [floats(129), floats(27)]),
    "bmm": Case(torch.bmm, [floats(7, 13, 27), floats(7, 27, 129)]),
    "bmm_f32": Case(torch.bmm, [floats(3, 129, 27, dtype=F32), floats(3, 27, 13, dtype=F32)], dtype=F32),
    "bmm_nt": Case(lambda x, y: x @ y.mT, [floats(7, 13, 32), floats(7, 129, 32)]),
    "bmm_tn": Case(lambda x, y: x.mT @ y, [floats(7, 32, 13), floats(7, 32, 129)]),
    "bmm_broadcast_right": Case(torch.matmul, [floats(7, 13, 27), floats(27, 129)]),
    "bmm_broadcast_left": Case(torch.matmul, [floats(13, 27), floats(7, 27, 129)]),
    "bmm_broadcast_one": Case(torch.matmul, [floats(1, 13, 64), floats(7, 64, 129)]),
    "bmm_broadcast_both": Case(torch.matmul, [floats(3, 1, 13, 64), floats(5, 64, 24)]),
    "bmm_four": Case(torch.matmul, [floats(2, 3, 27, 64), floats(2, 3, 64, 129)]),
    "bmm_permuted": Case(lambda x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), [floats(2, 27, 3, 64), floats(2, 129, 3, 64)]),
    "einsum_heads": Case(lambda x, w: torch.einsum("bsd,hde->bhse", x, w), [floats(2, 27, 64), floats(3, 64, 13)]),
    "einsum_two": Case(lambda x, y: torch.einsum("bij,bjk,k->bi", x, y, y[0, 0]), [floats(2, 7, 27), floats(2, 27, 13)]),
    "bilinear": Case(lambda b, x, y: b(x, y), [floats(27, 7), floats(27, 13)], lambda: [nn.Bilinear(7, 13, 5)]),
    "addmm_scaled": Case(
        lambda c, x, y: torch.addmm(c, x, y, beta=0.5, alpha=2.0), [floats(129, 27), floats(129, 64), floats(64, 27)]
    ),
    "addmm_row": Case(lambda c, x, y: torch.addmm(c, x, y), [floats(27), floats(129, 64), floats(64, 27)]),
    "baddbmm": Case(torch.baddbmm, [floats(3, 13, 27), floats(3, 13, 64), floats(3, 64, 27)]),
    "gram": Case(lambda x: x @ x.T, [floats(129, 64)]),
    "gram_t": Case(lambda x: x.T @ x, [floats(1000, 27)]),
    "square_chain": Case(lambda x: x @ x @ x, [floats(64, 64, scale=0.1)]),
    "long_k": Case(_both, [floats(7, 10000), floats(10000, 13)]),
    "empty_k": Case(_both, [floats(7, 0), floats(0, 13)]),
    "empty_m": Case(_both, [floats(0, 7), floats(7, 13)]),
}


def _layer(inside: int, outside: int, bias: bool = True):
    return lambda: [nn.Linear(inside, outside, bias)]


FOLLOWS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "elu": F.elu,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "hardswish": F.hardswish,
    "mish": F.mish,
    "clamp": lambda x: x.clamp(-0.5, 0.25),
    "square": lambda x: x * x,
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "sum": lambda x: x.sum(-1),
    "mean_rows": lambda x: x.mean(0),
    "max": lambda x: x.amax(-1),
    "argmax": lambda x: x.float().argmax(-1),
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "two": lambda x: (x, torch.relu(x)),
    "three": lambda x: (x.float(), x.sum(-1), torch.tanh(x)),
    "transposed": lambda x: x.T.contiguous(),
    "reshaped": lambda x: x.reshape(x.shape[0], -1, 4).sum(-1),
    "chunked": lambda x: torch.mul(*x.chunk(2, -1)),
    "interleaved": lambda x: x[:, ::2] * x[:, 1::2],
    "flipped": lambda x: x.flip(-1),
    "rolled": lambda x: x.roll(1, 0),
    "padded": lambda x: F.pad(x, (1, 2)),
    "triangle": lambda x: x.tril(),
}
for _name, _follow in FOLLOWS.items():
    _exact = _name == "argmax"
    CASES[f"linear_{_name}"] = Case(
        lambda layer, x, follow=_follow: follow(layer(x)),
        [floats(129, 64, dtype=F64 if _exact else BF16)],
        _layer(64, 28),
        dtype=F64 if _exact else BF16,
    )
    if _name in ("softmax", "gelu", "three"):
        CASES[f"linear_f32_{_name}"] = Case(
            lambda layer, x, follow=_follow: follow(layer(x)), [floats(129, 27, dtype=F32)], _layer(27, 100), dtype=F32
        )

CASES |= {
    "linear_residual": Case(lambda f, x, r: f(x) + r, [floats(129, 64), floats(129, 27)], _layer(64, 27)),
    "linear_layer_norm": Case(lambda f, n, x: n(f(x)), [floats(129, 64)], lambda: [nn.Linear(64, 100), nn.LayerNorm(100)]),
    "linear_layer_norm_wide": Case(
        lambda f, n, x: n(f(x) + x), [floats(27, 1000)], lambda: [nn.Linear(1000, 1000), nn.LayerNorm(1000)]
    ),
    "linear_rms_norm": Case(lambda f, n, x: n(f(x)) + x, [floats(129, 64)], lambda: [nn.Linear(64, 64), nn.RMSNorm(64)]),
    "linear_group_norm": Case(lambda f, n, x: n(f(x)), [floats(129, 64)], lambda: [nn.Linear(64, 24), nn.GroupNorm(4, 24)]),
    "linear_batch_norm": Case(lambda f, n, x: n(f(x)), [floats(129, 64)], lambda: [nn.Linear(64, 27), nn.BatchNorm1d(27)]),
    "linear_row_scale": Case(lambda f, x, s: f(x) * s, [floats(129, 64), floats(129, 1)], _layer(64, 27)),
    "linear_column_scale": Case(lambda f, x, s: f(x) * s, [floats(129, 64), floats(27)], _layer(64, 27)),
    "linear_masked": Case(lambda f, x, m: f(x).masked_fill(m, -1.0), [floats(129, 64), flags(129, 27)], _layer(64, 27)),
    "linear_where": Case(
        lambda f, x, m, y: torch.where(m, f(x), y), [floats(129, 64), flags(129, 1), floats(129, 27)], _layer(64, 27)
    ),
    "linear_glu": Case(lambda f, x: F.glu(f(x)), [floats(129, 64)], _layer(64, 54)),
    "linear_swiglu": Case(
        lambda f, g, h, x: h(F.silu(f(x)) * g(x)),
        [floats(129, 64)],
        lambda: [nn.Linear(64, 100, False), nn.Linear(64, 100, False), nn.Linear(100, 64, False)],
    ),
    "linear_qkv": Case(
        lambda q, k, v, x: (q(x), k(x), v(x)), [floats(129, 64)], lambda: [nn.Linear(64, n, False) for n in (64, 16, 16)]
    ),
    "linear_concat_in": Case(lambda f, x, y: f(torch.cat([x, y], -1)), [floats(129, 13), floats(129, 27)], _layer(40, 27)),
    "linear_concat_odd": Case(
        lambda f, g, x, y: g(F.relu(f(torch.cat([x, y], -1)))),
        [floats(1000, 5), floats(1000, 27)],
        lambda: [nn.Linear(32, 64), nn.Linear(64, 27)],
    ),
    "linear_concat_three": Case(
        lambda f, x, y: F.relu(f(torch.cat([x, y, x], -1))), [floats(129, 64), floats(129, 32)], _layer(160, 64)
    ),
    "linear_concat_out": Case(
        lambda f, g, x: torch.cat([f(x), g(x)], -1), [floats(129, 64)], lambda: [nn.Linear(64, 27), nn.Linear(64, 13)]
    ),
    "linear_gather_in": Case(lambda f, x, i: f(x[i]), [floats(100, 64), numbers(100, 129)], _layer(64, 27)),
    "linear_gather_negative": Case(lambda f, x, i: f(x[i]), [floats(100, 64), numbers(100, 129, low=-100)], _layer(64, 27)),
    "linear_gather_i32": Case(lambda f, x, i: f(x[i]), [floats(100, 64), numbers(100, 129, dtype=I32)], _layer(64, 27)),
    "linear_gather_out": Case(lambda f, x, i: f(x)[i], [floats(100, 64), numbers(100, 129)], _layer(64, 27)),
    "linear_gather_concat": Case(
        lambda f, x, e, i, j: f(torch.cat([e, x[i], x[j]], -1)),
        [floats(100, 64), floats(129, 64), numbers(100, 129), numbers(100, 129)],
        _layer(192, 64),
    ),
    "linear_scatter": Case(
        lambda f, x, i: torch.zeros(27, 64, dtype=x.dtype, device=x.device).index_add(0, i, f(x)),
        [floats(129, 64), numbers(27, 129)],
        _layer(64, 64),
    ),
    "linear_norm_in": Case(lambda n, f, x: f(n(x)), [floats(129, 64)], lambda: [nn.LayerNorm(64), nn.Linear(64, 27)]),
    "linear_rms_in": Case(lambda n, f, x: f(n(x)), [floats(7, 1000)], lambda: [nn.RMSNorm(1000), nn.Linear(1000, 129)]),
    "linear_gelu_in": Case(lambda f, x: f(F.gelu(x)), [floats(129, 64)], _layer(64, 27)),
    "linear_permuted_in": Case(lambda f, x: f(x.permute(0, 2, 1)), [floats(3, 64, 129)], _layer(64, 27)),
    "linear_sliced_in": Case(lambda f, x: f(x[:, 3:67]), [floats(129, 100)], _layer(64, 27)),
    "linear_strided_in": Case(lambda f, x: f(x[::2, ::3]), [floats(129, 192)], _layer(64, 27)),
    "linear_reshaped_in": Case(lambda f, x: f(x.flatten(1)), [floats(27, 3, 7, 5)], _layer(105, 13)),
    "linear_expanded_in": Case(lambda f, x: f(x.expand(27, -1)), [floats(1, 64)], _layer(64, 13)),
    "linear_3d": Case(lambda f, x: f(x), [floats(3, 7, 64)], _layer(64, 27)),
    "linear_1d": Case(lambda f, x: f(x), [floats(64)], _layer(64, 27)),
    "linear_f64": Case(lambda f, x: torch.tanh(f(x)), [floats(13, 27, dtype=F64)], _layer(27, 7), dtype=F64),
    "autocast_mixed": Case(
        lambda f, x: f(x.bfloat16()).float() + x.mean(), [floats(13, 64, dtype=F32)], _layer(64, 7), plain=True
    ),
    "mlp_odd": Case(
        lambda a, b, c, x: c(F.relu(b(F.relu(a(x))))),
        [floats(1000, 13)],
        lambda: [nn.Linear(13, 129), nn.Linear(129, 27), nn.Linear(27, 3)],
    ),
    "mlp_one": Case(lambda a, b, x: b(F.gelu(a(x))), [floats(1, 1000)], lambda: [nn.Linear(1000, 1000), nn.Linear(1000, 1)]),
    "mlp_f32": Case(
        lambda a, b, x: b(torch.tanh(a(x))),
        [floats(129, 27, dtype=F32)],
        lambda: [nn.Linear(27, 129), nn.Linear(129, 3)],
        dtype=F32,
    ),
    "mlp_f16": Case(
        lambda a, b, x: b(F.relu(a(x))),
        [floats(129, 64, dtype=F16)],
        lambda: [nn.Linear(64, 129), nn.Linear(129, 7)],
        dtype=F16,
    ),
    "skip_dense": Case(
        lambda a, b, x: b(torch.cat([x, a(x), x * a(x)], -1)), [floats(129, 32)], lambda: [nn.Linear(32, 32), nn.Linear(96, 27)]
    ),
    "experts": Case(
        lambda x, w, g: torch.einsum("td,edf,te->tf", x, w, torch.softmax(g, -1)),
        [floats(129, 64), floats(4, 64, 27), floats(129, 4)],
    ),
    "matmul_i64_index": Case(
        lambda f, x, i: f(x) * i.unsqueeze(-1), [floats(129, 64), numbers(9, 129, dtype=I64)], _layer(64, 27)
    ),
}
