"""Updates of large weights stay apart from the products that make their gradients, and nothing else does for that reason."""

from __future__ import annotations

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.passes.stages.large_updates import LARGE, updates_apart

PROGRAM = """
func.func @step(%x: tensor<64x{n}xf32>, %y: tensor<64x{n}xf32>, %w: tensor<{n}x{n}xf32>, %v: tensor<{n}x{n}xf32>)
    -> (tensor<{n}x{n}xf32> {{kitsune.mutates = 2 : i64}}) {{
  %e = tensor.empty() : tensor<{n}x{n}xf32>
  %r = linalg.generic {{indexing_maps = [affine_map<(m, n, k) -> (k, m)>, affine_map<(m, n, k) -> (k, n)>,
      affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %y : tensor<64x{n}xf32>, tensor<64x{n}xf32>) outs(%e : tensor<{n}x{n}xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %o, %m : f32
    linalg.yield %s : f32
  }} -> tensor<{n}x{n}xf32>
  %u = linalg.generic {{indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>,
      affine_map<(m, n) -> (m, n)>], iterator_types = ["parallel", "parallel"]}}
      ins(%r, %{read} : tensor<{n}x{n}xf32>, tensor<{n}x{n}xf32>) outs(%e : tensor<{n}x{n}xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  }} -> tensor<{n}x{n}xf32>
  return %u : tensor<{n}x{n}xf32>
}}
"""


@pytest.mark.parametrize(
    ("size", "read", "apart"), [(628, "w", True), (1000, "w", True), (627, "w", False), (628, "v", False), (129, "w", False)]
)
def test_what_stays_apart(size: int, read: str, apart: bool) -> None:
    """`v` is an argument that the program does not change."""
    assert 627**2 < LARGE <= 628**2
    with new_context():
        module = ir.Module.parse(PROGRAM.format(n=size, read=read))
        function = module.body.operations[0].operation
        product, update = [op.operation for op in function.regions[0].blocks[0] if op.operation.name == "linalg.generic"]
        assert (updates_apart([product], [update]) is not None) == apart
        assert updates_apart([update], [update]) is None and updates_apart([product], [product]) is None
