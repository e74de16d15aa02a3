"""Trial emissions of `simt`: made once for tasks that are alike, and what is chosen by them stays what it is."""

import pytest

from kitsune_mlir.codegen.gpu.engines.simt import choose, choose_rows, dry_run
from kitsune_mlir.codegen.gpu.engines.simt.engine import SimtEngine
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions, Plan
from kitsune_mlir.dialects.unchanged import lasting
from test.gpu.cases import CASES
from test.gpu.cases_layers import layers
from test.programs.view import view
from test.rotation import in_turn

pytestmark = pytest.mark.usefixtures("context")


@pytest.fixture
def trials(monkeypatch):
    made = []

    def counted(task, threads, emit):
        made.append(task.name)
        return dry_run.probe(task, threads, emit)

    for module in (choose, choose_rows):
        monkeypatch.setattr(module, "probe", counted)
    return made


def plans(text: str):
    """What the engine chose for each task of a program."""
    found = [SimtEngine().plan(task, KernelOptions()) for task in view(text).tasks]
    return [(p.parameters, p.threads, p.shared_bytes, p.registers) if isinstance(p, Plan) else p for p in found]


def test_equal_tasks_share_trials(trials):
    """The first layer reads an input, the last one writes a result: no more trials from three layers on."""
    counts = []
    for count in (3, 9):
        trials.clear()
        with lasting():
            plans(layers(count, engine="simt").text)
        counts.append(len(trials))
    assert counts[0] == counts[1] > 0


def test_tasks_of_another_width_have_trials_of_their_own(trials):
    with lasting():
        plans(layers(3).text)
        before = len(trials)
        plans(layers(3, n=20).text)
        plans(layers(9).text)
    assert before < len(trials) <= 2 * before


def test_what_is_chosen_is_what_trials_of_its_own_would_give(trials):
    texts = [make().text for make in in_turn(CASES, 8)]
    alone = [plans(text) for text in texts]
    first = len(trials)
    with lasting():
        assert [plans(text) for text in texts] == alone
        before = len(trials)
        assert [plans(text) for text in texts] == alone
    assert 0 < first and len(trials) == before


def test_a_trial_has_the_pointers_that_its_task_takes():
    """Not those of all layers, of which a training step has a thousand."""

    def parameters(tile):
        function = tile.task.kernel.module_block.operations[0].operation
        return len(function.regions[0].blocks[0].arguments)

    tasks = view(layers(9).text).tasks
    assert [dry_run.probe(task, 256, parameters) for task in tasks] == [
        3 + len({buffer.argument for buffer in task.buffers}) for task in tasks
    ]
