"""Models recorded call by call: each call runs at once on sample tensors, so that what is drawn next knows all shapes.

A recorded model prints itself as PyTorch code, and can be made smaller while it keeps failing (`shrunk`).
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Model", "Recorder", "Value", "shrunk"]


@dataclass(eq=False, repr=False)  # torch.export prints what a module holds
class Value:
    """A value of a recorded model.

    Attributes:
        sample: what it is for the sample inputs: a tensor, or a tuple where a call has several results.
        name: of a call's function, such as "torch.cat"; "" for an input or a weight.
        exact: its numbers do not depend on how sums are rounded: only these are compared with each other or sorted, so that
            no rounding decides a choice.
        weight: it belongs to the model.
    """

    sample: Any
    name: str = ""
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    exact: bool = True
    weight: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the sample."""
        return tuple(self.sample.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the sample."""
        return self.sample.dtype


def _values(item: Any) -> Iterator[Value]:
    if isinstance(item, Value):
        yield item
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _values(part)


def _filled(item: Any, fill: Callable[[Value], Any]) -> Any:
    if isinstance(item, Value):
        return fill(item)
    if isinstance(item, list | tuple):
        return type(item)(_filled(part, fill) for part in item)
    return item


SPECIAL = ("torch.Tensor.to", "torch.arange")
"""Calls that are not what their names say: a reference stays in float64, and positions are made on a value's device."""


def _call(name: str, args: Sequence[Any], kwargs: Sequence[tuple[str, Any]]) -> Any:
    if name == "torch.Tensor.to":  # a reference in float64 stays there
        x, dtype = args
        return x if x.dtype == torch.float64 and dtype.is_floating_point else x.to(dtype)
    if name == "torch.arange":
        count, like = args
        return torch.arange(count, device=like.device)
    found: Any = {"torch": torch, "operator": operator}[name.split(".")[0]]
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found(*args, **dict(kwargs))


class Recorder:
    """Records a model; `draw` are its tensors' random numbers.

    Calling it runs a function, named as in Python ("torch.nn.functional.relu"), on recorded values and plain arguments.
    (`torch.arange` takes a count, and a value whose device it has.)

    Args:
        large: only shapes of results are computed: their samples have no numbers.
    """

    def __init__(self, seed: int, large: bool = False):
        self.draw, self.large = torch.Generator().manual_seed(seed), large

    def input(self, *shape: int, dtype: torch.dtype = torch.float32) -> Value:
        """An input of normally distributed numbers."""
        return Value(torch.randn(shape, generator=self.draw).to(dtype))

    def index(self, *shape: int, limit: int) -> Value:
        """An input of i64 numbers in [0, limit)."""
        return Value(torch.randint(0, limit, shape, generator=self.draw))

    def weight(self, *shape: int, dtype: torch.dtype = torch.float32, fan: int = 0, around: float = 0.0) -> Value:
        """A weight: normally distributed `around` a number, with variance 1 / `fan` (default: all dimensions but the first)."""
        scale = math.sqrt(fan or max(1, math.prod(shape[1:])))
        return Value((around + torch.randn(shape, generator=self.draw) / scale).to(dtype), weight=True)

    def __call__(self, name: str, *args: Any, exact: bool = False, **kwargs: Any) -> Value:
        """The call's result. `exact`: it only moves, compares or counts; it is so where its operands are."""
        exact = exact and all(value.exact for value in _values((args, tuple(kwargs.values()))))
        run = [_filled(args, self._sample), _filled(tuple(kwargs.items()), self._sample)]
        with torch.no_grad():
            return Value(_call(name, *run), name, args, tuple(kwargs.items()), exact)

    def _sample(self, value: Value) -> Any:
        return value.sample.to("meta") if self.large and isinstance(value.sample, torch.Tensor) else value.sample

    def parts(self, name: str, *args: Any, exact: bool = False, **kwargs: Any) -> list[Value]:
        """The results of a call that has several."""
        whole = self(name, *args, exact=exact, **kwargs)
        return [self("operator.getitem", whole, number, exact=exact) for number in range(len(whole.sample))]


class Model(torch.nn.Module):
    """The calls that some recorded values need, as a model of the inputs that these need (`arguments`)."""

    def __init__(self, outputs: Sequence[Value], replaced: Sequence[Value] = ()):
        """`replaced`: results of calls that are inputs instead, with the same numbers."""
        super().__init__()
        self.outputs, self.replaced = list(outputs), list(replaced)
        order: dict[Value, None] = {}

        def visit(value: Value) -> None:
            if value not in order:
                if value not in replaced:
                    for operand in _values((value.args, value.kwargs)):
                        visit(operand)
                order[value] = None

        for output in outputs:
            visit(output)
        self.inputs = [value for value in order if value in replaced or not (value.name or value.weight)]
        self.held = [value for value in order if value.weight]
        self.calls = [value for value in order if value.name and value not in replaced]
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(value.sample.clone(), requires_grad=False) for value in self.held
        )
        self.number = {value: number for number, value in enumerate((*self.inputs, *self.held, *self.calls))}
        given = ", ".join(f"v{self.number[value]}" for value in (*self.inputs, *self.held))
        code = "".join(f"    {line}\n" for line in self._code())
        names: dict[str, Any] = {"torch": torch, "operator": operator, "inf": math.inf, "call": _call}
        exec(f"def run({given}):\n{code}", names)
        self.run = names["run"]

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        other = Model(self.outputs, self.replaced)
        other.weights = copy.deepcopy(self.weights, memo)
        return other

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """The sample inputs."""
        return tuple(value.sample for value in self.inputs)

    def _numbered(self, item: Any) -> Any:
        return _filled(item, lambda value: _Place(self.number[value]))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs, for inputs of the samples' shapes and types."""
        # Not *self.weights: dynamo of PyTorch 2.11 cannot unpack a ParameterList.
        return self.run(*inputs, *[self.weights[number] for number in range(len(self.held))])

    def _code(self) -> Iterator[str]:
        """A line for each call, and one that returns the outputs: what runs is what PyTorch's users would write."""
        for value in self.calls:
            words = [_text(self._numbered(a)) for a in value.args]
            words += [f"{key}={_text(self._numbered(given))}" for key, given in value.kwargs]
            if value.name in SPECIAL:
                yield f"v{self.number[value]} = call({value.name!r}, ({', '.join(words)}), ())"
            else:
                yield f"v{self.number[value]} = {value.name}({', '.join(words)})"
        yield "return " + "".join(f"v{self.number[v]}, " for v in self.outputs)

    def source(self) -> str:
        """The model as PyTorch code."""
        lines = []
        for value, number in self.number.items():
            if value not in self.calls:
                order = f", strides {value.sample.stride()}" if not value.sample.is_contiguous() else ""
                lines.append(f"v{number}: {'weight' if value.weight else 'input'} {list(value.shape)} {value.dtype}{order}")
        return "\n".join([*lines, *self._code()]).removesuffix(", ")


class _Place(int):
    """Number of a value in a model."""

    def __repr__(self) -> str:
        return f"v{int(self)}"


def _text(item: Any) -> str:
    return repr(item)


def shrunk(model: Model, fails: Callable[[Model], bool]) -> Model:
    """The smallest model found that still fails: one output, and results of calls made inputs, as many as possible."""
    tensors = [value for value in model.calls if isinstance(value.sample, torch.Tensor)]
    for candidate in [Model([value], model.replaced) for value in (*tensors, *model.outputs)]:
        if fails(candidate):
            model = candidate
            break
    else:
        for value in list(model.outputs):
            rest = [other for other in model.outputs if other is not value]
            if rest and fails(candidate := Model(rest, model.replaced)):
                model = candidate
    again = True
    while again:
        again = False
        for value in model.calls:
            if value in model.outputs or not isinstance(value.sample, torch.Tensor) or value not in model.number:
                continue
            candidate = Model(model.outputs, [*model.replaced, value])
            if fails(candidate):
                model, again = candidate, True
                break
    return model
