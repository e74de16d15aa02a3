"""The zoo: every model builds, runs in torch with outputs of order one, and imports to what torch computes."""

from __future__ import annotations

import time

import pytest
import torch

from bench.models import ZOO, Case, cases, make
from kitsune_mlir.frontend import import_model
from test.oracles.upstream import run
from test.rotation import in_turn

DTYPES = [torch.float32, torch.bfloat16]


def outputs(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.rotated(6)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ZOO)
def test_small_model_imports_and_computes_what_torch_does(name, dtype):
    model, args = make(name, "small", dtype)
    imported = import_model(model, args)
    printed = str(imported.module)
    assert "dense_resource" not in printed
    assert "?x" not in printed and "x?" not in printed
    assert "f64" not in printed
    assert "cf.assert" not in printed

    actual = outputs(run(imported, args)[0])
    exact = outputs(model.double()(*[a.double() if a.is_floating_point() else a for a in args]))
    for a, e in zip(actual, exact, strict=True):
        assert a.dtype == dtype
        error = (a.double() - e).abs().max() / e.abs().max()
        assert error <= (1e-5 if dtype is torch.float32 else 2e-2)


@pytest.mark.parametrize("name", ZOO)
def test_small_model_is_quick_and_of_order_one(name):
    model, args = make(name, "small", torch.float32)
    start = time.thread_time()  # other work on the machine does not count
    with torch.no_grad():
        results = outputs(model(*args))
    assert time.thread_time() - start < 1
    for result in results:
        assert torch.isfinite(result).all()
        assert 0.05 < result.std() < 5


def test_small_sizes_are_odd():
    rows = {name: make(name, "small", torch.float32)[1][0].shape for name in ZOO}
    assert sum(any(size % 2 for size in shape[:-1]) for shape in rows.values()) >= 8


def test_seeds():
    model, args = make("stitch", "small", seed=1)
    again, same = make("stitch", "small", seed=1)
    other, different = make("stitch", "small", seed=2)
    assert torch.equal(args[0], same[0]) and not torch.equal(args[0], different[0])
    assert torch.equal(model.b, again.b) and not torch.equal(model.b, other.b)


def test_numbers_can_be_replaced():
    _, args = make("llama8b_tok", "small", batch=5)
    assert args[0].shape[0] == args[1].shape[0] == 5
    with pytest.raises(ValueError, match="no number 'rows'"):
        make("llama8b_tok", "small", rows=5)
    with pytest.raises(ValueError, match="medium"):
        make("nerf", "medium")


def test_cases_are_independent():
    built = {case.name: case for case in cases("small", torch.float32)}
    assert list(built) == list(ZOO)
    assert all(isinstance(case, Case) for case in built.values())
    assert built["stitch"].build()[1][0].shape == (129, 96)


def test_full_sizes_are_those_of_the_targets():
    full = {name: spec.full for name, spec in ZOO.items()}
    assert full["nerf"]["rows"] == 262_144 and full["nerf"]["width"] == 256
    assert (full["dlrm"]["tables"], full["dlrm"]["table_rows"], full["dlrm"]["width"]) == (26, 100_000, 128)
    assert (full["mgn"]["nodes"], full["mgn"]["edges"]) == (20_000, 120_000)
    assert (full["gcast"]["nodes"], full["gcast"]["edges"], full["gcast"]["width"]) == (10_242, 61_440, 512)
    assert full["llama8b_tok"]["cached"] == 1024 and full["llama_prefill"]["tokens"] == 128


@pytest.mark.parametrize("name", in_turn([*ZOO], 2))
def test_full_model_imports(name):
    model, args = make(name)
    imported = import_model(model, args)
    assert len(str(imported.module)) < 1_000_000
