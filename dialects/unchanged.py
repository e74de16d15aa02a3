"""Facts of operations that are asked again and again while nothing changes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from torch_mlir import ir

__all__ = ["remembered", "unchanged"]

T = TypeVar("T")
_known: ContextVar[dict[tuple[Any, ir.Operation], Any] | None] = ContextVar("facts", default=None)


@contextmanager
def unchanged() -> Iterator[None]:
    """Nothing that `remembered` functions ask operations for is changed inside: each is asked once."""
    token = _known.set({}) if _known.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _known.reset(token)


def remembered(function: Callable[[ir.Operation], T]) -> Callable[[ir.Operation], T]:
    """Let a function of one operation, whose result nobody changes, be remembered where operations are `unchanged`."""

    @functools.wraps(function)
    def asked(op: ir.Operation) -> T:
        known = _known.get()
        if known is None:
            return function(op)
        key = function, op
        if key not in known:
            known[key] = function(op)
        return known[key]

    return asked
