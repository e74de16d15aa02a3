"""Weights that a training step overwrites: until a task has written them they hold what the caller gave, in every launch."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir import pipeline
from kitsune_mlir.codegen.gpu.kernel.launches import cut_launches
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.written_arguments import written_arguments, written_before

TASK = """
  "kitsune.task"() ({{
  ^bb0(%i: index):
    %from = memref.subview %{source}[%i, 0] [1, 8] [1, 1] : memref<4x8xf32> to memref<1x8xf32, strided<[8, 1], offset: ?>>
    %row = bufferization.to_tensor %from restrict : memref<1x8xf32, strided<[8, 1], offset: ?>> to tensor<1x8xf32>
    %to = memref.subview %{target}[%i, 0] [1, 8] [1, 1] : memref<4x8xf32> to memref<1x8xf32, strided<[8, 1], offset: ?>>
    bufferization.materialize_in_destination %row in restrict writable %to
        : (tensor<1x8xf32>, memref<1x8xf32, strided<[8, 1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }}) {{sym_name = "t{number}", grid = array<i64: 4>, engine = "simt", launch = {number} : i64}} : () -> ()
"""


def program(*moves: tuple[str, str], overwrites: int = 0) -> ir.Module:
    """Tasks that copy, each a launch: `w` is the memory of argument 0 and its new value, `y` another result."""
    tasks = "".join(TASK.format(source=source, target=target, number=n) for n, (source, target) in enumerate(moves))
    return ir.Module.parse(
        f"""func.func @p0(%w0: memref<4x8xf32>, %x: memref<4x8xf32>, %w: memref<4x8xf32>, %y: memref<4x8xf32>,
            %arena: memref<256xi8>) attributes {{kitsune.program, kitsune.mode = "separate", kitsune.arguments = 2 : i64,
            kitsune.results = 2 : i64, kitsune.overwrites = array<i64: {overwrites}, -1>}} {{
          {tasks}
          return }}""",
        new_context(),
    )


def given(function: ir.Operation) -> list[list[bool]]:
    return [[load.given for load in task.loads] for task in ProgramView(function).tasks]


def test_until_a_task_writes() -> None:
    module = program(("w", "y"), ("x", "w"), ("w", "y"))
    function = module.body.operations[0].operation
    assert given(function) == [[True], [True], [False]]
    assert [written_arguments([task]) for task in ProgramView(function).task_ops] == [{3}, {2}, {3}]


def test_a_result_of_its_own_is_not_given() -> None:
    module = program(("w", "y"), overwrites=-1)
    assert given(module.body.operations[0].operation) == [[False]]


def test_a_task_that_writes_it_does_not_find_it_as_it_was() -> None:
    module = program(("w", "w"))
    assert given(module.body.operations[0].operation) == [[False]]


def test_launches_know_what_those_before_wrote() -> None:
    module = program(("w", "y"), ("x", "w"), ("w", "y"))
    parts = cut_launches(module.body.operations[0].operation)
    assert [given(part) for part in parts] == [[[True]], [[True]], [[False]]]
    assert [written_before(part) for part in parts] == [set(), {3}, {2, 3}]
    (again,) = [cut_launches(part, [0]) for part in parts[2:]]
    assert [given(part) for part in again] == [[[False]]]


class Stop(BaseException):
    """What nothing on the way catches."""


def stages_of_a_step(model: nn.Module, rows: int, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The stage graph of a step of plain gradient descent in bf16."""
    texts: list[str] = []

    def generate(tiles, *given):
        texts.append(str(tiles.stages.module))
        raise Stop

    monkeypatch.setattr(pipeline, "generate", generate)
    monkeypatch.setattr("kitsune_mlir.settings.choose_target", lambda *given, **options: "sm_90a")
    model = model.to(torch.bfloat16)
    step = kitsune_mlir.train_step(model, F.mse_loss, torch.optim.SGD(model.parameters(), 1e-2), options={"cache": False})
    x = torch.randn(rows, width, dtype=torch.bfloat16)
    with pytest.raises(Stop):
        step(x, torch.randn_like(model(x[:1])).expand(rows, -1).contiguous())
    return texts[0]


def test_a_step_of_layers_goes_forward_and_back_in_one_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128)]
    engines = re.findall(r'engine = "(\w+)"', stages_of_a_step(nn.Sequential(*layers), 65_536, 128, monkeypatch))
    assert engines.count("chain") == 1 and engines.count("mma") == 3 and "generic" not in engines, engines


def test_a_step_with_a_norm_has_no_generic_product(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.LayerNorm(128)]
    text = stages_of_a_step(nn.Sequential(*layers), 65_536, 128, monkeypatch)
    engines = re.findall(r'engine = "(\w+)"', text)
    assert "chain" in engines and "generic" not in engines, engines
    # What the norm's gradient reads is stored in 16 bits.
    assert not re.search(r'kitsune.yield"\(.*tensor<65536x128xf32>', text)
