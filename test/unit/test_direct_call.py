"""The quick way through a call does what the general way does, and leaves to it what does not fit."""

import sys

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.direct import COMPILED_AFTER, MISSES, direct_call
from kitsune_mlir.runtime.results import strides


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(24, 12)

    def forward(self, x, y):
        h = self.linear(x)
        return torch.relu(h), h + y


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    model, args = Pair().eval(), (torch.randn(7, 24), torch.randn(7, 12))
    return model, args, kitsune_mlir.compile(model, args, target="host")


def test_it_is_taken_and_right(pair, monkeypatch):
    model, args, program = pair
    assert program._direct is not None
    monkeypatch.setattr(type(program), "_call", lambda *_: pytest.fail("the general way was taken"))
    with torch.no_grad():
        wanted = model(*args)
    got = program(*args)
    assert isinstance(got, tuple)
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g, w)
    assert program(*args)[0].data_ptr() != got[0].data_ptr()  # results are the caller's
    torch.testing.assert_close(program(torch.nn.Parameter(args[0]), args[1])[0], wanted[0])


def test_what_fits_is_learned_and_forgotten(pair):
    _, (x, y), program = pair
    wanted = program(x, y)
    direct = program._direct
    for number in range(3 * MISSES):
        other = x.clone().requires_grad_(number % 2 == 1)  # a guard tells them apart, the program need not
        torch.testing.assert_close(direct((other, y)), wanted)
    assert direct._misses == MISSES
    assert direct((x.double(), y)) is None and direct((x, y.t())) is None and direct((x,)) is None


def test_calls_are_bound_by_compiled_code(pair):
    """Of tensors like those that were often given; it holds nothing, and takes nothing away."""
    model, (x, y), _ = pair
    program = kitsune_mlir.compile(model, (x, y), target="host")
    direct = program._direct
    assert direct.bound((x, y)) is None
    for _ in range(2 * COMPILED_AFTER):
        program.bind((x, y), {})
    other = x.clone()
    for given in (x, other):
        pointers, results = direct.bound((given, y))
        assert pointers == (*direct.weights, given.data_ptr(), y.data_ptr(), *(r.data_ptr() for r in results))
        assert [(r.shape, r.stride(), r.dtype) for r in results] == [((7, 12), (12, 1), torch.float32)] * 2
    apart = torch.randn(7 * 24 + 1)[1:].view(7, 24)
    for wrong in ((x, y, y), (x,), [x, y], (x.double(), y), (x.t().contiguous().t(), y), (apart, y), (x, None)):
        assert direct.bound(wrong) is None
    held = (None, True, x, y, x.dtype, torch.Tensor.data_ptr, *direct.weights)
    before = [sys.getrefcount(one) for one in held]
    for _ in range(1000):
        direct.bound((x, y))
        direct.bound((apart, y))
        direct.bound((x, x))
    assert all(abs(sys.getrefcount(one) - count) < 50 for one, count in zip(held, before, strict=True))


def test_one_tensor_twice():
    class Sum(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    x = torch.randn(5)
    program = kitsune_mlir.compile(Sum(), (x, x.clone()), target="host")
    for _ in range(3):
        torch.testing.assert_close(program._direct((x, x)), 2 * x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: torch.randn(24, 7).T.copy_(x),
        lambda x: torch.randn(7 * 24 + 1)[1:].view(7, 24).copy_(x),
        lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
        lambda x: x.numpy(),
    ],
    ids=["strides", "alignment", "negated", "numpy"],
)
def test_what_has_to_be_converted_goes_the_general_way(pair, change):
    _, (x, y), program = pair
    given = change(x)
    assert program._direct((given, y)) is None
    torch.testing.assert_close(program(given, y), program(x, y))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.double(), "float64, compiled for torch.float32"),
        (lambda x: x[:5].contiguous(), r"shape \[5, 24\], compiled for \[7, 24\]"),
        (lambda x: x.to("meta"), "on meta, the program runs on cpu"),
        (lambda x: x.to_sparse(), "layout"),
        (lambda x: None, "input 'x' is None, a tensor was expected"),
    ],
    ids=["dtype", "shape", "device", "layout", "none"],
)
def test_errors_are_the_general_ones(pair, change, words):
    _, (x, y), program = pair
    with pytest.raises(ArgumentError, match=words):
        program(change(x), y)
    with pytest.raises(ArgumentError, match="structure|is missing"):
        program(x)


def test_keywords_and_nested_structures_have_no_quick_way():
    class Nested(torch.nn.Module):
        def forward(self, pair, scale=None):
            return pair[0] + pair[1]

    class Alias(torch.nn.Module):
        def forward(self, x):
            return x, x + 1

    x = torch.randn(3)
    assert kitsune_mlir.compile(Nested(), ((x, x),), target="host")._direct is None
    program = kitsune_mlir.compile(Alias(), (x,), target="host")
    assert program._direct is None and program(x)[0] is x


def test_outputs_of_any_structure():
    class Named(torch.nn.Module):
        def forward(self, x):
            return {"b": x + 1, "a": [x * 2]}

    x = torch.randn(3)
    program = kitsune_mlir.compile(Named(), (x,), target="host")
    assert program._direct is not None
    got = program(x)
    assert list(got) == ["b", "a"]
    torch.testing.assert_close(got["a"][0], x * 2)


def test_strides_of_an_order():
    assert strides((2, 3, 4)) == (12, 4, 1)
    assert strides((2, 3, 4), (0, 2, 1)) == (12, 1, 3)
    assert strides(()) == ()


def test_signatures_that_need_more_are_refused(pair):
    import dataclasses

    _, _, program = pair
    signature = program.signature
    specs = program._in_spec, program._out_spec
    place = torch.device("cpu")
    assert direct_call(signature, program._weight_tensors, place, program._usable_runner(), *specs) is not None
    mutating = dataclasses.replace(signature, outputs=(dataclasses.replace(signature.outputs[0], mutates="x"),))
    copying = direct_call(mutating, program._weight_tensors, place, program._usable_runner(), *specs)
    assert copying is not None and copying.late == [(0, len(signature.weights), "x")]
    itself = dataclasses.replace(signature, outputs=(dataclasses.replace(signature.outputs[0], mutates="x", kind="alias"),))
    assert direct_call(itself, program._weight_tensors, place, program._usable_runner(), *specs) is None
    complex_input = dataclasses.replace(signature.inputs[0], dtype="complex<f32>")
    typed = dataclasses.replace(signature, inputs=(complex_input, signature.inputs[1]))
    assert direct_call(typed, program._weight_tensors, place, program._usable_runner(), *specs) is None
