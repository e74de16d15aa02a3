"""Places of extremes, volumes that are pooled, histograms, distances and bilinear layers, against torch in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.frontend.histograms import HISTOGRAMS
from test.gpu.unassembled import unassembled
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

FORMS: dict[str, Callable[[Tensor], Any]] = {
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "argmax of all, kept": lambda x: torch.argmax(x, None, True),
    "argmax of rows": lambda x: x.argmax(-1),
    "argmin of columns": lambda x: x.argmin(0, keepdim=True),
    "max": lambda x: x.max(-1),
    "min": lambda x: x.min(1, keepdim=True),
    "max in between": lambda x: x.reshape(3, -1, x.shape[1]).max(1),
}
SHAPES = [(9, 7), (3, 129), (129, 1000), (6, 1)]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.float64]
CASES = list(itertools.product(FORMS, SHAPES, DTYPES, (False, True)))


def by_both(function: Callable[..., Any], args: tuple[Tensor, ...]) -> list[Any]:
    """Results of the host's program, and of the one that was planned for a GPU."""
    model = Function(function)
    return [kitsune_mlir.compile(model, args, target="host")(*args), planned_for_gpu(model, *args)(*args)]


@pytest.mark.parametrize("form, shape, dtype, odd", in_turn(CASES, 4), ids=str)
def test_the_first_of_the_most_extreme(form: str, shape: tuple[int, ...], dtype: torch.dtype, odd: bool) -> None:
    """Ties and NaN: the first one counts, and NaN is more than anything."""
    torch.manual_seed(sum(shape))
    x = (3 * torch.randn(shape, dtype=torch.float64)).round().to(dtype)  # many equal ones
    if odd and dtype.is_floating_point:
        x.view(-1)[x.numel() // 2] = float("nan")
        x.view(-1)[0] = float("-inf")
    wanted = FORMS[form](x)
    for found in by_both(FORMS[form], (x,)):
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        for one, other in pairs:
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


OTHERS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "boxes": (lambda x: F.max_pool3d(x, 2), ((2, 3, 6, 9, 7),)),
    "boxes that overlap": (lambda x: F.max_pool3d(x, 3, 1, 1), ((1, 3, 5, 9, 7),)),
    "boxes of other sizes": (lambda x: F.max_pool3d(x, (1, 3, 2), (2, 1, 3), (0, 1, 1)), ((2, 5, 9, 7, 6),)),
    "boxes apart": (lambda x: F.max_pool3d(x, 2, 1, 1, dilation=2), ((1, 2, 6, 8, 7),)),
    "boxes beyond the end": (lambda x: F.max_pool3d(x, 2, 2, ceil_mode=True), ((1, 2, 5, 9, 7),)),
    "boxes without a batch": (lambda x: F.max_pool3d(x, 2), ((3, 6, 9, 7),)),
    "equal boxes": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), ((2, 3, 4, 9, 7),)),
    "unequal boxes": (lambda x: F.adaptive_avg_pool3d(x, (3, 2, 2)), ((1, 3, 4, 9, 7),)),
    "uneven windows": (lambda x: F.adaptive_max_pool2d(x, 5), ((2, 3, 13, 11),)),
    "even windows": (lambda x: F.adaptive_max_pool2d(x, (4, 3)), ((3, 8, 9),)),
    "more windows than elements": (lambda x: F.adaptive_max_pool2d(x, (5, 7)), ((1, 2, 3, 4),)),
    "places in windows": (lambda x: F.adaptive_max_pool2d(x.round(), (4, 3), return_indices=True)[1], ((2, 13, 11),)),
    "windows of lines": (lambda x: F.adaptive_max_pool1d(x, 5), ((2, 3, 13),)),
    "distance": (F.pairwise_distance, ((9, 129), (9, 129))),
    "distance of 1": (lambda x, y: F.pairwise_distance(x, y, 1.0, keepdim=True), ((9, 7), (9, 7))),
    "norm of all": (lambda x: torch.ops.aten.norm.Scalar(x, 3), ((9, 7),)),
    "norm of columns": (lambda x: torch.ops.aten.norm.ScalarOpt_dim(x, None, [0], True), ((9, 7),)),
    "histogram": (lambda x: torch.histc(x, 10, -1.0, 2.0), ((129, 70),)),
    "histogram of its own range": (lambda x: torch.histc(x, 7), ((1000,),)),
    "histogram of no range": (lambda x: torch.histc(x, 7, 0.5, 0.5), ((1000,),)),
    "bilinear": (lambda x, y, w, b: F.bilinear(x, y, w, b), ((9, 7), (9, 5), (3, 7, 5), (3,))),
    "bilinear of more": (lambda x, y, w: F.bilinear(x, y, w), ((2, 4, 8), (2, 4, 16), (24, 8, 16))),
}


@pytest.mark.parametrize("name", in_turn([*OTHERS], 4))
def test_against_float64(name: str) -> None:
    function, shapes = OTHERS[name]
    torch.manual_seed(0)
    args = tuple(torch.randn(shape) for shape in shapes)
    wanted = function(*(a.double() for a in args))
    for found in by_both(function, args):
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limits", [(0, 0), (-20, 30), (5, 5)])
def test_a_histogram_of_integers(limits: tuple[int, int]) -> None:
    """Which PyTorch has on GPUs alone."""
    x = torch.randint(-50, 50, (129, 7), dtype=torch.int32)
    found = HISTOGRAMS[torch.ops.aten.histc.default](x, 10, *limits)
    assert found.dtype == torch.int32
    torch.testing.assert_close(found.double(), torch.histc(x.double(), 10, *limits))


@pytest.mark.rotated(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_all_blocks_have_a_part(dtype: torch.dtype) -> None:
    """Of what one block, or the engine that takes anything, had before."""

    def every(x: Tensor, volume: Tensor, a: Tensor, b: Tensor) -> Any:
        pooled = F.max_pool3d(volume, 3, 1, 1), F.adaptive_avg_pool3d(volume, 4)
        return x.argmax(), x.argmax(-1), x.min(0), *pooled, F.pairwise_distance(a, b)

    shapes = ((1001, 4000), (2, 16, 16, 32, 32), (5000, 129), (5000, 129))
    with unassembled():
        program = kitsune_mlir.compile(Function(every), tuple(torch.randn(s).to(dtype) for s in shapes), target="h200")
        layer = nn.Bilinear(64, 64, 64, dtype=dtype)
        product = kitsune_mlir.compile(layer, (torch.randn(4096, 64).to(dtype),) * 2, target="h200")
    assert not program.summary["slow"] and "generic" not in {e["engine"] for e in program.summary["engines"]}
    assert "mma" in {engine["engine"] for engine in product.summary["engines"]}


PAIRS: dict[str, Callable[..., Any]] = {
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "at least": lambda x, y: x.clamp(min=0.5),
    "at most": lambda x, y: x.clamp(max=0.5),
    "between numbers": lambda x, y: x.clamp(-1, 0.5),
    "between tensors": lambda x, y: torch.clamp(y, x, x + 1),
    "between tensors of other types": lambda x, y: torch.clamp(y, x.float(), x.double() + 1),
    "relu6": lambda x, y: F.relu6(x),
    "hardswish": lambda x, y: F.hardswish(x),
    "threshold": lambda x, y: F.threshold(x, 0.3, 0.3),
    "chosen by hand": lambda x, y: torch.where(x > y, x, y),
    "normalize": lambda x, y: F.normalize(x, dim=-1),
    "hypot": torch.hypot,
}


@pytest.mark.parametrize(
    ("form", "dtype"), in_turn([*itertools.product(PAIRS, [torch.float32, torch.bfloat16, torch.float64])], 5), ids=str
)
def test_the_larger_of_two_where_one_is_no_number(form: str, dtype: torch.dtype) -> None:
    """NaN stays NaN as in PyTorch, on either side, and infinities what they are."""
    some = torch.tensor([0.0, -0.0, 0.3, 0.5, -2, 3, 1e-30, 1e30, float("inf"), -float("inf"), float("nan")]).to(dtype)
    args = tuple(part.contiguous() for part in torch.broadcast_tensors(some[:, None], some[None]))
    wanted = PAIRS[form](*args)
    for found in by_both(PAIRS[form], args):
        torch.testing.assert_close(found, wanted, equal_nan=True)
