"""The same case in eager PyTorch and through torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["eager_and_compiled"]


def eager_and_compiled(case: Callable[[Callable[[Any], Any]], Any]) -> tuple[Any, Any]:
    """What a case gives with callables as they are, and with compiled ones; it is called with what compiles a callable."""
    found = []
    for compiled in (lambda function: function, lambda function: torch.compile(function, backend="kitsune")):
        torch._dynamo.reset()
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(case(compiled))
    return found[0], found[1]
