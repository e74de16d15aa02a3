"""torch.compile(backend="kitsune") beside eager: values, strides, types, aliasing; what writing to one tensor changes.

Every case runs twice on fresh inputs. Then each output is written to, and all outputs and inputs are compared again: outputs
that share memory in eager must share it here, and no others.
"""

import copy
import logging
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_structure

from kitsune_mlir.sized.restride import same_strides

R = torch.randn


def images(*shape: int) -> torch.Tensor:
    return R(*shape).contiguous(memory_format=torch.channels_last)


def parts(x, cut):
    y = x + 1
    return cut(y)


class Counting(nn.Module):
    """Changes a buffer, and hands out its parameter and its buffer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(4, 7)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        self.calls.add_(1)
        return self.first(x), self.second(x), self.calls, self.first.weight


# name: (function, inputs, the graph runs as a program)
CASES = {
    "view": (lambda x: (x.view(-1), x + 1), lambda: (R(3, 4),), True),
    "views only": (lambda x: x.view(-1), lambda: (R(3, 4),), False),
    "transposed": (lambda x: (x.t(), x + 1), lambda: (R(3, 4),), True),
    "a row": (lambda x: (x + 1, x[1:]), lambda: (R(3, 4),), True),
    "itself": (lambda x: (x, x * 2), lambda: (R(3, 4),), True),
    "view of a view": (lambda x: (x[1], x * 2), lambda: (R(5, 4)[1:, ::2],), True),
    "unsqueezed": (lambda x: (x.unsqueeze(0), x.squeeze(), x * 1), lambda: (R(3, 1, 4),), True),
    "whole and views": (lambda x: parts(x, lambda y: (y, y.t(), y[1])), lambda: (R(3, 4),), True),
    "view before whole": (lambda x: parts(x, lambda y: (y.t(), y)), lambda: (R(3, 4),), True),
    "overlapping parts": (lambda x: parts(x, lambda y: (y[:2], y[1:])), lambda: (R(3, 4),), True),
    "parts in place": (lambda x: parts(x, lambda y: (y[0], y.mul_(2)[1:])), lambda: (R(3, 4),), True),
    "chunks": (lambda x: torch.chunk(x * 2, 2, dim=1), lambda: (R(4, 6),), True),
    "chunks of a permuted product": (lambda x, w: (x @ w).t().split(3), lambda: (R(4, 6), R(6, 7)), True),
    "two types": (lambda x: parts(x, lambda y: (y, y.view(torch.int32))), lambda: (R(3, 4),), True),
    "windows": (lambda x: (x + 1).unfold(1, 4, 2), lambda: (R(3, 10),), True),
    "views of its shape": (lambda x: parts(x, lambda y: (y, y.view(3, 4), y.view(3, 4)[:])), lambda: (R(3, 4),), True),
    "one view of its shape": (lambda x: ((x + 1).view(3, 4), x * 2), lambda: (R(3, 4),), True),
    "view of a view of its shape": (lambda x: parts((x + 1).view(3, 4), lambda y: (y, y[1])), lambda: (R(3, 4),), True),
    "the same twice": (lambda x: parts(x, lambda y: (y, y)), lambda: (R(3, 4),), True),
    "computed twice": (lambda x: (x * 2, x * 2, parts(x, lambda y: (y, y))), lambda: (R(3, 4),), True),
    "clone of what is returned": (lambda x: parts(x, lambda y: (y, y.clone(), y.clone())), lambda: (R(3, 4),), True),
    "clone": (lambda x: (x.clone(), x + 1), lambda: (R(3, 4),), True),
    "contiguous": (lambda x: (x.contiguous(), x + 1), lambda: (R(3, 4),), True),
    "made contiguous": (lambda x: (x.contiguous(), x + 1), lambda: (R(3, 4).t(),), True),
    "same type": (lambda x: (x.to(torch.float32), x * 1), lambda: (R(3, 4),), True),
    "detached": (lambda x: (x.detach(), x * 1), lambda: (R(3, 4),), True),
    "other type": (lambda x: (x.view(torch.int32), x + 1), lambda: (R(3, 4),), True),
    "permuted map": (lambda x: x.permute(2, 0, 1) + 1, lambda: (R(3, 4, 5),), True),
    "permuted map, odd": (lambda x: (x.permute(1, 2, 0, 3) * 2, x.sum()), lambda: (R(7, 1, 129, 3),), True),
    "one row, transposed": (lambda x: (x * 2, x.contiguous(), x > 0), lambda: (R(7, 1).t(),), True),
    "strided input": (lambda x: x + 1, lambda: (R(3, 4).t(),), True),
    "gaps in the input": (lambda x: (x * 2).relu(), lambda: (R(8, 12)[:, ::2],), True),
    "comparison": (lambda x: x > 0, lambda: (R(3, 4).t(),), True),
    "bf16": (lambda x: (x.t() * 2, x), lambda: (R(3, 4).bfloat16(),), True),
    "channels last": (nn.Conv2d(4, 6, 3, padding=1).to(memory_format=torch.channels_last), lambda: (images(2, 4, 8, 8),), True),
    "channels last map": (lambda x: torch.relu(x) + 1, lambda: (images(2, 4, 7, 9),), True),
    "channels last, mixed": (lambda x, y: (x + y, x.mean((2, 3))), lambda: (images(2, 4, 7, 9), R(2, 4, 7, 9)), True),
    "expanded": (lambda x: (x + 1).expand(5, 3, 4), lambda: (R(3, 4),), True),
    "sliced": (lambda x: (x + 1)[:, 1:3], lambda: (R(3, 4),), True),
    "one row of many": (lambda x: (x + 1)[2], lambda: (R(3, 4),), True),
    "copied by reshape": (lambda x: (x.t().reshape(-1), x * 1), lambda: (R(3, 4),), True),
    "no elements": (lambda x: (x[:0], x + 1), lambda: (R(3, 4),), True),
    "numbers": (lambda x: (x.sum(), x[0, 0]), lambda: (R(3, 4),), True),
    "constant": (lambda x: (torch.tensor([1.0, 2.0]), x * 1), lambda: (R(3, 4),), True),
    "out": (lambda a, o: torch.add(a, 1, out=o), lambda: (R(3, 4), R(3, 4)), True),
    "out, and read": (lambda a, o: (torch.add(a, 1, out=o), o * 2), lambda: (R(3, 4), R(3, 4)), True),
    "in place": (lambda x: x.add_(1), lambda: (R(3, 4),), True),
    "in place, a row": (lambda x: (x.add_(1)[0], x.sum()), lambda: (R(3, 4),), True),
    "columns in place": (lambda x: (x[:, :2].mul_(3), x + 1), lambda: (R(3, 4),), True),
    "dropout in evaluation": (nn.Sequential(nn.Dropout(), nn.Linear(4, 3)).eval(), lambda: (R(3, 4),), True),
    "parameters": (Counting(), lambda: (R(3, 4),), True),
}


def run(function, make, **given):
    """Compares compiled and eager calls; returns what was warned of, and the compiled function."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="kitsune", **given)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for _ in range(2):
            own = make()
            theirs = copy.deepcopy(own)
            beside = copy.deepcopy(function)  # of a module: parameters and buffers of its own
            given, expected = compiled(*own), beside(*theirs)
            assert tree_structure(given) == tree_structure(expected)
            got, want = tree_leaves(given), tree_leaves(expected)
            alike(got, want)
            own, theirs = tree_leaves(own), tree_leaves(theirs)
            for here, there in ((own, theirs), (state(function), state(beside))):
                for x, y in zip(here, there, strict=True):
                    assert [g is x for g in got] == [w is y for w in want]
            assert [[a is b for a in got] for b in got] == [[a is b for a in want] for b in want]
            for n, (g, w) in enumerate(zip(got, want, strict=True)):
                if isinstance(g, torch.Tensor) and g.numel():
                    g[(0,) * g.ndim] = w[(0,) * w.ndim] = n + 2
            alike([*got, *own, *state(function)], [*want, *theirs, *state(beside)])
    return [str(one.message) for one in caught if "kitsune" in str(one.message)], compiled


def state(function):
    return [*function.parameters(), *function.buffers()] if isinstance(function, nn.Module) else []


def alike(got, want):
    for g, w in zip(got, want, strict=True):
        if not isinstance(w, torch.Tensor):
            assert type(g) is type(w) and g == w
            continue
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        # Of dimensions of one element PyTorch's own fake tensors have other strides than its kernels.
        assert same_strides(g.shape, g.stride(), w.stride()), (g.stride(), w.stride())
        torch.testing.assert_close(g.double(), w.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.rotated(16)
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_what_eager_s_are(name, monkeypatch):
    import kitsune_mlir.pipeline as pipeline

    made = []
    compile_imported = pipeline.compile_imported
    monkeypatch.setattr(pipeline, "compile_imported", lambda *given: made.append(compile_imported(*given)) or made[-1])
    function, make, compiles = CASES[name]
    said, _ = run(function, make)
    assert bool(made) is compiles, said
    # Views alone are no loss; everything else that stays in PyTorch says why.
    assert bool(said) is not (compiles or name == "views only"), said


def changes(x, y):
    x.add_(1)
    return y * 2


@pytest.mark.parametrize("apart_first", [False, True])
def test_inputs_that_share_memory(apart_first):
    """Whether they do may differ from call to call, and no guard of Dynamo's asks."""
    torch._dynamo.reset()
    compiled = torch.compile(changes, backend="kitsune")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shared in (False, True, False) if apart_first else (True, False, True):
            memory = R(10)
            own, theirs = memory.clone(), memory.clone()
            x, y = (own[:5], own[3:8]) if shared else (own[:5], own[5:].clone())
            a, b = (theirs[:5], theirs[3:8]) if shared else (theirs[:5], theirs[5:].clone())
            torch.testing.assert_close(compiled(x, y), changes(a, b))
            torch.testing.assert_close(own, theirs)


def test_inputs_that_lie_where_they_were_apart_are_not_looked_at_again(monkeypatch):
    from kitsune_mlir.dynamo import sharing

    torch._dynamo.reset()
    looked, shared = [], sharing.shared
    monkeypatch.setattr(sharing, "shared", lambda *given: looked.append(given) or shared(*given))
    compiled = torch.compile(changes, backend="kitsune", dynamic=False)
    memory, y = R(12), R(4)
    with torch.no_grad():
        compiled(memory[:4], y)
        seen = len(looked)
        for x, other, looks in ((memory[4:8], y, 1), (memory[4:8], y, 0), (memory[4:8], memory[5:9], 1), (memory[4:8], y, 0)):
            before, where = memory.clone(), (other.data_ptr() - memory.data_ptr()) // 4
            theirs = before[where : where + 4] if other is not y else y
            torch.testing.assert_close(compiled(x, other), changes(before[4:8], theirs))
            torch.testing.assert_close(memory, before)
            assert len(looked) - seen == looks
            seen = len(looked)


class Widths(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.Linear(width, 3)

    def forward(self, x):
        return torch.relu(self.layer(x))


def test_one_function_called_with_two_widths():
    torch._dynamo.reset()
    compiled = torch.compile(lambda layer, x: layer(x), backend="kitsune")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for width in (4, 6, 129):
            layer, x = Widths(width), R(2, width)
            torch.testing.assert_close(compiled(layer, x), layer(x))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_modes_of_torch_compile(mode):
    said, _ = run(lambda x: torch.relu(x) + 1, lambda: (R(7, 5),), mode=mode)
    assert not said


def test_modes_that_measure_ask_for_tuning(monkeypatch):
    from kitsune_mlir.dynamo import backend
    from kitsune_mlir.options import Options

    seen = []
    compiler = backend._compiler
    monkeypatch.setattr(
        backend,
        "_compiler",
        lambda kind, asked, writes: seen.append(asked.options) or compiler(kind, replace(asked, options=Options()), writes),
    )
    for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        torch._dynamo.reset()
        torch.compile(lambda x: x + 1, backend="kitsune", mode=mode)(R(3))
    assert len(seen) == 6 and all(options.tune for options in seen)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"mode": "fastest"}, "mode 'fastest' of torch.compile is unknown; modes are default, reduce-overhead, max-autotune"),
        ({"options": {"thread": 1, "best": 2}}, "unknown options thread, best; options are threads, debug, schedule"),
    ],
)
def test_unknown_modes_and_options_are_named(given, said):
    torch._dynamo.reset()
    with pytest.raises(Exception, match="ArgumentError") as caught:
        torch.compile(lambda x: x + 1, backend="kitsune", **given)(R(3))
    assert said in str(caught.value)


def test_a_failing_compiler_leaves_the_model_to_pytorch(monkeypatch, caplog):
    import kitsune_mlir.pipeline as pipeline

    def fails(*given):
        raise KeyError("lost")

    monkeypatch.setattr(pipeline, "compile_imported", fails)
    with caplog.at_level(logging.INFO, "kitsune_mlir.dynamo"):
        run(lambda x: x + 1, lambda: (R(3),))
    assert "aten.add.Tensor: a bug in the compiler: KeyError: 'lost'" in caplog.text
