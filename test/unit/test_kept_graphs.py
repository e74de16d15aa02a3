"""Graphs that torch.compile has compiled before are not traced again: results are eager's, and only the same is the same."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kitsune_mlir.cache.store import Store
from kitsune_mlir.dynamo import torch_api
from kitsune_mlir.dynamo.graph_key import key_text

R = torch.randn


class Net(nn.Module):
    """A product, a norm, an activation, attention; outputs of several layouts and types."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.gelu(self.norm(self.linear(x)))
        return F.scaled_dot_product_attention(y, y, y), (y + 1).transpose(0, 1).contiguous().transpose(0, 1), y.argmax(-1)


@pytest.fixture
def traced(monkeypatch):
    """What AOTAutograd was asked to trace."""
    found, really = [], torch_api.aot_autograd

    def counted(**given: Any) -> Callable[..., Any]:
        compiler = really(**given)

        def trace(gm: Any, inputs: Any) -> Any:
            found.append(gm)
            return compiler(gm, inputs)

        return trace

    monkeypatch.setattr(torch_api, "aot_autograd", counted)
    return found


@pytest.fixture
def compiled(tmp_path, traced, reports):
    """Compiles as another process would: Dynamo knows nothing."""

    def compile(function: Any, **options: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(function, backend="kitsune", options={"cache": True, "cache_dir": str(tmp_path), **options})

    return compile


def same(got: Any, want: Any, **how: Any) -> None:
    """Values, types, strides; every output is a tensor of its own."""
    torch.testing.assert_close(got, want, check_stride=True, **how)
    assert len({one.untyped_storage().data_ptr() for one in got}) == len(got)
    assert [one.requires_grad for one in got] == [one.requires_grad for one in want]


@torch.no_grad()
def test_a_graph_is_not_traced_again(compiled, traced, reports):
    model, x = Net().eval(), R(3, 5, 12)
    same(compiled(model)(x), model(x))
    first = reports.pop()
    fast, x = compiled(model), R(3, 5, 12)
    same(fast(x), model(x))
    assert len(traced) == 1
    (again,) = reports
    assert (again.nodes, again.between, again.kind) == (first.nodes, first.between, "inference") and not again.islands
    assert again.details().partition(":")[2].partition("\n")[2] == first.details().partition(":")[2].partition("\n")[2]
    model.linear.weight.mul_(-2)
    same(fast(x), model(x))
    model.norm.weight.data = R(12)
    same(fast(x), model(x))
    other = Net().eval()  # the same code with other weights
    same(compiled(other)(x), other(x))
    assert len(traced) == 1
    given = R(5, 3, 12).transpose(0, 1)
    same(compiled(other)(given), other(given))
    assert len(traced) == 2  # other strides


def test_calls_are_as_autograd_makes_them(compiled, traced):
    """Where gradients are on, for inputs without; in inference mode; in autocast, whose casts are in the graph."""
    model, x = Net().eval().requires_grad_(False), R(3, 5, 12)
    for context in (torch.enable_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)):
        with context():
            want, count = model(x), len(traced)
            near: dict[str, Any] = {"rtol": 0.05, "atol": 0.05} if want[0].dtype == torch.bfloat16 else {}
            for _ in range(2):
                got = compiled(model)(x)
                torch.testing.assert_close(got[:2], want[:2], check_stride=True, **near)
                assert [one.is_inference() for one in got] == [one.is_inference() for one in want]
            assert len(traced) <= count + 1
    assert len(traced) == 3


def scaled(x: Tensor, by: Any) -> Tensor:
    return torch.tanh(x @ x) * by


@contextlib.contextmanager
def set_to(setter: Callable[[Any], None], value: Any, usual: Any) -> Any:
    setter(value)
    try:
        yield
    finally:
        setter(usual)


@contextlib.contextmanager
def operator_of_a_user() -> Any:
    """An operator of PyTorch's that means something else."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("tanh", lambda x: x + 1, "CPU")
    try:
        yield
    finally:
        library._destroy()


OTHERS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: (contextlib.nullcontext(), {}, (R(6, 6), 2.5)),
    "a number": lambda: (contextlib.nullcontext(), {}, (R(6, 6), 2.0)),
    "a number's type": lambda: (contextlib.nullcontext(), {}, (R(6, 6), 2)),
    "a size": lambda: (contextlib.nullcontext(), {}, (R(7, 7), 2.5)),
    "a type": lambda: (contextlib.nullcontext(), {}, (R(6, 6).double(), 2.5)),
    "strides": lambda: (contextlib.nullcontext(), {}, (R(6, 6).t(), 2.5)),
    "an offset": lambda: (contextlib.nullcontext(), {}, (R(7, 6)[1:], 2.5)),
    "a parameter": lambda: (contextlib.nullcontext(), {}, (nn.Parameter(R(6, 6)), 2.5)),
    "autocast": lambda: (torch.autocast("cpu", torch.bfloat16), {}, (R(6, 6), 2.5)),
    "precision": lambda: (set_to(torch.set_float32_matmul_precision, "high", "highest"), {}, (R(6, 6), 2.5)),
    "deterministic": lambda: (set_to(torch.use_deterministic_algorithms, True, False), {}, (R(6, 6), 2.5)),
    "default type": lambda: (set_to(torch.set_default_dtype, torch.float64, torch.float32), {}, (R(6, 6).float(), 2.5)),
    "an operator": lambda: (operator_of_a_user(), {}, (R(6, 6), 2.5)),
    "an option": lambda: (contextlib.nullcontext(), {"matmul_precision": "high"}, (R(6, 6), 2.5)),
    "an option of graphs": lambda: (contextlib.nullcontext(), {"run_in_torch": ["aten.tanh.default"]}, (R(6, 6), 2.5)),
}


@pytest.mark.rotated(6)
@pytest.mark.parametrize("what", OTHERS)
@torch.no_grad()
def test_what_differs_is_traced(what, compiled, traced):
    args = R(6, 6), 2.5
    torch.testing.assert_close(compiled(scaled)(*args), scaled(*args))
    context, options, args = OTHERS[what]()
    with context:
        got, want = compiled(scaled, **options)(*args), scaled(*args)
        near: dict[str, Any] = {"rtol": 0.05, "atol": 0.05} if want.dtype == torch.bfloat16 else {}
        if what != "an operator":  # which the compiler has its own idea of
            torch.testing.assert_close(got, want, check_stride=True, **near)
    assert len(traced) == (1 if what == "nothing" else 2)


def test_another_line_of_the_source_is_another_graph():
    """Remarks and warnings name it."""

    def graphs(function: Any) -> Any:
        found: list[Any] = []
        torch._dynamo.reset()

        def take(gm: Any, inputs: Any) -> Any:
            found.append(key_text(gm, inputs))
            return gm

        torch.compile(function, backend=take)(R(3))
        return found

    def one(x: Tensor) -> Tensor:
        return x.tanh()

    def other(x: Tensor) -> Tensor:
        return x.tanh()

    assert graphs(one) == graphs(one) != graphs(other) and None not in graphs(one)


@torch.no_grad()
def test_outputs_share_memory_as_they_do(compiled, traced):
    def several(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.tanh(x @ x)
        return y, y.t()[1:], (y + 1).reshape(2, 3, 6).permute(2, 0, 1)[..., 1]

    for _ in range(2):
        x = R(6, 6)
        got, want = compiled(several)(x), several(x)
        torch.testing.assert_close(got, want, check_stride=True)
        for one in (got, want):
            one[1].fill_(3)
        torch.testing.assert_close(got, want)
    assert len(traced) == 1


@torch.library.custom_op("kept_graphs_test::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return 2 * x


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.compiler.allow_in_graph
def users_own(x: Tensor) -> Tensor:
    return x + 3


TABLE = R(4, 4)


def changed(x: Tensor) -> Tensor:
    x.add_(1)
    return x @ x


UNKEPT: dict[str, Callable[[Tensor], Any]] = {
    "an input is changed": changed,
    "a view of an input": lambda x: (x @ x, x[1:]),
    "an operator of others": lambda x: doubled(x @ x),
    "a function of others": lambda x: users_own(x @ x),
    "random numbers": lambda x: F.dropout(x @ x, 0.5, training=True),
    "a graph in the graph": lambda x: torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x - 1, (x,)),
}


@pytest.mark.parametrize("what", UNKEPT)
@torch.no_grad()
def test_what_is_more_than_a_program_is_traced(what, compiled, traced):
    for count in (1, 2):
        x = R(4, 4)
        own, theirs = x.clone(), x.clone()
        torch.manual_seed(count)
        got = compiled(UNKEPT[what])(own)
        torch.manual_seed(count)
        want = UNKEPT[what](theirs)
        torch.testing.assert_close(got, want, check_stride=True)
        torch.testing.assert_close(own, theirs)
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        aliases = [(one.data_ptr() - own.data_ptr() if shares(one, own) else None) for one, _ in pairs]
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        assert aliases == [(one.data_ptr() - theirs.data_ptr() if shares(one, theirs) else None) for _, one in pairs]
        assert len(traced) == count


def shares(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def test_gradients_and_sizes_that_change_are_traced(compiled, traced):
    model, x = Net(), R(3, 5, 12)
    for count in (1, 2):
        got, want = compiled(model)(x), model(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(
            torch.autograd.grad(got[0].sum(), [*model.parameters()]), torch.autograd.grad(want[0].sum(), [*model.parameters()])
        )
        assert len(traced) == count
    with torch.no_grad():
        for count in (3, 4):
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(model)(x), model(x))
            assert len(traced) == count


@pytest.mark.parametrize("gone", ["graphs", "programs", "cut short", "altered"])
@torch.no_grad()
def test_what_is_not_there_is_traced(gone, compiled, traced, tmp_path):
    x = R(6, 6)
    compiled(scaled)(x, 2.5)
    if gone in ("cut short", "altered"):
        (path,) = (tmp_path / "graphs").iterdir()
        text = path.read_text()
        path.write_text(text[:-40] if gone == "cut short" else text.replace("[6, 6]", "[6, 7]"))
        assert path.read_text() != text
    else:
        Store(tmp_path).clear(gone)
    torch.testing.assert_close(compiled(scaled)(x, 2.5), scaled(x, 2.5))
    assert len(traced) == 2
    compiled(scaled)(x, 2.5)
    assert len(traced) == 2


@torch.no_grad()
def test_what_is_found_is_timed_beside_pytorch(compiled, traced, reports):
    x = R(64, 64)
    for _ in range(2):
        torch.testing.assert_close(compiled(scaled, guard=True)(x, 2.5), scaled(x, 2.5), rtol=1e-4, atol=1e-4)
        (timed,) = reports.pop().timed
        assert timed.what == "the graph" and timed.milliseconds is not None
    assert len(traced) == 1 and timed.remembered
