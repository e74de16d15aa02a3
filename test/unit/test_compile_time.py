"""Compile time grows with a model's layers, and no faster: counted in calls of Python functions, as clocks are shared."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch
from torch import nn
from torch_mlir import ir

import kitsune_mlir
import kitsune_mlir.dialects
import kitsune_mlir.passes
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.edges import stage_space
from kitsune_mlir.passes.reductions.sibling_sums import join_siblings
from test.gpu.unassembled import unassembled

DEPTHS = (2, 4, 8)
OURS = tuple(str(Path(module.__file__).parent) for module in (kitsune_mlir, kitsune_mlir.dialects, kitsune_mlir.passes))
TOLERATED = 0.01
"""Of all calls, that may be more than layers account for."""


class Layers(nn.Module):
    """Residual layers that are several stages each, and a launch for each stage."""

    def __init__(self, depth: int, width: int = 1024):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.wide = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.narrow = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, wide, narrow in zip(self.norms, self.wide, self.narrow, strict=True):
            x = x + narrow(torch.nn.functional.gelu(wide(norm(x))))
        return x


@contextmanager
def counted() -> Iterator[Counter[CodeType]]:
    """How often each function of this project is called inside."""
    calls: Counter[CodeType] = Counter()

    def see(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[frame.f_code] += 1

    sys.setprofile(see)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def calls_of(depth: int) -> tuple[Counter[CodeType], int]:
    """How often each function of this project is called to compile so many layers; the launches."""
    model = Layers(depth).bfloat16().eval()
    args = (torch.randn(256, 1024, dtype=torch.bfloat16),)
    with torch.no_grad(), unassembled(), counted() as calls:
        program = kitsune_mlir.compile(model, args, target="sm_90a", options={"cache": False, "schedule": "separate"})
    return calls, program.summary["launches"]


def excess(few: Counter[CodeType], more: Counter[CodeType], many: Counter[CodeType]) -> dict[str, int]:
    """Calls beyond those that a line through the first two has at the third: of `DEPTHS`, each twice the one before."""
    found = {code: count - more[code] - 2 * (more[code] - few[code]) for code, count in many.items()}
    return {f"{code.co_qualname} of {code.co_filename}": extra for code, extra in found.items() if extra > 0}


@pytest.mark.slow
def test_calls_grow_no_faster_than_layers():
    counted = [calls_of(depth) for depth in DEPTHS]
    assert [launches for _, launches in counted] == [3 * depth for depth in DEPTHS]
    extra = excess(*(calls for calls, _ in counted))
    total = counted[-1][0].total()
    most = sorted(extra.items(), key=lambda item: -item[1])[:5]
    assert total > 70_000
    assert sum(extra.values()) < TOLERATED * total, most
    # A stage's loops are found once by the scheduling passes, once more of the copy that is lowered, and once for the summary.
    calls, stages = counted[-1]
    assert 2 * stages <= calls[stage_space.__wrapped__.__code__] <= 3 * stages


def test_what_grows_with_the_square_of_layers_is_seen():
    def quadratic(n: int) -> int:
        return sum(1 for _ in range(n) for _ in range(n))

    code = quadratic.__code__
    assert excess(*(Counter({code: 10 + 7 * n}) for n in DEPTHS)) == {}
    (extra,) = excess(*(Counter({code: n * n}) for n in DEPTHS)).values()
    few, more, many = DEPTHS
    assert extra == many**2 - more**2 - 2 * (more**2 - few**2)


SIBLINGS = """
  %a{n} = linalg.generic {{indexing_maps = [#all, #columns], iterator_types = ["parallel", "reduction"]}}
    ins(%x{n} : tensor<4096x256xf32>) outs(%zero : tensor<256xf32>) {{
  ^bb0(%p: f32, %q: f32):
    %r = arith.addf %p, %q : f32
    linalg.yield %r : f32
  }} -> tensor<256xf32>
  %m{n} = linalg.generic {{indexing_maps = [#row, #row], iterator_types = ["parallel"]}}
    ins(%a{n} : tensor<256xf32>) outs(%empty : tensor<256xf32>) {{
  ^bb0(%p: f32, %q: f32):
    %r = arith.negf %p : f32
    linalg.yield %r : f32
  }} -> tensor<256xf32>
  %b{n} = linalg.generic {{indexing_maps = [#all, #columns], iterator_types = ["parallel", "reduction"]}}
    ins(%x{n} : tensor<4096x256xf32>) outs(%zero : tensor<256xf32>) {{
  ^bb0(%p: f32, %q: f32):
    %s = arith.mulf %p, %p : f32
    %r = arith.addf %s, %q : f32
    linalg.yield %r : f32
  }} -> tensor<256xf32>"""
SIBLINGS_HEAD = """
#all = affine_map<(d0, d1) -> (d1, d0)>
#columns = affine_map<(d0, d1) -> (d0)>
#row = affine_map<(d0) -> (d0)>
func.func @main({arguments}) {{
  %c0 = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<256xf32>
  %zero = linalg.fill ins(%c0 : f32) outs(%empty : tensor<256xf32>) -> tensor<256xf32>"""


def sums_of_columns(pairs: int) -> Counter[CodeType]:
    """Calls to join so many pairs of sums that read the same tensor, what is made of the first one between them."""
    head = SIBLINGS_HEAD.format(arguments=", ".join(f"%x{n}: tensor<4096x256xf32>" for n in range(pairs)))
    text = "".join(SIBLINGS.format(n=n) for n in range(pairs))
    module = ir.Module.parse(f"{head}{text}\n  return\n}}", new_context())
    block = module.body.operations[0].regions[0].blocks[0]
    ops = [op.operation for op in block.operations if op.operation.name == "linalg.generic"]
    with module.context, ir.Location.unknown(), counted() as calls:
        left = join_siblings(ops)
    module.operation.verify()
    assert [len(op.results) for op in left] == [1, 2] * pairs
    return calls


def test_sums_that_are_joined_are_looked_at_with_their_readers_alone():
    few, more, many = map(sums_of_columns, DEPTHS)
    # Each is compared with each; what is made of its results is looked for among their readers, and not in the whole block.
    assert sum(excess(few, more, many).values()) < 0.05 * many.total()
