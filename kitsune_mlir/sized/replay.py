"""A few operators around programs, as plain data: views, writes to inputs, random numbers, and the choice of results.

    {"steps": [["part", [0, {"input": 1}]], ["getitem", [{"step": 0}, 0]]], "outputs": [{"step": 1}]}

An argument is a plain value, a list, or an input or the result of a step before by number; the first of "part" is its number.
What makes tensors has arguments by name behind these: `{"dtype": "float32"}`. They are made where the first input is.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from kitsune_mlir.errors import PackageError
from kitsune_mlir.runtime.arguments import copied_uncounted
from kitsune_mlir.runtime.derived import VIEWS

__all__ = ["Replay", "check_replay", "replay_of"]

_WRITE = "aten.copy_.default"
_OPERATORS = VIEWS | {
    *(_WRITE, "aten.as_strided.default", "aten.unfold.default", "aten.diagonal.default", "aten.split.Tensor"),
    *("prims.squeeze.default", "prims.broadcast_in_dim.default", "prims.transpose.default", "prims.view_of.default"),
}
_MADE = {
    *("aten.empty_strided.default", "aten.rand_like.default", "aten.randn_like.default", "aten.rand.default"),
    *("aten.randn.default", "aten.full.default", "aten.native_dropout.default", "aten.bernoulli.default", "aten.bernoulli.p"),
    *("aten.randint.default", "aten.randint.low", "aten.uniform.default", "aten.normal_functional.default"),
}
"""Operators that draw random numbers, and that make what tells them sizes."""
_NAMED = {"dtype": torch.dtype, "device": torch.device, "pin_memory": bool}
_PLAIN = (int, float, bool, str, type(None))

Plain = Mapping[str, Any]


def replay_of(graph: fx.Graph, parts: Callable[[str], int]) -> dict[str, Any]:
    """A graph as plain data.

    Args:
        parts: the number of the part that a module is.

    Raises:
        PackageError: it has an operator that a file cannot hold; names it.
    """
    places: dict[fx.Node, dict[str, int]] = {}
    steps: list[list[Any]] = []

    def value(part: Any) -> Any:
        if isinstance(part, fx.Node):
            return places[part]
        if isinstance(part, list | tuple):
            return [value(one) for one in part]
        if type(part) in _PLAIN:
            return part
        raise PackageError(f"a package cannot hold the operand {part!r}, which PyTorch's operators take around programs")

    outputs: list[Any] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            places[node] = {"input": len(places)}
            continue
        if node.op == "output":
            outputs = value(list(node.args[0]))
            continue
        name = "part" if node.op == "call_module" else "getitem" if node.target is operator.getitem else str(node.target)
        name = _WRITE if node.target is copied_uncounted else name
        named = {**node.kwargs} if name in _MADE else {}
        known = (
            node.op != "get_attr" and named == node.kwargs and all(isinstance(v, _NAMED.get(n, ())) for n, v in named.items())
        )
        if not known or name not in (*_OPERATORS, *_MADE, "part", "getitem"):
            raise PackageError(f"a package cannot hold the operator '{node.target}', which PyTorch runs between programs")
        places[node] = {"step": len(steps)}
        step = [name, [parts(str(node.target)), *value(node.args)] if name == "part" else value(node.args)]
        dtype = {"dtype": str(named["dtype"]).removeprefix("torch.")} if "dtype" in named else {}
        steps.append([*step, dtype] if name in _MADE else step)
    return {"steps": steps, "outputs": outputs}


def check_replay(data: Any, inputs: int, parts: int) -> None:
    """ValueError where this is no such data, of so many inputs and parts."""

    def check(part: Any, before: int) -> None:
        if isinstance(part, list):
            for one in part:
                check(one, before)
        elif isinstance(part, dict):
            ((kind, number),) = part.items() if len(part) == 1 else (("", None),)
            if type(number) is not int or not 0 <= number < {"input": inputs, "step": before}.get(kind, 0):
                raise ValueError(f"step {before} reads {part!r:.60}")
        elif type(part) not in _PLAIN:
            raise ValueError(f"step {before} has the operand {part!r:.60}")

    if not isinstance(data, dict) or {*data} != {"steps", "outputs"} or not all(isinstance(v, list) for v in data.values()):
        raise ValueError("it has no steps and outputs")
    for number, step in enumerate(data["steps"]):
        made = isinstance(step, list) and bool(step) and isinstance(step[0], str) and step[0] in _MADE
        if not (isinstance(step, list) and list(map(type, step)) == [str, list, dict][: 3 if made else 2] and step[1]):
            raise ValueError(f"step {number} is no operator with arguments")
        if made and not ({*step[2]} <= {"dtype"} and all(isinstance(_dtype(one), torch.dtype) for one in step[2].values())):
            raise ValueError(f"step {number} makes a tensor of {step[2]!r:.60}")
        if step[0] == "part" and (type(step[1][0]) is not int or not 0 <= step[1][0] < parts):
            raise ValueError(f"step {number} calls part {step[1][0]!r:.60}")
        if step[0] not in ("part", "getitem") and step[0] not in _OPERATORS and not made:
            raise ValueError(f"step {number} is the operator {step[0][:100]!r}, which packages have not")
        check(step[1], number)
    check(data["outputs"], len(data["steps"]))


class Replay:
    """A function of inputs that gives outputs as a list.

    Args:
        data: as `replay_of` gives it.
        parts: what its parts are.
    """

    def __init__(self, data: Plain, parts: Sequence[Callable[..., Any]]):
        self.data, self.parts = data, parts
        self._steps = [
            (_function(name, args, parts), args[1:] if name == "part" else args, _named(name, *named))
            for name, args, *named in data["steps"]
        ]
        self._outputs = data["outputs"]

    def __call__(self, *inputs: Any) -> list[Any]:
        """The outputs."""
        found: list[Any] = []

        def value(part: Any) -> Any:
            if isinstance(part, dict):
                return inputs[part["input"]] if "input" in part else found[part["step"]]
            return [value(one) for one in part] if isinstance(part, list) else part

        for function, args, named in self._steps:
            if "device" in named:
                named = {**named, "device": inputs[0].device}
            found.append(function(*map(value, args), **named))
        return value(self._outputs)


def _function(name: str, args: Sequence[Any], parts: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    if name == "part":
        return parts[args[0]]
    if name == "getitem":
        return operator.getitem
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def _named(name: str, given: Plain | None = None) -> dict[str, Any]:
    """Arguments by name of what makes tensors; the device is not known yet."""
    if given is None:
        return {}
    own = (
        {}
        if "like" in name or not any(a.name == "device" for a in _function(name, (), ())._schema.arguments)
        else {"device": None}
    )
    return {**{key: _dtype(value) for key, value in given.items()}, **own}


def _dtype(name: Any) -> Any:
    return getattr(torch, name, None) if isinstance(name, str) else None
