"""Products of heads beside fused attention: the GPU's plan reads heads where they lie, and is right on the processor."""

import pytest
import torch

import kitsune_mlir
from test.emulators.runner import emulated
from test.gpu.unassembled import unassembled
from test.rotation import in_turn

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def scores(q, k):
    return q.transpose(1, 2) @ k.transpose(1, 2).transpose(2, 3)


def named_scores(q, k):
    return torch.einsum("bqhd,bkhd->bhqk", q, k)


def turned_twice(q, k):
    return torch.einsum("bhqk,bkhd->bqhd", torch.relu(torch.einsum("bqhd,bkhd->bhqk", q, k)), k)


def one_turned(q, k):
    return torch.tanh(q.transpose(1, 2) @ k.permute(0, 2, 3, 1).contiguous() * 0.1 + 1)


def joined(q, k):
    return torch.sigmoid((q.transpose(1, 2) @ k.permute(0, 2, 3, 1)).transpose(1, 2).flatten(2))


CASES = [
    (scores, (2, 24, 3, 16), (2, 40, 3, 16), BF16, 1),
    (named_scores, (2, 129, 2, 24), (2, 33, 2, 24), F16, 1),
    (turned_twice, (2, 40, 2, 32), (2, 48, 2, 32), BF16, 2),
    (joined, (2, 17, 4, 16), (2, 32, 4, 16), BF16, 1),
    (scores, (2, 24, 3, 20), (2, 40, 3, 20), F32, 1),
    (turned_twice, (1, 40, 2, 32), (1, 48, 2, 32), F16, 2),
    (one_turned, (2, 24, 3, 16), (2, 40, 3, 16), BF16, 1),
    (scores, (2, 24, 3, 20), (2, 40, 3, 20), BF16, 3),  # rows of 40 bytes, which TMA does not read
]


@pytest.mark.parametrize("function, q, k, dtype, stages", in_turn(CASES, 2))
def test_values(function, q, k, dtype, stages):
    torch.manual_seed(0)
    args = torch.randn(q).to(dtype), torch.randn(k).to(dtype)
    with unassembled():
        program = kitsune_mlir.compile(function, args, target="sm_90a")
    assert len(program.summary["stages"]) == stages
    assert sum(stage["engine"] == "mma" for stage in program.summary["stages"]) == 1 + (function is turned_twice)
    wanted, eager = function(*(x.double() for x in args)), function(*args)
    found = emulated(program)(*args)
    assert found.shape == wanted.shape
    own = (eager.double() - wanted).norm()
    assert (found.double() - wanted).norm() <= 2 * own + 1e-6 * wanted.norm()
