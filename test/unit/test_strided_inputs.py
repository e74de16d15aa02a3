"""Inputs that are not contiguous are read where they lie, in whatever layout a call brings them."""

import math

import pytest
import torch
from torch.nn import functional as F

import kitsune_mlir
from kitsune_mlir.dynamo.parts import compile_part
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.frontend import export_model
from kitsune_mlir.frontend.strided_inputs import within_dense
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import Options
from kitsune_mlir.runtime.strided import Strided

LAYOUTS = {
    "turned": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "wider": lambda x: F.pad(x, (2, 1))[..., 2:-1],
    "apart": lambda x: x.repeat_interleave(2, 0)[::2],
    "inner": lambda x: x.repeat_interleave(3, -1)[..., 1::3],
    "later": lambda x: torch.cat([x, x])[len(x) :].repeat_interleave(2, 0)[1::2],
    "plain": lambda x: x.clone(),
    "many": lambda x: x[..., :1].expand(x.shape),
    "exact": lambda x: torch.empty_strided(x.shape, [2 * n for n in x.stride()]).copy_(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1,), (7,), (7, 9), (3, 1, 129), (2, 3, 5, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_tensor_is_found_in_a_dense_one(layout, shape, dtype):
    x = LAYOUTS[layout](torch.arange(math.prod(shape)).reshape(shape)).to(torch.int64)
    memory = torch.arange(x.untyped_storage().nbytes() // 8).to(dtype)  # an element's number, as far as the type can tell
    x = memory.as_strided(x.shape, x.stride(), x.storage_offset())
    lies = within_dense(x.shape, x.stride(), x.storage_offset(), x.element_size())
    apart = any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True))
    assert (lies is None) == (x.is_contiguous() or apart)
    if lies is not None:
        base = x.storage_offset() - lies.first
        assert base >= 0 and base * x.element_size() % 16 == 0
        whole = torch.arange(math.prod(lies.whole)).add(base).to(dtype)
        torch.testing.assert_close(whole.as_strided(x.shape, lies.stride, lies.first), x, rtol=0, atol=0)
        torch.testing.assert_close(lies.copied(x), x, rtol=0, atol=0)


def test_what_is_in_no_dense_tensor():
    assert within_dense((3, 4), (2, 1), 0, 4) is None  # rows overlap
    assert within_dense((3, 4), (7, 2), 0, 4) is None
    assert within_dense((3, 0), (9, 1), 0, 4) is None
    assert within_dense((2, 5), (6, 1), 3, 4) is None  # nothing before it in its row is aligned
    assert within_dense((2, 5), (6, 1), 4, 4) == Strided((6, 1), (2, 6), 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_read_where_it_lies_and_other_layouts_are_copied(layout, monkeypatch):
    def function(x, y):
        return torch.softmax(x, -1) * y[:, None, None], x.reshape(-1)[3:40] * 2

    model, y = function, torch.randn(5).repeat_interleave(2)[::2]
    x = LAYOUTS[layout](torch.randn(5, 3, 7))
    program = kitsune_mlir.compile(model, (x, y), target="host")
    copied, own = [], Strided.copied
    monkeypatch.setattr(Strided, "copied", lambda self, tensor: copied.append(tensor.shape) or own(self, tensor))
    program(x, y)
    assert not copied
    for other in LAYOUTS.values():
        for given in (other(torch.randn(5, 3, 7)), other(torch.randn(6, 3, 7))[1:]):
            for z in (y, y.clone()):
                for got, want in zip(program(given, z), function(given, z), strict=True):
                    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert y.shape in copied and (x.shape in copied) == (program.signature.inputs[0].lies is not None)
    with pytest.raises(ArgumentError, match=r"has shape \[5, 3, 8\], compiled for \[5, 3, 7\]"):
        program(torch.randn(5, 3, 8), y)


def test_memory_that_is_not_there_is_not_read():
    """A table that is read at indices is read whole; its last row may end with the storage."""
    rows = torch.tensor([2, 0, 2])
    program = kitsune_mlir.compile(lambda x, i: x[i] + 1, (F.pad(torch.randn(4, 6), (0, 2))[:, :6], rows), target="host")
    lies = program.signature.inputs[0].lies
    assert lies == Strided((8, 1), (4, 8), 0) and program.signature.reach[program.signature.inputs[0].name] <= 128
    short = torch.empty_strided((4, 6), (8, 1)).copy_(torch.randn(4, 6))  # its storage ends with its last element
    torch.testing.assert_close(program(short, rows), short[rows] + 1)
    late = torch.randn(33)[1:].view(4, 8)[:, :6]  # at no multiple of 16 bytes
    torch.testing.assert_close(program(late, rows), late[rows] + 1)


def test_inputs_that_stay():
    """What is written, returned, an image with channels innermost, or a factor that bulk copies read once it is contiguous."""

    def strided(function, *args):
        return {name: lies for name, (_, lies) in export_model(function, args).strided.items()}

    wide = F.pad(torch.randn(8, 64), (0, 3))[:, :64]
    assert not strided(lambda x: x.add_(1), wide.clone(memory_format=torch.preserve_format).as_strided((4, 64), (128, 1)))
    assert not strided(lambda x: x.t().mul_(2).sum(), wide.t())
    assert not strided(lambda x: (x, x * 2), wide)
    assert not strided(lambda x: x * 2, torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last))
    assert not strided(lambda x, w: x.transpose(0, 1).transpose(0, 1) @ w, wide, torch.randn(64, 8))
    assert not strided(lambda x, w: torch.cat([x, x]) @ w, wide, torch.randn(64, 8))
    assert strided(lambda x, w: x @ w, torch.randn(8, 128)[:, 64:], torch.randn(64, 8)) == {
        "args_0": Strided((128, 1), (8, 128))
    }
    assert strided(lambda x: x.exp(), wide) == {"args_0": Strided((67, 1), (8, 67))}


def test_saved_and_run_into_memory_of_the_callers(tmp_path):
    model, x = (lambda x: torch.tanh(x) * 3), LAYOUTS["wider"](torch.randn(9, 129))
    program = kitsune_mlir.compile(model, (x,), target="host")
    program.save(tmp_path / "strided.kit")
    for one in (program, kitsune_mlir.load(tmp_path / "strided.kit")):
        assert one.signature.inputs[0].lies == Strided((132, 1), (9, 132), 2)
        out = torch.empty(9, 129)
        assert one.run(x, into=out) is out
        torch.testing.assert_close(out, torch.tanh(x) * 3)
        whole = torch.randn(9 * 132)
        with pytest.raises(ArgumentError, match="shares memory with"):
            one.run(whole.as_strided((9, 129), (132, 1), 2), into=whole[: 9 * 129].view(9, 129))


def test_parts_of_graphs():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = LAYOUTS["wider"](torch.randn(6, 10)), LAYOUTS["turned"](torch.randn(6, 10))
    graph = make_fx(lambda x, y: (torch.ops.aten.add.Tensor(x, y),), tracing_mode="fake")(x, y)
    part = compile_part(graph, frozenset(), find_target("host"), Options())
    assert [i.lies is not None for i in part.program.signature.inputs] == [True, False]  # the other one in its order in memory
    torch.testing.assert_close(part(x, y)[0], x + y)
    torch.testing.assert_close(part(x.contiguous(), y)[0], x + y)
