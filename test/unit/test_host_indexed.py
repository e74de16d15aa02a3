"""The host target: tile programs that read and add by index, and what happens when an index or an assertion is wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.host_executor import HostExecutor
from test.programs.compiled import planned_for_gpu
from test.programs.host import (
    RNG,
    Rows,
    Stage,
    compile_text,
    elementwise,
    normal,
    run_code,
    tensor,
)

GATHER = """%c = tensor.empty() : tensor<{n}x{w}xf32>
%r = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
    iterator_types = ["parallel", "parallel"]}}
  ins(%idx : tensor<{n}xi64>) outs(%c : tensor<{n}x{w}xf32>) {{
^bb0(%k: i64, %o: f32):
  %row = arith.index_cast %k : i64 to index
  %j = linalg.index 1 : index
  %v = tensor.extract %table[%row, %j] : tensor<{rows}x{w}xf32>
  linalg.yield %v : f32
}} -> tensor<{n}x{w}xf32>
"""


def gather_program(n: int, rows: int, w: int) -> Rows:
    stage = Stage("gather", "y", n, GATHER.format(n=n, w=w, rows=rows), tiled=("idx",), whole=("table",))
    return Rows({"table": ((rows, w), "f32"), "idx": ((n,), "i64")}, {"y": ((n, w), "f32")}, [stage])


def test_gather_and_index_out_of_range():
    table, index = normal(10, 21), RNG.integers(0, 10, 33)
    executor = HostExecutor(gather_program(33, 10, 21).compile())
    got = np.zeros((33, 21), np.float32)
    run_code(executor, [table, index], [got])
    assert (got == table[index]).all()
    for wrong in (10, -1, 1 << 40):
        bad = index.copy()
        bad[20] = wrong
        with pytest.raises(KitsuneError, match="index out of range for a dimension of size 10"):
            run_code(executor, [table, bad], [got])
    run_code(executor, [table, index], [got])  # an error leaves nothing behind
    assert (got == table[index]).all()


def test_what_is_read_by_index_is_whole_before():
    """Passes over the same rows share a loop only where each reads its own row of what another writes."""

    class Turned(torch.nn.Module):
        def forward(self, x):
            return torch.flip(torch.flip(torch.relu(x), (1,)), (3,))

    x = torch.randn(3, 33, 8, 9).contiguous(memory_format=torch.channels_last)
    assert torch.equal(planned_for_gpu(Turned(), x)(x), Turned()(x))


def test_a_failed_assertion_stops_tiles_that_wait():
    body = elementwise(
        "r", (4, 8), [("x", tensor((4, 8)), "d0, d1")],
        "%big = arith.constant 100.0 : f32\n%ok = arith.cmpf olt, %a0, %big : f32\n"
        'cf.assert %ok, "x must be below 100"\nlinalg.yield %a0 : f32',
    )  # fmt: skip
    copy = elementwise("r", (4, 8), [("h", tensor((4, 8)), "d0, d1")], "linalg.yield %a0 : f32")
    shape = ((32, 8), "f32")
    stages = [
        Stage("check", "h", 4, body, tiled=("x",)),
        Stage("copy", "y", 4, copy, tiled=("h",), after=("check",), wait_all=True),
    ]
    executor = HostExecutor(Rows({"x": shape}, {"y": shape}, stages, {"h": shape}).compile(), threads=2)
    x = normal(32, 8)
    for wrong in (None, (0, 0), (17, 7), (31, 3), None):
        z = x.copy()
        y = np.zeros_like(x)
        if wrong is None:
            run_code(executor, [z], [y])
            assert (y == x).all()
        else:
            z[wrong] = 100
            with pytest.raises(KitsuneError, match="x must be below 100"):
                run_code(executor, [z], [y])


def test_atomic_accumulation():
    """Scatter-add from many tiles into the same rows, as a task that accumulates: `memref.atomic_rmw` in loops."""
    text = """func.func @program(%src: memref<64x9xf32>, %idx: memref<64xi64>, %out: memref<5x9xf32>, %count: memref<5xbf16>,
    %arena: memref<256xi8>) attributes {kitsune.program} {
  "kitsune.task"() ({
  ^bb0(%i: index):
    %c4 = arith.constant 4 : index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c9 = arith.constant 9 : index
    %one = arith.constant 1.0 : bf16
    %lo = arith.muli %i, %c4 : index
    %hi = arith.addi %lo, %c4 : index
    scf.for %e = %lo to %hi step %c1 {
      %k = memref.load %idx[%e] : memref<64xi64>
      %row = arith.index_cast %k : i64 to index
      scf.parallel (%j) = (%c0) to (%c9) step (%c1) {
        %v = memref.load %src[%e, %j] : memref<64x9xf32>
        %old = memref.atomic_rmw addf %v, %out[%row, %j] : (f32, memref<5x9xf32>) -> f32
        scf.reduce
      }
      %before = memref.generic_atomic_rmw %count[%row] : memref<5xbf16> {
      ^bb0(%n: bf16):
        %m = arith.addf %n, %one : bf16
        memref.atomic_yield %m : bf16
      }
    }
    "kitsune.yield"() : () -> ()
  }) {sym_name = "scatter", grid = array<i64: 16>, engine = "generic"} : () -> ()
  return
}"""
    src, idx = normal(64, 9), RNG.integers(0, 5, 64)
    out, count = np.zeros((5, 9), np.float32), np.zeros(5, ml_dtypes.bfloat16)
    executor = HostExecutor(compile_text(text), threads=2)
    for _ in range(20):
        out[:], count[:] = 0, 0
        run_code(executor, [src, idx], [out, count])
        want = np.zeros((5, 9))
        np.add.at(want, idx, src)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
        assert (count.astype(int) == np.bincount(idx, minlength=5)).all()
    with pytest.raises(KitsuneError, match="index out of range"):
        run_code(executor, [src, np.full(64, 5)], [out, count])
