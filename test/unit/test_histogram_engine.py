"""The histogram engine: which reductions it takes, and its kernels on emulated blocks."""

import pytest
import torch

from kitsune_mlir.frontend.histograms import LEAST_PART, PARTS
from test.programs.emulated import compiled, emulated, engines

BF16, F32 = torch.bfloat16, torch.float32


def check(x, bins, low, high, blocks=3):
    program = compiled(lambda x: torch.histc(x, bins, low, high), [x])
    exact = torch.histc(x.double(), bins, low, high)
    (found,) = emulated(program, [x], [exact.to(x.dtype)], blocks)
    assert torch.equal(found.double(), exact), (found, exact)
    return program


@pytest.mark.rotated(3)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("shape", [(7,), (129,), (1000,), (13, 77)])
def test_short_rows_are_one_stage(shape, dtype):
    torch.manual_seed(0)
    x = torch.randint(-40, 40, shape).to(dtype) / 8  # equal in all types, some outside
    found = engines(check(x, 16, -4.0, 4.0))
    assert found == ["histogram"] or (len(shape) > 1 and found == ["simt", "histogram"])  # what is reshaped is converted before


@pytest.mark.parametrize("extra", [0, 1, 4001])
def test_long_ones_are_counted_in_parts(extra):
    torch.manual_seed(extra)
    x = torch.randint(-40, 40, (3 * LEAST_PART + extra,)).float() / 8
    x[::1000] = float("nan")
    program = check(x, 64, -3.0, 3.0)
    assert "histogram" in engines(program) and "generic" not in engines(program) and "scatter" not in engines(program)
    assert len(engines(program)) <= 4


def test_all_in_one_bin():
    """16 bits of a thread's counter hold what comes to one thread."""
    assert LEAST_PART // 256 < 1 << 16 and PARTS * 256 * ((1 << 16) - 1) >= 1 << 32
    check(torch.ones(2 * LEAST_PART + 5), 3, 0.0, 3.0)


def test_many_bins_are_added_to_copies_in_memory():
    program = compiled(lambda x: torch.histc(x, 1000, -3.0, 3.0), [torch.randn(5000)])
    assert "histogram" not in engines(program) and "scatter" in engines(program)


def test_other_reductions_are_not_its():
    """What compares with another number than the result's, and what adds up more than ones."""
    for function in (
        lambda x: (x.unsqueeze(0) == torch.arange(5).unsqueeze(1) + 1.5).sum(-1),
        lambda x: torch.where(x.unsqueeze(0).long() == torch.arange(5).unsqueeze(1), x, 0.0).sum(-1),
        lambda x: (x.unsqueeze(0).long() <= torch.arange(5).unsqueeze(1)).sum(-1),
    ):
        assert "histogram" not in engines(compiled(function, [torch.randn(3000)]))
