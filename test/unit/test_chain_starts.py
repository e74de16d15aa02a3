"""Sums of a chain that start from what other tasks make: nothing of it is read before the task's waits are over."""

import re

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain import layers
from kitsune_mlir.codegen.gpu.engines.chain.wide import consumer as chain_wide
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.codegen.gpu.lower import replace_program
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView, program_functions
from test.emulators.chain import run_chain
from test.programs.compiled import planned
from test.unit.test_chain_engine import BF16, Normalised, Roots, WideEdges, compiled, tiles, to_numpy, wide_edges, widened


class Joined(WideEdges):
    """Edges with the rows of both their nodes: the nodes are multiplied first, and sums start from rows of these products."""

    def __init__(self) -> None:
        super().__init__(512)
        self.first = nn.Linear(3 * 512, 512)

    def forward(self, edges, one, other, source, target):
        hidden = torch.relu(self.first(torch.cat([edges, one[source], other[target]], 1)))
        return edges + self.norm(self.layers(hidden))


def polls(text: str) -> int:
    """How often the kernel of a tile program waits for a barrier."""
    module = ir.Module.parse(text)
    emitted = replace_program(program_functions(module.operation)[0], KernelOptions())
    assert emitted.op is not None
    return str(module).count("mbarrier.try_wait.parity")


def polls_without(monkeypatch: pytest.MonkeyPatch, text: str) -> int:
    """The same if nobody waited for what sums start from."""
    with monkeypatch.context() as patch:
        patch.setattr(chain_wide.Consumer, "_wait_for_others", lambda *_: None)
        return polls(text)


def test_sums_that_start_from_products_of_other_tasks_wait_first(context, monkeypatch) -> None:
    values = [torch.zeros(count, 512, dtype=torch.bfloat16) for count in (61_440, 10_242, 10_242)]
    args = (*values, *(torch.zeros(61_440, dtype=torch.int64) for _ in range(2)))
    model = Joined().to(torch.bfloat16)
    text = planned(model, *args, schedule="temporal").ir("tiles")
    assert polls(text) > polls_without(monkeypatch, text)


def test_sums_that_start_from_rows_of_an_input_do_not(context, monkeypatch) -> None:
    model, args = wide_edges(20_000, 512)
    text = tiles(model, *args)
    assert polls(text) == polls_without(monkeypatch, text) > 0


def test_sums_that_start_from_a_bias_do_not(context, monkeypatch) -> None:
    text = tiles(Normalised(512), torch.randn(20_000, 512))
    assert polls(text) == polls_without(monkeypatch, text) > 0


def twice(text: str) -> str:
    """A tile program whose task is done again, where all tiles wait for all of the first time: they overwrite its result."""
    before, body, after = text.partition('    "kitsune.task"')
    task, end, after = (body + after).partition("return")
    tiles = re.search(r"grid = array<i64: (\d+)>", task)
    assert tiles is not None
    semaphore = '    %again = "kitsune.make_semaphore"() {slots = 1 : i64} : () -> !kitsune.semaphore\n'
    ends = "    %none = arith.constant 0 : index\n    %one = arith.constant 1 : index\n"
    post = '"kitsune.post"(%again, %none) : (!kitsune.semaphore, index) -> ()\n      "kitsune.yield"'
    wait = f'"kitsune.wait"(%again, %none, %one) {{count = {tiles[1]} : i64}} : (!kitsune.semaphore, index, index) -> ()'
    first = task.replace('"kitsune.yield"', post)
    then = re.sub(r"(\^bb0\([^)]*\):\n)", rf"\1      {wait}\n", task, count=1)
    then = re.sub(r'sym_name = "(\w+)"', r'sym_name = "\1_again"', then)
    return f"{before}{semaphore}{ends}{first}{then}{end}{after}"


@pytest.mark.parametrize("height", [64, 128])
def test_computed_factors_wait_for_what_they_overwrite(height: int, monkeypatch) -> None:
    """No warp brings rows, and so none waits for other tasks: the computing warpgroups do, once."""
    monkeypatch.setattr(layers, "tile_rows", lambda rows, target: min(rows, height))
    model, args = Roots(), (torch.randn(130, 100).to(BF16), torch.randn(130, 100).to(BF16))
    program = compiled(model, *args)
    state = dict(model.named_parameters())
    inputs = [to_numpy(widened(state[weight.name], weight.wide)) for weight in program.signature.weights]
    inputs += [to_numpy(args[item.position]) for item in program.signature.inputs]
    result = np.zeros((130, 8), ml_dtypes.bfloat16)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(twice(program.ir("tiles")))
        kernel = build(ProgramView(program_functions(module.operation)[0]), "kernel", KernelOptions())
        assert [decision.plan.engine for decision in kernel.decisions] == ["chain", "chain"]
        assert str(kernel.module).count("ld.acquire.gpu") == 1
        run_chain(kernel.module.operation, kernel.manifest, inputs, [result])
    wanted = model.double()(*[a.double() for a in args]).detach().numpy()
    assert np.linalg.norm(result.astype(np.float64) - wanted) < 6e-3 * np.linalg.norm(wanted)
