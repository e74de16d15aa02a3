"""Products of a batch of matrices with a vector each are sums of what is multiplied."""

import pytest
import torch
from torch import Tensor

from bench.sweeps import Function
from test.numerics.compare import exact, problems
from test.programs.compiled import planned, planned_for_gpu

SHAPES = {
    "bij,bj->bi": ((5, 7, 129), (5, 129)),
    "bij,bi->bj": ((5, 129, 7), (5, 129)),
    "bij,bij->bi": ((3, 1, 1000), (3, 1, 1000)),
    "bsk,sk->bs": ((9, 7, 33), (7, 33)),
    "abij,bj->abi": ((2, 3, 4, 9), (3, 9)),
}


@pytest.mark.rotated(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", SHAPES)
def test_against_float64(form: str, dtype: torch.dtype) -> None:
    args = tuple(torch.randn(shape).to(dtype) for shape in SHAPES[form])
    model = Function(lambda x, y: torch.einsum(form, x, y))
    program = planned_for_gpu(model, *args)
    assert problems(program(*args), exact(model, args), model(*args)) == []
    assert not any("product" in stage["ops"] for stage in program.summary["stages"])


def test_what_stays_a_product() -> None:
    """Without a batch, columns of 16-bit floats that come by bulk copies, and what is attention."""

    def several(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        pooled = torch.softmax(torch.einsum("bij,bj->bi", x, y), -1).unsqueeze(1) @ x
        return x[0] @ y[0], torch.einsum("bij,bi->bj", x, z), pooled

    args = torch.randn(64, 512, 128), torch.randn(64, 128), torch.randn(64, 512)
    program = planned(Function(several), *(a.to(torch.bfloat16) for a in args))
    engines = [stage["engine"] for stage in program.summary["stages"] if "product" in stage["ops"]]
    assert sorted(engines) == ["attention", "gemv", "mma"]
