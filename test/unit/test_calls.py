"""Calls of a program with what does not fit: every one is an ArgumentError in words, and what can be taken is taken."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, PackageError
from kitsune_mlir.runtime.structure import call_words

TAKES = "the program takes (tensor, {'a': tensor, 'b': [tensor]}, scale=tensor) and was given "


class Nested(torch.nn.Module):
    def forward(self, x: torch.Tensor, pair: dict[str, Any], k: Any = None, *, scale: torch.Tensor, flag: bool = True) -> Any:
        return x + pair["a"] - pair["b"][0] * scale


X, A, B, SCALE = torch.randn(2, 4), torch.randn(4), torch.randn(4), torch.randn(4)
PAIR = {"a": A, "b": [B]}


@pytest.fixture(scope="module")
def program() -> Any:
    return kitsune_mlir.compile(Nested(), (X, PAIR), {"scale": SCALE}, target="host")


@pytest.mark.parametrize(
    ("args", "kwargs", "given"),
    [
        ((), {}, "argument 'x' is missing and argument 'pair' is missing and argument 'scale' is missing: ()"),
        ((X, PAIR), {}, "argument 'scale' is missing: (tensor, {'a': tensor, 'b': [tensor]})"),
        (
            (X, A),
            {"scale": SCALE},
            "argument 'pair' is tensor and not {'a': tensor, 'b': [tensor]}: (tensor, tensor, scale=tensor)",
        ),
        (
            (X, PAIR, None, "off"),
            {"scale": SCALE},
            "there is no argument 'args[2]' and there is no argument 'args[3]': "
            "(tensor, {'a': tensor, 'b': [tensor]}, None, 'off', scale=tensor)",
        ),
        (
            (X, PAIR),
            {"scal": SCALE},
            "argument 'scale' is missing and there is no argument 'scal': (tensor, {'a': tensor, 'b': [tensor]}, scal=tensor)",
        ),
        (
            (X, PAIR),
            {"scale": SCALE, "flag": True},
            "there is no argument 'flag': (tensor, {'a': tensor, 'b': [tensor]}, scale=tensor, flag=True)",
        ),
        (
            (X, {"a": A, "b": (B,)}),
            {"scale": SCALE},
            "argument pair['b'] is (tensor,) and not [tensor]: (tensor, {'a': tensor, 'b': (tensor,)}, scale=tensor)",
        ),
        (
            (X, {"a": A, "b": [B, 3]}),
            {"scale": SCALE},
            "argument pair['b'] is [tensor, tensor] and not [tensor]: (tensor, {'a': tensor, 'b': [tensor, 3]}, scale=tensor)",
        ),
        (
            ([X], PAIR),
            {"scale": SCALE},
            "argument 'x' is [tensor] and not tensor: ([tensor], {'a': tensor, 'b': [tensor]}, scale=tensor)",
        ),
        ((X, PAIR), {"scale": X.numpy()[:0]}, None),
    ],
)
def test_other_structures_in_words(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: str | None) -> None:
    with pytest.raises(ArgumentError) as caught:
        program(*args, **kwargs)
    assert "TreeSpec" not in str(caught.value)
    if given is not None:
        difference, _, words = given.partition(": (")
        assert str(caught.value) == f"{difference}: {TAKES}({words}"


def test_arguments_by_name(program: Any) -> None:
    """What was compiled by position may be named in a call, as it may in the model's."""
    want = program(X, PAIR, scale=SCALE)
    for args, kwargs in (((X,), {"pair": PAIR}), ((), {"pair": {"b": [B], "a": A}, "x": X})):
        assert torch.equal(program(*args, scale=SCALE, **kwargs), want)
    for args, kwargs, words in (
        ((X, PAIR), {"pair": PAIR}, "'pair' is given twice"),
        ((PAIR,), {"x": X}, "'x' is given twice"),
    ):
        with pytest.raises(ArgumentError, match=f"argument {words}"):
            program(*args, scale=SCALE, **kwargs)


def test_names_of_arguments(tmp_path: Path) -> None:
    """Of parameters, of what `*rest` takes, of an exported program's; in a package; none are known of C++'s functions."""

    def many(x: torch.Tensor, *rest: torch.Tensor, scale: float) -> torch.Tensor:
        return x + rest[0] * rest[1] * scale

    exported = torch.export.export(Nested(), (X, PAIR), {"scale": SCALE})
    for model, args, kwargs, names in (
        (many, (X, A, B), {"scale": 2.0}, ("x", "rest[0]", "rest[1]")),
        (exported, (), {}, ("x", "pair")),
        (torch.add, (X, A), {}, ()),
    ):
        program = kitsune_mlir.compile(model, args, kwargs, target="host")
        program.save(tmp_path / "m.kit")
        for one in (program, kitsune_mlir.load(tmp_path / "m.kit")):
            assert one.signature.parameters == names
            with pytest.raises(ArgumentError, match="argument '(x|args.0.)' is missing"):
                one()
    nested = kitsune_mlir.compile(lambda x, by: x * by["k"][1], (X, {"k": [1, 2]}), target="host")
    with pytest.raises(ArgumentError, match=r"argument by\['k'\]\[1\] is 3; the program was compiled for 2 only"):
        nested(X, {"k": [1, 3]})
    program = kitsune_mlir.compile(many, (X, A, B), {"scale": 2.0}, target="host")
    with pytest.raises(ArgumentError, match="argument 'scale' is 3.0; the program was compiled for 2.0 only"):
        program(X, A, B, scale=3.0)
    with pytest.raises(ArgumentError, match=r"argument 'rest\[1\]' is missing: the program takes"):
        program(X, A, scale=2.0)


def test_dictionaries_have_any_order(program: Any) -> None:
    other = program(X, {"b": [B], "a": A}, scale=SCALE)
    torch.testing.assert_close(other, X + A - B * SCALE)
    assert torch.equal(other, program(X, PAIR, scale=SCALE))


def test_structures_in_pythons_notation() -> None:
    point = namedtuple("point", "x y")
    table = defaultdict(list, {"k": 0})
    value = (((), (0,), (0, [0])), point(0, 0), OrderedDict(q=0), table, deque([0]), torch.max(torch.ones(1, 1), 1))
    leaves, spec = pytree.tree_flatten((value, {"w": {1: 0}}))
    words = call_words(spec, [f"t{n}" for n in range(len(leaves))])
    assert words == (
        "(((), (t0,), (t1, [t2])), point(x=t3, y=t4), OrderedDict({'q': t5}), defaultdict({'k': t6}), deque([t7]), "
        "max(values=t8, indices=t9), w={1: t10})"
    )
    many = call_words(pytree.tree_structure(((0,) * 500, {})), ["tensor"] * 500)
    assert len(many) < 450 and many.endswith("... (500 values)")


def readonly(x: torch.Tensor) -> np.ndarray:
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (None, "input 'x' is None, a tensor was expected"),
        (3.5, "input 'x' is 3.5, a tensor was expected"),
        ("y" * 1000, "input 'x' is 'yyyyy"),
        ({1, 2}, "input 'x' is a set, a tensor was expected"),
        (np.float32(3), "input 'x' is a float32, a tensor was expected"),
        (X.double().numpy(), "input 'x' is torch.float64, compiled for torch.float32"),
        (np.array([object()]), "input 'x' is a ndarray that cannot be taken as a tensor: "),
        (np.array(["text"]), "input 'x' is a ndarray that cannot be taken as a tensor: "),
        (X.numpy().astype(">f4"), "input 'x' is a ndarray that cannot be taken as a tensor: "),
        (X.to("meta"), "input 'x' is on meta, the program runs on cpu"),
        (X.to_sparse(), "input 'x' has layout torch.sparse_coo, a dense tensor was expected"),
        (X.to_mkldnn(), "input 'x' has layout torch._mkldnn, a dense tensor was expected"),
        (X.to(torch.complex64), "input 'x' is torch.complex64, compiled for torch.float32"),
        (X.T, "input 'x' has shape [4, 2], compiled for [2, 4]"),
    ],
    ids=range(14),
)
def test_values_that_are_no_such_tensors(program: Any, x: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        program(x, PAIR, scale=SCALE)
    assert str(caught.value).startswith(words) and len(str(caught.value)) < 200


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_memory(program: Any) -> None:
    with FakeTensorMode():
        fake = torch.randn(2, 4)
    nested = torch.nested.nested_tensor([X, X])
    flat = kitsune_mlir.compile(torch.nn.Tanh(), (X,), target="host")
    for x, words in ((fake, "is a FakeTensor and has no memory"), (nested, "is nested, a dense tensor was expected")):
        with pytest.raises(ArgumentError, match=words):
            program(x, PAIR, scale=SCALE)
    for run in (lambda x: program(x, PAIR, scale=SCALE).sum(), lambda x: flat(x).sum()):
        with pytest.raises(ArgumentError, match="has no memory: programs cannot be traced, mapped or differentiated"):
            torch.func.grad(run)(X)
        with pytest.raises(ArgumentError, match="has no memory: programs cannot be traced, mapped or differentiated"):
            torch.vmap(run)(torch.randn(3, 2, 4))


def test_arrays_with_any_strides_are_taken(program: Any) -> None:
    for array in (X.numpy()[::-1], X.numpy()[:, ::-1], readonly(X), np.broadcast_to(X.numpy()[0], (2, 4))):
        wanted = torch.from_numpy(array.copy()) + A - B * SCALE
        torch.testing.assert_close(program(array, PAIR, scale=SCALE), wanted)


class Changing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return x * 2.0


def test_inputs_that_the_model_changes() -> None:
    program = kitsune_mlir.compile(Changing(), (X.clone(),), target="host")
    array = X.numpy().copy()
    torch.testing.assert_close(program(array), 2 * (X + 1))
    np.testing.assert_array_equal(array, X.numpy() + 1)
    with pytest.raises(ArgumentError, match="input 'x' is a ndarray that cannot be written, and the model changes it"):
        program(readonly(X))
    with pytest.raises(ArgumentError, match="input 'x' is a ndarray with negative strides, which tensors have not"):
        program(X.numpy().copy()[::-1])
    with pytest.raises(ArgumentError, match="'x', which the model changes, cannot be overwritten: "):
        program(torch.randn(4).expand(2, 4))


class Fixed(torch.nn.Module):
    def forward(self, x: torch.Tensor, low: float, zero: float) -> torch.Tensor:
        return torch.copysign(x, zero) if low != low else x


def test_values_that_are_compiled_in() -> None:
    program = kitsune_mlir.compile(Fixed(), (X, float("nan"), 0.0), target="host")
    assert torch.equal(program(X, float("nan"), 0.0), X.abs())
    for value, words in ((-0.0, "-0.0"), (0, "0"), (X, "a tensor"), (None, "None")):
        with pytest.raises(ArgumentError, match=f"argument 'zero' is {words}; the program was compiled for 0.0 only"):
            program(X, float("nan"), value)


def test_a_program_loaded_in_inference_mode_sees_changes_of_its_weights(tmp_path: Any) -> None:
    """Tensors of that mode do not count changes; a weight that is placed elsewhere is one here because it is not aligned."""
    model = torch.nn.Linear(4, 3, bias=False).requires_grad_(False)
    kitsune_mlir.compile(model, (X,), target="host").save(tmp_path / "m.kit", weights=False)
    with torch.inference_mode():
        weight = torch.randn(13)[1:].view(3, 4)
        program = kitsune_mlir.load(tmp_path / "m.kit", weights={"weight": weight})
        for _ in range(2):
            torch.testing.assert_close(program(X), X @ weight.T)
            weight.mul_(2.0)


def test_weights_that_are_sparse(tmp_path: Any) -> None:
    kitsune_mlir.compile(torch.nn.Linear(4, 3), (X,), target="host").save(tmp_path / "m.kit", weights=False)
    with pytest.raises(ArgumentError, match="weight 'weight' has layout torch.sparse_coo, a dense tensor was expected"):
        kitsune_mlir.load(tmp_path / "m.kit", weights={"weight": torch.randn(3, 4).to_sparse(), "bias": torch.randn(3)})


def test_paths_that_are_none(program: Any, tmp_path: Any) -> None:
    for path in (None, 0, b"m.kit"):
        with pytest.raises(ArgumentError, match="a path was expected, not "):
            kitsune_mlir.load(path)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ArgumentError, match="a path was expected, not "):
            program.save(path)
    (tmp_path / "empty.kit").touch()
    with pytest.raises(PackageError, match="not a .kit file"):
        kitsune_mlir.load(tmp_path / "empty.kit")
