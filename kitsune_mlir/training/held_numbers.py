"""Numbers that an update reads from tensors (`norm.item()`): the graph computes them, instead of Python."""

from __future__ import annotations

import builtins
import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["held_numbers"]


@contextlib.contextmanager
def held_numbers(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """While it is entered, what a tensor of one element holds is that element as a tensor [], for an optimizer's update.

    `min` and `max` of several values are then those of the optimizer's file for tensors, too. Numbers have the digits of
    parameters, at least those of f32.
    """
    names = inspect.unwrap(type(optimizer).step).__globals__
    choices = {
        "min": _chosen(builtins.min, lambda new, old: new < old),
        "max": _chosen(builtins.max, lambda new, old: new > old),
    }
    wide = any(p.dtype == torch.float64 for group in optimizer.param_groups for p in group["params"])
    with mock.patch.dict(names, choices), _Held(torch.float64 if wide else torch.float32):
        yield


class _Held(TorchFunctionMode):
    def __init__(self, kind: torch.dtype):
        super().__init__()
        self._kind = kind

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.item and args[0].is_floating_point():
            return args[0].detach().reshape(()).to(self._kind)
        return func(*args, **(kwargs or {}))


def _chosen(function: Callable[..., Any], better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Python's `min` or `max`: the first of equal values, and as tensors if one is."""

    def chosen(*values: Any, **options: Any) -> Any:
        if options or len(values) < 2 or not any(isinstance(value, Tensor) for value in values):
            return function(*values, **options)
        found = values[0]
        for value in values[1:]:
            found = torch.where(better(value, found), value, found)
        return found

    return chosen
