"""Models of more layers than Python has calls inside each other: no pass and no code generator follows them by recursion."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_launches
from kitsune_mlir.codegen.host.compile import compile_host
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.deep import Steps, evaluate, postorder
from kitsune_mlir.passes.registry import PIPELINE
from kitsune_mlir.passmanager.manager import run_pipeline

PLAN = PIPELINE[: PIPELINE.index("kitsune-materialize")]
SPARE = 130
"""Calls inside each other that the compiler has here beyond the test's own: fewer than a model has layers."""
LAYERS = 140

LINES = {
    "mlp": """
      %p{n} = linalg.matmul ins(%x{n}, %w : tensor<16x16xf32>, tensor<16x16xf32>)
        outs(%zero : tensor<16x16xf32>) -> tensor<16x16xf32>
      %h{n} = linalg.generic {{indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel"]}}
        ins(%p{n} : tensor<16x16xf32>) outs(%empty : tensor<16x16xf32>) {{
      ^bb0(%a: f32, %b: f32):
        %r = arith.maximumf %a, %c0 : f32
        linalg.yield %r : f32
      }} -> tensor<16x16xf32>
      %x{m} = linalg.generic {{indexing_maps = [#same, #same, #same], iterator_types = ["parallel", "parallel"]}}
        ins(%x{n}, %h{n} : tensor<16x16xf32>, tensor<16x16xf32>) outs(%empty : tensor<16x16xf32>) {{
      ^bb0(%a: f32, %b: f32, %c: f32):
        %r = arith.addf %a, %b : f32
        linalg.yield %r : f32
      }} -> tensor<16x16xf32>""",
    "softmax": """
      %top{n} = linalg.generic {{indexing_maps = [#same, #row], iterator_types = ["parallel", "reduction"]}}
        ins(%x{n} : tensor<16x16xf32>) outs(%least : tensor<16xf32>) {{
      ^bb0(%a: f32, %b: f32):
        %r = arith.maximumf %a, %b : f32
        linalg.yield %r : f32
      }} -> tensor<16xf32>
      %e{n} = linalg.generic {{indexing_maps = [#same, #row, #same], iterator_types = ["parallel", "parallel"]}}
        ins(%x{n}, %top{n} : tensor<16x16xf32>, tensor<16xf32>) outs(%empty : tensor<16x16xf32>) {{
      ^bb0(%a: f32, %b: f32, %c: f32):
        %d = arith.subf %a, %b : f32
        %r = math.exp %d : f32
        linalg.yield %r : f32
      }} -> tensor<16x16xf32>
      %sum{n} = linalg.generic {{indexing_maps = [#same, #row], iterator_types = ["parallel", "reduction"]}}
        ins(%e{n} : tensor<16x16xf32>) outs(%none : tensor<16xf32>) {{
      ^bb0(%a: f32, %b: f32):
        %r = arith.addf %a, %b : f32
        linalg.yield %r : f32
      }} -> tensor<16xf32>
      %s{n} = linalg.generic {{indexing_maps = [#same, #row, #same], iterator_types = ["parallel", "parallel"]}}
        ins(%e{n}, %sum{n} : tensor<16x16xf32>, tensor<16xf32>) outs(%empty : tensor<16x16xf32>) {{
      ^bb0(%a: f32, %b: f32, %c: f32):
        %r = arith.divf %a, %b : f32
        linalg.yield %r : f32
      }} -> tensor<16x16xf32>
      %x{m} = linalg.matmul ins(%s{n}, %x{n} : tensor<16x16xf32>, tensor<16x16xf32>)
        outs(%zero : tensor<16x16xf32>) -> tensor<16x16xf32>""",
    "elementwise": """
      %y{n} = linalg.generic {{indexing_maps = [#same, #same], iterator_types = ["parallel", "parallel"]}}
        ins(%x{n} : tensor<16x16xf32>) outs(%empty : tensor<16x16xf32>) {{
      ^bb0(%a: f32, %b: f32):
        %r = math.absf %a : f32
        linalg.yield %r : f32
      }} -> tensor<16x16xf32>
      %x{m} = linalg.generic {{indexing_maps = [#same, #same, #same], iterator_types = ["parallel", "parallel"]}}
        ins(%x{n}, %y{n} : tensor<16x16xf32>, tensor<16x16xf32>) outs(%empty : tensor<16x16xf32>) {{
      ^bb0(%a: f32, %b: f32, %c: f32):
        %p = arith.mulf %b, %b : f32
        %r = arith.subf %p, %a : f32
        linalg.yield %r : f32
      }} -> tensor<16x16xf32>""",
    "concat": """
      %l{n} = tensor.extract_slice %x{n}[0, 0] [16, 8] [1, 1] : tensor<16x16xf32> to tensor<16x8xf32>
      %r{n} = tensor.extract_slice %x{n}[0, 8] [16, 8] [1, 1] : tensor<16x16xf32> to tensor<16x8xf32>
      %x{m} = tensor.concat dim(1) %r{n}, %l{n} : (tensor<16x8xf32>, tensor<16x8xf32>) -> tensor<16x16xf32>""",
    "gather": """
      %x{m} = linalg.generic {{indexing_maps = [#row, #same], iterator_types = ["parallel", "parallel"]}}
        ins(%i : tensor<16xi64>) outs(%empty : tensor<16x16xf32>) {{
      ^bb0(%a: i64, %b: f32):
        %p = arith.index_cast %a : i64 to index
        %q = linalg.index 1 : index
        %r = tensor.extract %x{n}[%p, %q] : tensor<16x16xf32>
        linalg.yield %r : f32
      }} -> tensor<16x16xf32>""",
}
HEAD = """
#same = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
module {
  func.func @main(%x0: tensor<16x16xf32>, %w: tensor<16x16xf32>, %i: tensor<16xi64>) -> tensor<16x16xf32> {
      %c0 = arith.constant 0.0 : f32
      %low = arith.constant 0xFF800000 : f32
      %empty = tensor.empty() : tensor<16x16xf32>
      %zero = linalg.fill ins(%c0 : f32) outs(%empty : tensor<16x16xf32>) -> tensor<16x16xf32>
      %thin = tensor.empty() : tensor<16xf32>
      %none = linalg.fill ins(%c0 : f32) outs(%thin : tensor<16xf32>) -> tensor<16xf32>
      %least = linalg.fill ins(%low : f32) outs(%thin : tensor<16xf32>) -> tensor<16xf32>"""


def model(kind: str, layers: int) -> ir.Module:
    """A model of one kind of layer."""
    body = "".join(LINES[kind].format(n=n, m=n + 1) for n in range(layers))
    return ir.Module.parse(f"{HEAD}{body}\n      return %x{layers} : tensor<16x16xf32>\n  }}\n}}", new_context())


@contextmanager
def few_calls() -> Iterator[None]:
    """Python's limit of calls inside each other, so low that recursion along the layers shows."""
    limit, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + SPARE)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def run(module: ir.Module, names: list[str], target: str) -> None:
    run_pipeline(module, f"builtin.module({','.join(names)})", target=target, reproducer_dir=False)


@pytest.mark.rotated(4)
@pytest.mark.parametrize("target", ["host", "sm_90a"])
@pytest.mark.parametrize("kind", LINES)
def test_many_layers_are_planned(kind: str, target: str) -> None:
    run(model(kind, 1), PLAN, target)  # modules are imported, patterns compiled
    module = model(kind, LAYERS)
    with few_calls():
        run(module, PLAN, target)
    # Of at most 128 operations each, of which these layers have three or five.
    assert str(module).count('"kitsune.stage"') >= (3 if kind in ("mlp", "softmax") else 1)


@pytest.mark.rotated(2)
@pytest.mark.parametrize("kind", LINES)
def test_code_of_many_layers(kind: str) -> None:
    generate(model(kind, 1))
    with few_calls():
        generate(model(kind, 25 if kind in ("mlp", "softmax") else 60))  # many stages, or one of many ops


def generate(layers: ir.Module) -> None:
    """Code for both targets."""
    module = ir.Module.parse(str(layers), layers.context)
    run(module, PIPELINE, "sm_90a")
    assert all(code.ptx for code in compile_launches(module, "main_p0"))
    run(layers, PIPELINE, "host")
    assert compile_host(layers, "main_p0").llvm_ir


@given(st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=30))
def test_postorder_is_that_of_the_recursion(edges: list[list[int]]) -> None:
    below = [[node for node in found if node < number] for number, found in enumerate(edges)]
    expected: list[int] = []

    def visit(node: int) -> None:
        if node not in expected:
            for lower in below[node]:
                visit(lower)
            expected.append(node)

    visit(len(below) - 1)
    assert list(postorder([len(below) - 1], below.__getitem__)) == expected


def test_computations_wait_for_others_without_calls() -> None:
    def count(number: int) -> Steps[int]:
        if number == 0:
            return 0
        one, zero = yield [count(number - 1), none()]
        return one + 1 + zero

    def none() -> Steps[int]:
        return 0
        yield

    assert evaluate(count(10 * sys.getrecursionlimit())) == 10 * sys.getrecursionlimit()


def test_errors_go_through_the_computations_that_wait() -> None:
    def fails() -> Steps[int]:
        raise ValueError("below")
        yield

    def caught() -> Steps[str]:
        try:
            yield fails()
        except ValueError as error:
            return str(error)
        return "nothing"

    def through() -> Steps[str]:
        return (yield fails())

    assert evaluate(caught()) == "below"
    with pytest.raises(ValueError, match="below"):
        evaluate(through())
