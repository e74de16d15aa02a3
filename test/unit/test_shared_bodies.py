"""One body of code for tasks that are alike: which tasks share, what is looked up, and how much code there is."""

import re

import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.engines.registry import ENGINES, choose
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.placement import AllBlocks
from kitsune_mlir.codegen.gpu.kernel.schedule import make_schedule
from kitsune_mlir.codegen.gpu.kernel.task_equality import equal_tasks
from test.gpu.cases_layers import layers
from test.programs.view import view

pytestmark = pytest.mark.usefixtures("context")


def schedule(text: str):
    return make_schedule(view(text), KernelOptions(), AllBlocks(), ENGINES, choose)


@pytest.mark.parametrize("count", [12, 32])
def test_equal_layers_share_two_bodies(count):
    """The first layer reads an input and waits for nothing, the last one writes a result: five bodies for any number."""
    made = schedule(layers(count, engine="simt").text)
    assert len(made.runs) == 2 * count and len(made.bodies) == 5
    inner = [body for body in made.bodies if len(body) > 1]
    assert inner == [tuple(range(2, 2 * count, 2)), tuple(range(3, 2 * count - 1, 2))]


def test_a_body_for_each_where_little_is_saved():
    assert equal_tasks(view(layers(8).text)) is None
    made = schedule(layers(8, engine="simt").text)
    assert not made.shared and len(made.bodies) == 16


def test_what_else_is_computed_or_waited_for_is_not_alike():
    text = layers(12).text
    first = equal_tasks(view(text))
    assert first is not None and first[4] == first[6] == 2
    other = equal_tasks(view(text.replace("0.5 : f32", "0.25 : f32", 6).replace("0.25 : f32", "0.5 : f32", 5)))
    assert other is not None and other[11] == 11 and other[13] == 3  # the sixth layer adds a quarter
    waits = equal_tasks(view(text.replace("%hi_t5 = arith.constant 125", "%hi_t5 = arith.constant 124")))
    assert waits is not None and waits[12] == 12
    view_of_it = "memref.view %arena[%w_at][] : memref<288000xi8> to memref<1x24xf32>"
    moved = f"%w_at = arith.constant 256 : index\n  %again = {view_of_it}\n  %h_at ="
    role = equal_tasks(view(text.replace("%x6 restrict", "%again restrict").replace("%h_at =", moved)))
    assert role is not None and role[10] == 10  # its weight is in the arena: another task may write it


def test_one_buffer_twice_is_not_two_buffers():
    text = layers(12).text
    same = text.replace("%b_v = memref.subview %p1[", "%b_v = memref.subview %h[")
    first = equal_tasks(view(same))
    assert first is not None and first[3] != first[5]


@pytest.mark.parametrize("count", [12, 32])
def test_code_does_not_grow_with_the_layers(count):
    """The kernel's code is that of five bodies; each layer adds words to the table, and two parameters hold all pointers."""
    case = layers(count, engine="simt")
    code = compile_gpu(ir.Module.parse(case.text), case.name)
    assert code.manifest.arrays and code.resources.spill_store_bytes == 0
    assert len(re.findall(r"\.param \.align", code.ptx)) == 2
    assert code.ptx.count("red.release.gpu") == 5 - 1  # the last task posts nothing
    assert [name for name, *_ in code.manifest.tasks] == [f"{what}{n}" for n in range(count) for what in ("scale", "add")]


def test_a_debug_build_and_timestamps_know_the_task():
    case = layers(12, engine="simt")
    for options in ({"debug": True}, {"timestamps": True}):
        code = compile_gpu(ir.Module.parse(case.text), case.name, KernelOptions(**options))
        assert code.manifest.arrays and "operands" in code.ptx
