"""A sample of the random models: right on the host, code for the GPU without ptxas. `random_models.py` runs any number."""

from __future__ import annotations

import pytest
import torch

from test.numerics.random_models import drawn, failure, unassembled
from test.numerics.recorded import Model, Recorder, shrunk


@pytest.mark.parametrize("seed", range(25))
def test_host(seed: int) -> None:
    assert failure(drawn(seed), "host") is None


@pytest.mark.parametrize("seed", range(25, 37))
def test_gpu_code(seed: int) -> None:
    with unassembled():
        assert failure(drawn(seed), "sm_90a") is None


def test_failures_are_shrunk() -> None:
    record = Recorder(0)
    x = record.input(3, 4)
    y = record("torch.exp", record("torch.tanh", record("torch.neg", x)))
    model = Model([record("torch.add", y, record("torch.sin", y)), x])
    wanted, got = (torch.tanh(-x.sample).exp() + torch.tanh(-x.sample).exp().sin(), model(*model.arguments)[0])
    assert torch.allclose(wanted, got)
    smaller = shrunk(model, lambda m: any(value.name == "torch.tanh" for value in m.calls))
    assert smaller.source() == "v0: input [3, 4] torch.float32\nv1 = torch.tanh(v0)\nreturn v1"
