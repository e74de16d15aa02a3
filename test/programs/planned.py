"""Small models in linalg, planned with tiles of the test's choosing: what the tests of the planning passes start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.edges import stage_space, stages_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.form_stages import FormStages
from kitsune_mlir.passes.materialize import Materialize
from kitsune_mlir.passes.normalize import Normalize
from kitsune_mlir.passes.place_buffers import PlaceBuffers
from kitsune_mlir.passes.synchronize import Synchronize

ID1, ID2 = "affine_map<(d0) -> (d0)>", "affine_map<(d0, d1) -> (d0, d1)>"


def parse(text: str) -> ir.Module:
    """A module in a context of its own."""
    context = new_context()
    with context, ir.Location.unknown():
        return ir.Module.parse(text)


def product(name: str, a: str, b: str, m: int, k: int, n: int) -> str:
    """%name = %a[m, k] x %b[k, n]."""
    return f"""
    %{name}_z = arith.constant 0.0 : f32
    %{name}_e = tensor.empty() : tensor<{m}x{n}xf32>
    %{name}_f = linalg.fill ins(%{name}_z : f32) outs(%{name}_e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
    %{name} = linalg.matmul ins(%{a}, %{b} : tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>)
        outs(%{name}_f : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>"""


MLP = f"""func.func @main(%x: tensor<10x6xf32>, %w1: tensor<6x9xf32>, %w2: tensor<9x9xf32>, %w3: tensor<9x6xf32>)
    -> (tensor<10x6xf32>, tensor<10x9xf32>) {{
  {product("a", "x", "w1", 10, 6, 9)}
  {product("b", "a", "w2", 10, 9, 9)}
  {product("c", "b", "w2", 10, 9, 9)}
  %d = arith.addf %a, %c : tensor<10x9xf32>
  {product("e", "d", "w3", 10, 9, 6)}
  {product("g", "c", "w2", 10, 9, 9)}
  {product("h", "e", "w1", 10, 6, 9)}
  {product("i", "h", "w3", 10, 9, 6)}
  return %i, %g : tensor<10x6xf32>, tensor<10x9xf32>
}}"""

CONVOLUTION = """func.func @main(%x: tensor<1x2x9x6xf32>, %w: tensor<3x2x3x3xf32>, %v: tensor<2x3x1x1xf32>)
    -> tensor<1x2x4x2xf32> {
  %z = arith.constant 0.0 : f32
  %n = arith.negf %x : tensor<1x2x9x6xf32>
  %e = tensor.empty() : tensor<1x3x7x4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x3x7x4xf32>) -> tensor<1x3x7x4xf32>
  %q = linalg.conv_2d_nchw_fchw {strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
      ins(%n, %w : tensor<1x2x9x6xf32>, tensor<3x2x3x3xf32>) outs(%f : tensor<1x3x7x4xf32>) -> tensor<1x3x7x4xf32>
  %r = math.absf %q : tensor<1x3x7x4xf32>
  %g = tensor.empty() : tensor<1x2x4x2xf32>
  %h = linalg.fill ins(%z : f32) outs(%g : tensor<1x2x4x2xf32>) -> tensor<1x2x4x2xf32>
  %o = linalg.conv_2d_nchw_fchw {strides = dense<2> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
      ins(%r, %v : tensor<1x3x7x4xf32>, tensor<2x3x1x1xf32>) outs(%h : tensor<1x2x4x2xf32>) -> tensor<1x2x4x2xf32>
  return %o : tensor<1x2x4x2xf32>
}"""

HEADS = f"""func.func @main(%x: tensor<7x8xf32>, %w: tensor<8x12xf32>, %i: tensor<5xi64>)
    -> (tensor<7x3x4xf32>, tensor<5x12xf32>) {{
  {product("h", "x", "w", 7, 8, 12)}
  %s = tensor.expand_shape %h [[0], [1, 2]] output_shape [7, 3, 4] : tensor<7x12xf32> into tensor<7x3x4xf32>
  %te = tensor.empty() : tensor<3x7x4xf32>
  %t = linalg.transpose ins(%s : tensor<7x3x4xf32>) outs(%te : tensor<3x7x4xf32>) permutation = [1, 0, 2]
  %me = tensor.empty() : tensor<3x7xf32>
  %z = arith.constant 0.0 : f32
  %mf = linalg.fill ins(%z : f32) outs(%me : tensor<3x7xf32>) -> tensor<3x7xf32>
  %m = linalg.reduce ins(%t : tensor<3x7x4xf32>) outs(%mf : tensor<3x7xf32>) dimensions = [2]
    (%a: f32, %b: f32) {{ %c = arith.addf %a, %b : f32  linalg.yield %c : f32 }}
  %se = tensor.empty() : tensor<7x3x4xf32>
  %o = linalg.generic {{indexing_maps = [affine_map<(i, h, k) -> (i, h, k)>, affine_map<(i, h, k) -> (h, i)>,
      affine_map<(i, h, k) -> (i, h, k)>], iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%s, %m : tensor<7x3x4xf32>, tensor<3x7xf32>) outs(%se : tensor<7x3x4xf32>) {{
  ^bb0(%a: f32, %b: f32, %c: f32):
    %d = arith.divf %a, %b : f32
    linalg.yield %d : f32
  }} -> tensor<7x3x4xf32>
  %ge = tensor.empty() : tensor<5x12xf32>
  %g = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i)>, {ID2}], iterator_types = ["parallel", "parallel"]}}
      ins(%i : tensor<5xi64>) outs(%ge : tensor<5x12xf32>) {{
  ^bb0(%a: i64, %b: f32):
    %r = arith.index_cast %a : i64 to index
    %c = linalg.index 1 : index
    %v = tensor.extract %h[%r, %c] : tensor<7x12xf32>
    linalg.yield %v : f32
  }} -> tensor<5x12xf32>
  return %o, %g : tensor<7x3x4xf32>, tensor<5x12xf32>
}}"""


def plan(text: str, tile: Callable[[int, list[int]], Sequence[int]], slack: int = 1) -> ir.Module:
    """The stage graph of a model for the GPU's rules, with tile sizes `tile(stage number, sizes of its dimensions)`."""
    module = parse(text)
    Normalize().run(module.operation)
    FormStages(target="h200").run(module.operation)
    with module.context, ir.Location.unknown():
        for pipeline in [op for op in walk(module.operation) if op.name == "kitsune.pipeline"]:
            for number, stage in enumerate(stages_of(pipeline)):
                sizes = [d.size for d in stage_space(stage).dims]
                stage.attributes["tile"] = ir.DenseI64ArrayAttr.get(list(tile(number, sizes)))
    PlaceBuffers(slack=slack).run(module.operation)
    Synchronize().run(module.operation)
    return module


def tile_program(text: str, tile: Callable[[int, list[int]], Sequence[int]], slack: int = 1) -> ir.Module:
    """The tile program of a model, planned as by `plan`."""
    module = plan(text, tile, slack)
    Materialize().run(module.operation)
    assert module.operation.verify()
    return module


def ragged(number: int, sizes: list[int]) -> list[int]:
    """Tiles of 3 or 4 rows and 4 or 5 columns, by turns: few of them divide their dimension."""
    return [min(n, (3 if d == 0 else 4) + number % 2) for d, n in enumerate(sizes)]


def rows(number: int, sizes: list[int]) -> list[int]:
    """Whole rows, 2 or 3 at a time."""
    return [min(sizes[0], 2 + number % 2), *sizes[1:]]


def image_rows(number: int, sizes: list[int]) -> list[int]:
    """Images [batch, channel, row, column] by two rows."""
    return [*sizes[:2], 2, *sizes[3:]]


# name -> (model, tile sizes, slack): waits of every policy, ragged tiles, reuse of the arena, several results, views.
CASES: dict[str, tuple[str, Callable[[int, list[int]], Sequence[int]], int]] = {
    "mlp": (MLP, ragged, 1),
    "mlp_rows": (MLP, rows, 0),
    "convolution": (CONVOLUTION, image_rows, 0),
    "heads": (HEADS, ragged, 0),
}
