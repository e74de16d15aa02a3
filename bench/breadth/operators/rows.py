"""Operators along dimensions: reductions, norms, softmax, losses, scans, sorts, searches, counts."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.breadth.operators.table import flags, numbers, positive, table
from bench.case import BenchCase

__all__ = ["rows"]

LARGE, SMALL = (8192, 4096), (63, 129)
CUBE, BOX = (128, 256, 1024), (5, 13, 27)
LONG, SHORT = (1 << 24,), (1000,)


def _tied(model: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    """`BenchCase.undecided` of a mode: rows where several numbers are the most frequent (PyTorch's devices choose others)."""
    most = F.one_hot(args[0]).sum(-2).topk(2, -1).values
    return most[..., 0] == most[..., 1]


def _reductions() -> list[BenchCase]:
    functions = {
        "all": torch.sum,
        "rows": lambda x: x.sum(-1),
        "columns": lambda x: x.sum(0),
        "mean": lambda x: x.mean(-1),
        "amax": lambda x: x.amax(-1),
        "amin_columns": lambda x: x.amin(0),
        "max_all": torch.max,
        "prod": lambda x: (1 + 0.001 * x).prod(-1),
        "var": lambda x: x.var(-1),
        "std_columns": lambda x: x.std(0),
        "var_mean": lambda x: torch.var_mean(x, -1),
        "norm": lambda x: x.norm(dim=-1),
        "norm_all": lambda x: x.norm(),
        "norm_1": lambda x: torch.linalg.vector_norm(x, 1, -1),
        "logsumexp": lambda x: torch.logsumexp(x, -1),
        "argmax": lambda x: x.argmax(-1),
        "argmin_columns": lambda x: x.argmin(0),
        "argmax_all": torch.argmax,
        "max_index": lambda x: x.max(-1),
        "any": lambda x: (x > 3).any(-1),
        "all_true": lambda x: (x < 3).all(),
        "nonzero_count": lambda x: (x > 1).sum(-1),
        "aminmax": lambda x: torch.aminmax(x),
    }
    dims = {
        "middle": lambda x: x.sum(1),
        "first_last": lambda x: x.sum((0, 2)),
        "mean_middle": lambda x: x.mean(1),
        "amax_last_two": lambda x: x.amax((1, 2)),
        "softmax_middle": lambda x: x.softmax(1),
    }
    return [
        *table("reduce", functions, LARGE, SMALL),
        *table("reduce", dims, CUBE, BOX),
        *table("reduce", {"vector": torch.sum, "vector_norm": torch.norm}, LONG, SHORT),
        *table("reduce", {"narrow": lambda x: x.sum(-1)}, (1 << 22, 7), (129, 7)),
        *table("reduce", {"dot": torch.dot}, [LONG] * 2, [SHORT] * 2),
        *table("reduce_i64", {"rows": lambda x: x.sum(-1)}, [numbers(99, *LARGE)], [numbers(99, *SMALL)], ["f32"]),
        *table("reduce", {"cosine": lambda x, y: F.cosine_similarity(x, y, -1)}, [LARGE] * 2, [SMALL] * 2),
        *table("reduce", {"distance": lambda x, y: F.pairwise_distance(x, y)}, [LARGE] * 2, [SMALL] * 2),
        *table("reduce", {"trace": torch.trace}, (8192, 8192), (63, 63), unread=lambda _, a: a[0].nbytes - 32 * len(a[0])),
    ]


def _norms() -> list[BenchCase]:
    plain = {
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
        "softmax": lambda x: x.softmax(-1),
        "softmax_columns": lambda x: x.softmax(0),
        "log_softmax": lambda x: x.log_softmax(-1),
        "normalize": lambda x: F.normalize(x, dim=-1),
        "standardize": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5),
    }
    images = {
        "group_norm": lambda x: F.group_norm(x, 8),
        "instance_norm": F.instance_norm,
        "channel_norm": lambda x: F.normalize(x, dim=1),
        "response_norm": lambda x: F.local_response_norm(x, 5),
    }

    def batch_norm(x, mean, var, weight, bias):
        return F.batch_norm(x, mean, var, weight, bias)

    large, small = (32, 64, 128, 128), (2, 16, 9, 7)
    statistics = [[shape, (shape[1],), positive(shape[1]), (shape[1],), (shape[1],)] for shape in (large, small)]
    return [
        *table("norm", plain, LARGE, SMALL),
        *table("norm", images, large, small),
        *table("norm", {"batch_norm": batch_norm}, *statistics),
        *table("norm", {"glu": F.glu}, LARGE, (63, 130)),
    ]


def _losses() -> list[BenchCase]:
    pairs = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.huber_loss, "smooth_l1": F.smooth_l1_loss}
    logits = {"bce_logits": F.binary_cross_entropy_with_logits, "kl_div": lambda x, y: F.kl_div(x, y, reduction="batchmean")}
    classes = {"cross_entropy": F.cross_entropy}
    return [
        *table("loss", pairs, [LARGE] * 2, [SMALL] * 2),
        *table("loss", logits, [LARGE, positive(*LARGE)], [SMALL, positive(*SMALL)]),
        *table("loss", classes, [LARGE, numbers(LARGE[1], LARGE[0])], [SMALL, numbers(SMALL[1], SMALL[0])]),
    ]


def _scans() -> list[BenchCase]:
    functions = {
        "cumsum": lambda x: x.cumsum(-1),
        "cumsum_columns": lambda x: x.cumsum(0),
        "cumprod": lambda x: (1 + 0.01 * x).cumprod(-1),
        "cummax": lambda x: x.cummax(-1).values,
        "cummin_columns": lambda x: x.cummin(0).values,
        "logcumsumexp": lambda x: x.logcumsumexp(-1),
        "diff": lambda x: x.diff(dim=-1),
    }
    return [
        *table("scan", functions, LARGE, SMALL),
        *table("scan", {"vector": lambda x: x.cumsum(0)}, LONG, SHORT),
        *table("scan", {"i64": lambda x: x.cumsum(-1)}, [numbers(9, *LARGE)], [numbers(9, *SMALL)], ["f32"]),
        *table("scan", {"flags": lambda x: x.cumsum(-1)}, [flags(*LARGE)], [flags(*SMALL)], ["f32"]),
    ]


def _orders() -> list[BenchCase]:
    """Values only where equal ones may come in any order."""
    functions = {
        "sort": lambda x: x.sort(-1).values,
        "sort_stable": lambda x: torch.sort(x, dim=-1, stable=True),
        "sort_columns": lambda x: x.sort(0).values,
        "top_8": lambda x: x.topk(8).values,
        "top_100": lambda x: x.topk(100).values,
        "least_3": lambda x: x.topk(3, largest=False).values,
        "kthvalue": lambda x: x.kthvalue(17).values,
        "median": lambda x: x.median(-1).values,
    }

    def counts(x):  # `bincount` itself has as many results as the largest number says
        return torch.zeros(1000, dtype=torch.int64, device=x.device).index_add(0, x, torch.ones_like(x))

    modes = {"mode": lambda x: x.mode(-1).values}
    long, short = (1 << 20,), (1000,)
    count, few = numbers(1000, 1 << 22), numbers(100, 1000)
    edges, values = (lambda m: torch.linspace(-3, 3, 1025, device=m.device).to(m.dtype)), 1 << 22
    return [
        *table("order", functions, (4096, 1024), SMALL),
        *(
            replace(case, undecided=_tied)
            for case in table("order", modes, [numbers(50, 1024, 1024)], [numbers(9, *SMALL)], ["f32"])
        ),
        *table("order", {"sort_vector": lambda x: x.sort().values, "top_vector": lambda x: x.topk(16).values}, long, short),
        *table("order", {"argsort_vector": lambda x: x.argsort(stable=True)}, long, (20_001,)),
        *table("order", {"sort_long": lambda x: torch.sort(x, dim=-1, stable=True)}, (16, 100_003), (3, 5000)),
        *table(
            "order",
            {"sort_i64": lambda x: torch.sort(x, stable=True)},
            [numbers(1 << 20, 1 << 20)],
            [numbers(999, 5000)],
            ["f32"],
        ),
        *table("order", {"histogram": lambda x: torch.histc(x, 64, -3, 3)}, LONG, SHORT, ["f32"]),
        *table("order", {"counts": counts}, [count], [few], ["f32"]),
        *table("order", {"search": torch.searchsorted}, [edges, (values,)], [edges, (129,)]),
        *table("order", {"bucketize": lambda x, e: torch.bucketize(x, e)}, [(values,), edges], [(129,), edges], ["f32"]),
        *table("order", {"one_hot": lambda x: F.one_hot(x, 100)}, [numbers(100, 1 << 18)], [numbers(100, 129)], ["f32"]),
        *table("order", {"isin": torch.isin}, [count, numbers(1000, 32)], [few, numbers(100, 7)], ["f32"]),
    ]


def rows() -> list[BenchCase]:
    """All of them."""
    return [*_reductions(), *_norms(), *_losses(), *_scans(), *_orders()]
