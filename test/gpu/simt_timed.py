"""Memory-bound work of about 1 GB, and how fast a compiled program does it beside a device copy of as many bytes.

The copy and eager PyTorch are timed in turns with the program, so that clocks and power are the same for all of them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from test.gpu.simt_cases import FLOATS, TOLERANCE, Case, error_of, layer_norm, rms_norm, rows, softmax

LENGTHS = (8, 13, 32, 100, 256, 1000, 1024, 4096, 16384, 100000)
GIGABYTE = 1 << 30
EAGER_ROUNDS = 5  # some of its kernels take a hundred times longer than a copy
CHECKED = 300  # rows at each end that are compared with float64


@dataclasses.dataclass(frozen=True)
class Timed(Case):
    """A case that is timed.

    Attributes:
        by_rows: the results' rows depend on the same rows of the inputs that have as many rows, so checking some is enough.
        touched: bytes moved, where that is not the sum of all arguments and results.
        eager: PyTorch does it in reasonable time, so it is timed too.
    """

    by_rows: bool = True
    touched: int = 0
    eager: bool = True


def row_cases(kind: str, run: Callable[..., Any], weights: int, writes: bool) -> dict[str, Timed]:
    """A function of rows for every type and length, so many rows that 1 GB moves."""
    found = {}
    for dtype in FLOATS:
        size = 4 if dtype == "f32" else 2
        for n in LENGTHS:
            count = GIGABYTE // (n * size * (2 if writes else 1))
            found[f"{kind}_{dtype}_{n}"] = Timed(run, (rows(dtype, count, n), *[(dtype, (n,))] * weights))
    return found


def image(dtype: str, *shape: int) -> tuple:
    return (dtype, shape)


def scatter_add(x, i, y):
    return x.index_add(0, i, y)


def batch_norm_statistics(x):
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


_CASES: dict[str, Timed] = {
    **row_cases("map", lambda x, b: torch.relu(x + b), 1, True),
    **row_cases("sum", lambda x: x.sum(-1), 0, False),
    **row_cases("softmax", softmax, 0, True),
    **row_cases("layer_norm", layer_norm, 2, True),
    **row_cases("rms_norm", rms_norm, 1, True),
    "gelu_bf16": Timed(lambda x: F.gelu(x), (rows("bf16", 1 << 16, 4096),)),
    "tanh_bf16": Timed(torch.tanh, (rows("bf16", 1 << 16, 4096),)),
    "silu_mul_bf16": Timed(lambda x, y: F.silu(x) * y, (rows("bf16", 1 << 15, 4096), rows("bf16", 1 << 15, 4096))),
    "argmax_f32_2048": Timed(lambda x: torch.argmax(x, -1), (rows("f32", 1 << 16, 2048),)),
    "cumsum_f32_1024": Timed(lambda x: torch.cumsum(x, -1), (rows("f32", 1 << 17, 1024),)),
    "pad_bf16": Timed(lambda x: F.pad(x, (1, 1, 1, 1)), (image("bf16", 1024, 64, 56, 56),)),
    "cat_bf16": Timed(lambda x, y: torch.cat([x, y], 1), (rows("bf16", 1 << 19, 128), rows("bf16", 1 << 19, 352))),
    **{f"transpose_{d}_4096": Timed(lambda x: x.t() * 1, (rows(d, 4096, 4096),), by_rows=False) for d in FLOATS},
    **{f"transpose_{d}_big": Timed(lambda x: x.t() * 1, (rows(d, 8192, 16384),), by_rows=False) for d in FLOATS},
    **{f"transpose_{d}_odd": Timed(lambda x: x.t() * 1, (rows(d, 10001, 10007),), by_rows=False) for d in FLOATS},
    **{
        f"heads_{d}": Timed(lambda x: x.transpose(1, 2).contiguous(), (image(d, 16, 32, 2048, 128),)) for d in FLOATS
    },
    **{
        f"channels_last_{d}": Timed(lambda x: x.permute(0, 2, 3, 1).contiguous(), (image(d, 512, 128, 28, 28),))
        for d in FLOATS
    },
    "reverse_dims_f32": Timed(lambda x: x.permute(2, 1, 0).contiguous(), (image("f32", 512, 500, 520),), by_rows=False),
    "gather_bf16_256": Timed(
        lambda t, i: t[i], (rows("bf16", 1 << 19, 256), ("i64", (1 << 20,), 1 << 19)), False, touched=1 << 30
    ),
    "gather_bf16_128": Timed(
        lambda t, i: t[i], (rows("bf16", 1 << 21, 128), ("i64", (1 << 21,), 1 << 21)), False, touched=1 << 30
    ),
    "gather_f32_64": Timed(lambda t, i: t[i], (rows("f32", 1 << 21, 64), ("i64", (1 << 21,), 1 << 21)), False, touched=1 << 30),
    "scatter_bf16_128": Timed(
        scatter_add, (rows("bf16", 1 << 20, 128), ("i64", (1 << 21,), 1 << 20), rows("bf16", 1 << 21, 128)), False
    ),
    "scatter_f32_128": Timed(
        scatter_add, (rows("f32", 1 << 17, 128), ("i64", (1 << 20,), 1 << 17), rows("f32", 1 << 20, 128)), False
    ),
    **{f"column_sum_{d}_8192": Timed(lambda x: x.sum(0), (rows(d, 1 << 15, 8192),), False) for d in FLOATS},
    **{f"column_sum_{d}_256": Timed(lambda x: x.sum(0), (rows(d, 1 << 20, 256),), False) for d in FLOATS},
    **{
        f"batch_norm_{d}": Timed(batch_norm_statistics, (image(d, 256, 256, 56, 56),), False) for d in FLOATS
    },
    "total_sum_f32": Timed(lambda x: x.abs().sum(), (rows("f32", 1 << 14, 1 << 14),), False),
    "max_pool_f32": Timed(lambda x: F.max_pool2d(x, 3, 2, 1), (image("f32", 64, 64, 224, 224),)),
    "average_pool_bf16": Timed(lambda x: F.avg_pool2d(x, 2), (image("bf16", 128, 64, 224, 224),)),
}  # fmt: skip

TIMED = {f"gb_{name}": case for name, case in _CASES.items()}
"""By name; none has the name of a small case."""


def check(case: Timed, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> tuple[float, bool]:
    """Largest relative error against float64 (of some rows, if rows are independent), and whether it is small enough."""
    worst, right = 0.0, True
    count = inputs[0].shape[0]
    parts = [slice(0, CHECKED), slice(max(0, count - CHECKED), count)] if case.by_rows else [slice(None)]
    for part in parts:
        taken = [t[part] if t.dim() and t.shape[0] == count and (t.dim() > 1 or t is inputs[0]) else t for t in inputs]
        wide = [t.double() if t.is_floating_point() else t for t in taken]
        wanted = case.run(*wide)
        del wide
        wanted = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
        for found, reference in zip(results, wanted, strict=True):
            error = error_of(found[part] if case.by_rows else found, reference)
            worst, right = max(worst, error), right and error <= TOLERANCE.get(found.dtype, 0.0)
    return worst, right


def measure(
    case: Timed, launch: Callable[[], object], inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
) -> dict[str, float]:
    """Milliseconds of the program, of a device copy and of eager PyTorch, in turns; the rate, and its share of the copy's."""
    moved = case.touched or sum(t.numel() * t.element_size() for t in (*inputs, *results))
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    calls: dict[str, Callable[[], object]] = {"ours": launch, "copy": lambda: target.copy_(source)}
    if case.eager:
        calls["eager"] = lambda: case.run(*inputs)
    times = in_turns(calls, 11)
    return {
        **{f"{name}_ms": round(value, 5) for name, value in times.items()},
        "gigabytes_per_second": round(moved / times["ours"] / 1e6, 1),
        "of_copy": round(times["copy"] / times["ours"], 4),
    }


def in_turns(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median time of each call on the device."""
    events: dict[str, list] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name, call in calls.items():
            if name == "eager" and number >= EAGER_ROUNDS:
                continue
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            if number >= 2:
                events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(s.elapsed_time(e) for s, e in pairs) for name, pairs in events.items()}
