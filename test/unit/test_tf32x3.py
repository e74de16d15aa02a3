"""f32 numbers as sums of two tf32 numbers."""

import numpy as np
import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.contraction.tf32x3 import write_parts
from kitsune_mlir.codegen.gpu.emit.control_flow import thread_id
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from test.emulators.native import run_natively

THREADS = 32


def as_tensor_cores_read(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint32) & 0xFFFFE000).view(np.float32)


@pytest.mark.parametrize("count", [4, 128, 4 * THREADS * 8, 4 * THREADS * 9 + 4])
def test_parts_give_numbers_back(count):
    random = np.random.default_rng(count)
    values = random.standard_normal(count).astype(np.float32) * np.exp2(random.integers(-60, 60, count)).astype(np.float32)
    with ir.Context(), ir.Location.unknown():
        kernel = Kernel("k", ["pointer"], THREADS)
        with kernel.body() as (place,):
            write_parts(place, 4 * count, thread_id(), THREADS)
        memory = np.concatenate([values, np.full(count + 64, np.nan, np.float32)])
        run_natively(kernel, [memory])
    upper, rest = memory[:count], memory[count : 2 * count]
    assert np.isnan(memory[2 * count :]).all()
    assert np.array_equal(upper, as_tensor_cores_read(upper))  # rounded, so that nothing is cut off
    assert np.array_equal(upper.astype(np.float64) + rest, values)
    assert (np.abs(rest) <= np.abs(values) * 2.0**-11).all()
    seen = upper.astype(np.float64) + as_tensor_cores_read(rest)
    assert (np.abs(seen - values) <= np.abs(values) * 2.0**-21).all()


def test_what_is_no_number_stays_so():
    values = np.array([np.nan, np.inf, -np.inf, 0, 0, 0, 0, 0], np.float32)
    values.view(np.uint32)[3:5] = 0x7FFFFFFF, 0xFFFFFFFF  # the bits of a GPU's NaN are all ones
    with ir.Context(), ir.Location.unknown():
        kernel = Kernel("k", ["pointer"], THREADS)
        with kernel.body() as (place,):
            write_parts(place, values.nbytes, thread_id(), THREADS)
        memory = np.concatenate([values, np.zeros_like(values)])
        run_natively(kernel, [memory])
    sums = memory[: len(values)] + memory[len(values) :]
    assert np.isnan(sums[:5]).all() and not sums[5:].any()
