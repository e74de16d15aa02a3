"""Indices: embeddings, gathers, scatters, scans, orders, searches; what cannot be compiled."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from test.gpu.operators.case import F32, I32, I64, Case, flags, floats, numbers

__all__ = ["CASES"]

CASES: dict[str, Case] = {}

_TABLE = lambda: [nn.Embedding(100, 27)]  # noqa: E731
CASES |= {
    "embedding": Case(lambda e, i: e(i), [numbers(100, 129)], _TABLE),
    "embedding_2d": Case(lambda e, i: e(i), [numbers(100, 7, 13)], _TABLE),
    "embedding_i32": Case(lambda e, i: e(i), [numbers(100, 129, dtype=I32)], _TABLE),
    "embedding_position": Case(
        lambda e, p, i: e(i) + p(torch.arange(13, device=i.device)),
        [numbers(100, 7, 13)],
        lambda: [nn.Embedding(100, 27), nn.Embedding(13, 27)],
    ),
    **{
        f"embedding_bag_{mode}": Case(
            lambda e, i: e(i), [numbers(100, 13, 7)], lambda mode=mode: [nn.EmbeddingBag(100, 27, mode=mode)], dtype=F32
        )
        for mode in ("sum", "mean", "max")
    },
    "embedding_bag_offsets": Case(
        lambda e, i, o: e(i, o),
        [numbers(100, 29), lambda device: torch.tensor([0, 3, 3, 10], device=device)],
        lambda: [nn.EmbeddingBag(100, 27, mode="sum")],
        dtype=F32,
    ),
    "embedding_bag_weighted": Case(
        lambda e, i, w: e(i, per_sample_weights=w),
        [numbers(100, 13, 7), floats(13, 7, dtype=F32)],
        lambda: [nn.EmbeddingBag(100, 27, mode="sum")],
        dtype=F32,
    ),
    "index_select_0": Case(lambda x, i: x.index_select(0, i), [floats(100, 27), numbers(100, 129)]),
    "index_select_1": Case(lambda x, i: x.index_select(1, i), [floats(13, 100, 3), numbers(100, 27)]),
    "index_two": Case(lambda x, i, j: x[i, j], [floats(13, 27, 7), numbers(13, 129), numbers(27, 129)]),
    "index_outer": Case(lambda x, i, j: x[i[:, None], j], [floats(13, 27), numbers(13, 7), numbers(27, 5)]),
    "index_middle": Case(lambda x, i: x[:, i], [floats(7, 27, 13), numbers(27, 129)]),
    "gather": Case(lambda x, i: x.gather(1, i), [floats(27, 129), numbers(129, 27, 13)]),
    "gather_0": Case(lambda x, i: x.gather(0, i), [floats(27, 129), numbers(27, 7, 129)]),
    "take": Case(torch.take, [floats(27, 13), numbers(351, 129)]),
    "take_along": Case(lambda x, i: torch.take_along_dim(x, i, 1), [floats(27, 129), numbers(129, 27, 3)]),
    "scatter": Case(
        lambda x, y: x.scatter(1, torch.arange(13, device=x.device).flip(0).expand(27, 13), y),
        [floats(27, 129), floats(27, 13)],
    ),
    "scatter_value": Case(lambda x, i: x.scatter(1, i, 2.0), [floats(27, 129), numbers(129, 27, 13)]),
    "scatter_add": Case(
        lambda x, i, y: x.scatter_add(0, i, y),
        [floats(27, 13, dtype=F32), numbers(27, 129, 13), floats(129, 13, dtype=F32)],
        dtype=F32,
    ),
    "scatter_amax": Case(
        lambda x, i, y: x.scatter_reduce(0, i, y, "amax"),
        [floats(27, 13, dtype=F32), numbers(27, 129, 13), floats(129, 13, dtype=F32)],
        dtype=F32,
    ),
    "scatter_mean": Case(
        lambda x, i, y: x.scatter_reduce(0, i, y, "mean"),
        [floats(27, 13, dtype=F32), numbers(27, 129, 13), floats(129, 13, dtype=F32)],
        dtype=F32,
    ),
    "scatter_add_rows": Case(
        lambda x, i, y: x.scatter_add(0, i[:, None].expand(-1, 27), y),
        [floats(129, 27, dtype=F32), numbers(129, 1000), floats(1000, 27, dtype=F32)],
        dtype=F32,
    ),
    "scatter_mean_rows": Case(
        lambda x, i, y: x.scatter_reduce(0, i[:, None].expand(-1, 27), y, "mean", include_self=False),
        [floats(129, 27, dtype=F32), numbers(129, 1000), floats(1000, 27, dtype=F32)],
        dtype=F32,
    ),
    "scatter_add_1": Case(
        lambda x, i, y: x.scatter_add(1, i, y),
        [floats(27, 13, dtype=F32), numbers(13, 27, 129), floats(27, 129, dtype=F32)],
        dtype=F32,
    ),
    "index_add_slice": Case(
        lambda x, e, y: x.index_add(0, e[1], y),
        [floats(129, 7, dtype=F32), numbers(129, 2, 1000), floats(1000, 7, dtype=F32)],
        dtype=F32,
    ),
    "index_add_ones": Case(
        lambda x, i: x.index_add(0, i, torch.ones(1000, 1, dtype=x.dtype, device=x.device)),
        [floats(129, 1, dtype=F32), numbers(129, 1000)],
        dtype=F32,
    ),
    "index_add": Case(lambda x, i, y: x.index_add(0, i, y), [floats(27, 64), numbers(27, 129), floats(129, 64)]),
    "index_add_ordered": Case(
        lambda x, i, y: x.index_add(0, i, y),
        [floats(27, 13), numbers(27, 129), floats(129, 13)],
        options={"deterministic": True},
    ),
    "index_add_1": Case(lambda x, i, y: x.index_add(1, i, y), [floats(13, 27), numbers(27, 129), floats(13, 129)]),
    "index_add_alpha": Case(
        lambda x, i, y: x.index_add(0, i, y, alpha=2),
        [floats(27, 64, dtype=F32), numbers(27, 129), floats(129, 64, dtype=F32)],
        dtype=F32,
    ),
    "index_copy": Case(
        lambda x, y: x.index_copy(0, torch.tensor([3, 1, 7], device=x.device), y), [floats(13, 27), floats(3, 27)]
    ),
    "index_fill": Case(lambda x, i: x.index_fill(0, i, 1.5), [floats(13, 27), numbers(13, 3)]),
    "index_put": Case(
        lambda x, y: torch.index_put(x, [torch.tensor([3, 1, 7], device=x.device)], y), [floats(13, 27), floats(3, 27)]
    ),
    "index_put_add": Case(
        lambda x, i, y: torch.index_put(x, [i], y, accumulate=True),
        [floats(13, 27, dtype=F32), numbers(13, 129), floats(129, 27, dtype=F32)],
        dtype=F32,
    ),
    "index_put_two": Case(
        lambda x, i, j, y: torch.index_put(x, [i, j], y, accumulate=True),
        [floats(13, 27, dtype=F32), numbers(13, 129), numbers(27, 129), floats(129, dtype=F32)],
        dtype=F32,
    ),
    "masked_scatter": Case(
        lambda x, m, y: x.masked_scatter(m, y), [floats(13, 27, dtype=F32), flags(13, 27), floats(13, 27, dtype=F32)], dtype=F32
    ),
    "one_hot": Case(lambda i: F.one_hot(i, 27), [numbers(27, 129)]),
    "bincount": Case(
        lambda i: torch.zeros(27, dtype=I64, device=i.device).index_add(0, i, torch.ones_like(i)), [numbers(27, 1000)]
    ),
    "cumsum": Case(lambda x: x.cumsum(-1), [floats(13, 129, dtype=F32)], dtype=F32),
    "cumsum_bf16": Case(lambda x: x.cumsum(0), [floats(129, 13)]),
    "cumsum_i64": Case(lambda x: x.cumsum(-1), [numbers(9, 13, 129)]),
    "cumsum_bool": Case(lambda x: x.cumsum(-1), [flags(13, 129)]),
    "cumprod": Case(lambda x: (1 + 0.01 * x).cumprod(-1), [floats(13, 129, dtype=F32)], dtype=F32),
    "cummin": Case(lambda x: tuple(x.cummin(0)), [numbers(9, 129, 13)]),
    "cummax_long": Case(lambda x: x.cummax(0)[0], [floats(500_003, dtype=F32)], dtype=F32),
    "cummin_columns": Case(lambda x: tuple(x.cummin(1)), [numbers(99, 5, 1001, 65)]),
    "logcumsumexp_long": Case(lambda x: x.logcumsumexp(1), [floats(3, 5001, dtype=F32)], dtype=F32),
    "cumsum_long": Case(lambda x: x.cumsum(0), [floats(1_000_003, dtype=F32)], dtype=F32),
    "cumsum_few_rows": Case(lambda x: x.cumsum(1), [floats(4, 250_000)]),
    "cumsum_middle": Case(lambda x: x.cumsum(1), [floats(16, 1001, 65, dtype=F32)], dtype=F32),
    "cumsum_tall": Case(lambda x: x.cumsum(0), [floats(30_001, 4, dtype=F32)], dtype=F32),
    "cumsum_short": Case(lambda x: x.cumsum(1), [floats(100_000, 13)]),
    "cumsum_maps": Case(lambda x, y: (x * 2).sigmoid().cumsum(1) + y.t(), [floats(300, 129), floats(129, 300)]),
    "cumsum_softmax": Case(lambda x: x.softmax(1).cumsum(1), [floats(129, 3000, dtype=F32)], dtype=F32),
    "cumprod_long": Case(lambda x: (1 + 1e-4 * x).cumprod(0), [floats(70_001, dtype=F32)], dtype=F32),
    "logcumsumexp": Case(lambda x: x.logcumsumexp(-1), [floats(13, 129, dtype=F32)], dtype=F32),
    "cummax": Case(lambda x: x.cummax(-1), [floats(13, 129, dtype=F32)], dtype=F32),
    "sort": Case(lambda x: x.sort(-1), [floats(7, 27, dtype=F32)], dtype=F32),
    "sort_down": Case(lambda x: x.sort(0, descending=True)[0], [floats(129, 7, dtype=F32)], dtype=F32),
    "argsort": Case(lambda x: x.argsort(-1), [floats(7, 27, dtype=F32)], dtype=F32),
    "sort_1000": Case(lambda x: x.sort(-1), [floats(300, 1000, dtype=F32)], dtype=F32),
    "sort_bf16": Case(lambda x: x.sort(dim=-1, stable=True)[0], [floats(129, 777)]),
    "sort_4096": Case(lambda x: x.sort(-1), [floats(7, 4001, dtype=F32)], dtype=F32),
    "sort_8192": Case(lambda x: x.sort(-1, descending=True), [floats(5, 8192, dtype=F32)], dtype=F32),
    "sort_i64": Case(lambda x: x.sort(-1)[0], [numbers(1 << 40, 9, 5000, low=-(1 << 40))]),
    "sort_merged": Case(lambda x: x.sort(0), [floats(65_537, dtype=F32)], dtype=F32),
    "sort_short": Case(lambda x: x.sort(-1), [floats(10_000, 10, dtype=F32)], dtype=F32),
    "kthvalue": Case(lambda x: x.kthvalue(17, 1), [floats(129, 1000, dtype=F32)], dtype=F32),
    "mode": Case(lambda x: torch.cat([x, x[:, :1].expand(-1, 100)], 1).mode(1)[0], [numbers(10, 129, 300)]),  # no ties
    "searchsorted": Case(
        lambda b, x: torch.searchsorted(b.sort()[0], x), [floats(5000, dtype=F32), floats(999, 7, dtype=F32)], dtype=F32
    ),
    "bucketize": Case(lambda x, b: torch.bucketize(x, b.sort()[0], right=True), [floats(777, 13), floats(31)]),
    "topk_50": Case(lambda x: x.topk(50), [floats(7, 10_000, dtype=F32)], dtype=F32),
    "topk_vocabulary": Case(lambda x: x.topk(4), [floats(3, 128_256, dtype=F32)], dtype=F32),
    "topk": Case(lambda x: x.topk(3), [floats(27, 129, dtype=F32)], dtype=F32),
    "topk_bf16": Case(lambda x: x.topk(2)[0], [floats(27, 8)]),
    "topk_long": Case(lambda x: x.topk(13, largest=False)[0], [floats(3, 1000, dtype=F32)], dtype=F32),
    "median": Case(lambda x: x.median(-1)[0], [floats(7, 27, dtype=F32)], dtype=F32),
    "unique": Case(lambda x: x.unique(), [numbers(9, 129)], refused="unique"),
    "nonzero": Case(lambda x: x.nonzero(), [numbers(2, 129)], refused="nonzero"),
    "masked_select": Case(lambda x, m: x[m], [floats(129), flags(129)], refused="aten"),
    "item": Case(
        lambda x, n: x[: int(n.item())], [floats(129), lambda device: torch.tensor(3, device=device)], refused="aten|run time"
    ),
    "branch": Case(lambda x: x + 1 if x.sum() > 0 else x, [floats(129)], refused="branch|run time"),
    "random": Case(lambda x: x + torch.rand_like(x), [floats(129)], refused="random"),
    "complex": Case(lambda x: torch.view_as_complex(x) * 2, [floats(13, 2, dtype=F32)], dtype=F32, refused="integer/float"),
    "fft": Case(lambda x: torch.fft.rfft(x).abs(), [floats(13, 16, dtype=F32)], dtype=F32, refused="complex"),
    "solve": Case(
        torch.linalg.solve,
        [floats(7, 7, dtype=F32), floats(7, 3, dtype=F32)],
        dtype=F32,
        refused="_linalg_(check_errors|solve_ex)",
    ),
}
