"""Sines and cosines without a branch."""

import mpmath
import numpy as np
import pytest
import torch
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit import sine as emitted
from kitsune_mlir.codegen.gpu.emit.control_flow import for_, thread_id
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from test.emulators.native import run_natively
from test.gpu.simt_cases import Case, rows
from test.unit.test_simt_engine import check
from test.unit.test_simt_math import ptx_of


def on_device(function, values: np.ndarray) -> np.ndarray:
    with ir.Context(), ir.Location.unknown():
        kernel = Kernel("k", ["pointer", "pointer"], 32)
        with kernel.body() as (x, y):
            for_(thread_id(), len(values), 32, lambda n: store(function(load(offset(x, n * 4), "f32")), offset(y, n * 4)))
        result = np.zeros_like(values)
        run_natively(kernel, [values, result])
    return result


def numbers(count: int = 20000) -> np.ndarray:
    random = np.random.default_rng()
    any_bits = random.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    turns = (np.arange(-1000, 1000) * np.pi / 2).astype(np.float32)
    special = np.array([0.0, -0.0, 2.0**-8, -(2.0**-8), 1e-45, 3.4e38, -3.4e38, 16367173 * 2.0**72], np.float32)
    return np.concatenate([any_bits[np.isfinite(any_bits)], random.normal(0, 30, count).astype(np.float32), turns, special])


@pytest.mark.parametrize("name", ["sine", "cosine"])
def test_all_numbers(name):
    values = numbers()
    got = on_device(getattr(emitted, name), values).astype(np.float64)
    exact = (np.sin if name == "sine" else np.cos)(values.astype(np.float64))
    assert (np.abs(got - exact) <= 3e-6 * np.abs(exact) + 1.5e-9).all()


@pytest.mark.parametrize("name", ["sine", "cosine"])
def test_what_is_not_finite_is_nan(name):
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert np.isnan(on_device(getattr(emitted, name), values)).all()


def test_zeros_keep_their_sign():
    got = on_device(emitted.sine, np.array([0.0, -0.0], np.float32))
    assert not got.any() and np.signbit(got).tolist() == [False, True]


def test_the_table_is_of_turns():
    with mpmath.workprec(400):
        for exponent, entry in enumerate(emitted.turn_table()[:-1]):
            part = mpmath.ldexp(1, exponent - 127 - 23) / (2 * mpmath.pi)
            assert abs(entry - mpmath.ldexp(part - mpmath.floor(part), 64)) <= 1


@pytest.mark.parametrize("run", [torch.sin, lambda x: torch.cos(x) * torch.sin(x)])
def test_where_results_are_16_bits_and_only_there(run):
    assert "kitsune_turns" in ptx_of(run, rows("bf16", 64, 64))
    assert "kitsune_turns" not in ptx_of(run, rows("f32", 64, 64))
    check(Case(run, (rows("bf16", 7, 1000),)))
