"""Weights that are computed from a model's own by a recipe: a list of PyTorch's operators, as JSON.

    [["aten.flip.default", [{"weight": "up.weight"}, [2, 3]], {}], ["aten.cat.default", [[{"step": 0}, {"weight": "v"}]], {}]]

An argument is a plain value, a list, a weight by name, the result of a step before, or a dtype. The last step gives the weight.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.signature import torch_dtype

__all__ = ["CASTS", "FACTORIES", "OPERATORS", "VIEWS", "check_recipe", "check_value", "evaluate", "sources_of"]

_VIEWS = """
alias.default clone.default detach.default lift_fresh_copy.default view.default _unsafe_view.default reshape.default
permute.default transpose.int t.default unsqueeze.default squeeze.dim squeeze.dims squeeze.default expand.default slice.Tensor
select.int
"""

VIEWS = frozenset("aten." + name for name in _VIEWS.split())
"""Operators whose results lie where their operand does, or could."""

FACTORIES = frozenset("aten." + name for name in ("arange.start_step", "full.default", "zeros.default", "ones.default"))
"""Operators without operands."""

_NAMES = """
cat.default constant_pad_nd.default flip.default roll.default repeat.default index_select.default tril.default
triu.default where.self add.Tensor add.Scalar sub.Tensor sub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar neg.default
abs.default exp.default log.default log1p.default expm1.default sqrt.default rsqrt.default reciprocal.default sigmoid.default
tanh.default relu.default clamp.default pow.Tensor_Scalar maximum.default minimum.default sin.default cos.default
gt.Scalar gt.Tensor ge.Scalar ge.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor eq.Scalar eq.Tensor ne.Scalar ne.Tensor
logical_and.default logical_not.default sum.dim_IntList mean.dim amax.default amin.default mm.default bmm.default
"""

CASTS = frozenset(["aten._to_copy.default", "prims.convert_element_type.default"])

OPERATORS = VIEWS | FACTORIES | CASTS | {"aten." + name for name in _NAMES.split()}
"""What a recipe may do: it is read from a file."""


_RESHAPES = {name: "aten.reshape.default" for name in ("aten.view.default", "aten._unsafe_view.default")}
"""A graph's views are of tensors that may lie otherwise here."""


SPARE, GROWTH = 1 << 30, 1024
"""Bytes that a step of a recipe from a file may give, and as many times the bytes of the weights that it is made of."""


def evaluate(recipe: str, weights: Mapping[str, Any], device: Any) -> Any:
    """The weight of a recipe, on a device.

    Args:
        weights: at least those that it names, by name, on any device.

    Raises:
        ArgumentError: a weight that chooses rows of another names one that there is not.
    """
    (last,) = collections.deque(_steps(recipe, weights, device), maxlen=1)
    return last


def _steps(recipe: str, weights: Mapping[str, Any], device: Any) -> Iterator[Any]:
    """What each step gives."""
    import torch

    steps: list[list[Any]] = json.loads(recipe)
    found: dict[int, Any] = {}
    # What no later step reads is given back: f64 copies of all weights would be several times the weights' memory.
    read_last = {what: number for number, step in enumerate(steps) for kind, what in _references(step[1:]) if kind == "step"}
    for number, (name, args, kwargs) in enumerate(steps):
        if name in FACTORIES:
            kwargs = {**kwargs, "device": device}
        namespace, operator, overload = (_RESHAPES[name] if name in _RESHAPES else name).split(".")
        function = getattr(getattr(getattr(torch.ops, namespace), operator), overload)
        operands = _value(args, found, weights, device)
        if name == "aten.index_select.default":
            _check_indices(*operands)
        with torch.no_grad():
            made = function(*operands, **{key: _value(part, found, weights, device) for key, part in kwargs.items()})
        del operands
        if number in read_last:
            found[number] = made
        for step in [step for step in found if read_last[step] == number]:
            del found[step]
        yield made


def _value(part: Any, found: Mapping[int, Any], weights: Mapping[str, Any], device: Any) -> Any:
    """An argument of a step. (No closure of `_steps`: one that calls itself would hold what was found until the next collection
    of circles.)"""
    if isinstance(part, list):
        return [_value(one, found, weights, device) for one in part]
    if not isinstance(part, dict):
        return part
    ((kind, what),) = part.items()
    if kind == "weight":
        return weights[what].detach().to(device)
    return found[what] if kind == "step" else torch_dtype(what)


def _check_indices(source: Any, dim: int, index: Any) -> None:
    """Weights may be others than those that the recipe was made with, and a GPU's process does not survive a wrong index."""
    if index.numel() and index.device.type != "meta" and not 0 <= index.min() <= index.max() < source.shape[dim]:
        raise ArgumentError(f"a weight's rows are chosen by {index.min()} to {index.max()}, of {source.shape[dim]}")


def sources_of(recipe: str) -> list[str]:
    """Names of the weights that a recipe reads, each once."""
    return list(dict.fromkeys(what for kind, what in _references(json.loads(recipe)) if kind == "weight"))


def check_recipe(recipe: str, known: Callable[[str], bool]) -> None:
    """A recipe is a list of operators that are allowed, on weights that are `known` and on results of steps before.

    Raises:
        ValueError: it is not; the message says what is wrong.
    """
    steps = json.loads(recipe)
    if not isinstance(steps, list) or not steps:
        raise ValueError("it has no steps")
    for number, step in enumerate(steps):
        if not (isinstance(step, list) and list(map(type, step)) == [str, list, dict]):
            raise ValueError(f"step {number} is no operator with arguments")
        if step[0] not in OPERATORS:
            raise ValueError(f"step {number} is the operator {step[0][:100]!r}, which no recipe has")
        for kind, what in _references(step[1:]):
            if kind == "step" and not (type(what) is int and 0 <= what < number):
                raise ValueError(f"step {number} reads step {what!r}")
            if kind == "weight" and not (isinstance(what, str) and known(what)):
                raise ValueError(f"step {number} reads the weight {what!r}, which there is not")
            if kind == "dtype":
                torch_dtype(str(what))


def check_value(recipe: str, sources: Mapping[str, tuple[Sequence[int], str]], shape: Sequence[int], dtype: str) -> None:
    """A recipe that `check_recipe` has accepted gives a tensor of a shape and dtype, and no giant ones on the way.

    Args:
        sources: shape and dtype of the weights that there are, by name.

    Raises:
        ValueError: it does not; the message says what it gives.
    """
    import torch

    try:
        weights = {n: torch.empty(sources[n][0], dtype=torch_dtype(sources[n][1]), device="meta") for n in sources_of(recipe)}
        found = list(_steps(recipe, weights, "meta"))
    except Exception as error:  # every operator has errors of its own for arguments that do not fit
        raise ValueError(f"it cannot be computed: {str(error).partition(chr(10))[0]}") from error
    most = SPARE + GROWTH * sum(weight.nbytes for weight in weights.values())
    for number, tensor in enumerate(found):
        if tensor.nbytes > most:
            raise ValueError(f"step {number} gives {tensor.nbytes} bytes")
    if tuple(found[-1].shape) != tuple(shape) or found[-1].dtype != torch_dtype(dtype):
        raise ValueError(f"it gives {found[-1].dtype} {list(found[-1].shape)} for {dtype} {list(shape)}")


def _references(part: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(part, list):
        for one in part:
            yield from _references(one)
    elif isinstance(part, dict):
        ((kind, what),) = part.items() if len(part) == 1 else (("", None),)
        if kind in ("weight", "step", "dtype") and not isinstance(what, dict):  # else keyword arguments, maybe a `dtype`
            yield kind, what
        else:
            for one in part.values():
                yield from _references(one)
