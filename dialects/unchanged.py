"""Facts of operations, attributes and types that are asked again and again.

Of attributes and types, which never change, a fact is found once in a run of the compiler (`constant`, inside `lasting`); of
operations, once while nothing changes them (`remembered`, inside `unchanged`). So equal layers share what is known of their
maps and shapes. Nothing is kept outside of these blocks: it would keep MLIR's contexts alive.

A stage is known by its result, since an operation's hash is another one when its attributes change: facts of stages are of
their bodies, which no scheduling pass changes, and last from one such pass to the next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from torch_mlir import ir

__all__ = ["constant", "found_once", "lasting", "remembered", "stages_unchanged", "unchanged"]

P = ParamSpec("P")
T = TypeVar("T")
_known: ContextVar[dict[tuple[Any, ir.Operation], Any] | None] = ContextVar("facts", default=None)
_stages: ContextVar[dict[tuple[Any, ir.Value], Any] | None] = ContextVar("facts of stages", default=None)
_constants: ContextVar[dict[tuple[Any, ...], Any] | None] = ContextVar("constants", default=None)


@contextmanager
def unchanged() -> Iterator[None]:
    """Nothing that `remembered` functions ask operations for is changed inside: each is asked once."""
    with _opened(_known), _opened(_stages):
        yield


@contextmanager
def stages_unchanged() -> Iterator[None]:
    """No stage's body is changed inside: `remembered` functions ask each stage once, and other operations every time."""
    with _opened(_stages):
        yield


@contextmanager
def lasting() -> Iterator[None]:
    """Facts of attributes and types are kept until the end of the outermost block."""
    with _opened(_constants):
        yield


@contextmanager
def _opened(variable: ContextVar[dict[Any, Any] | None]) -> Iterator[None]:
    token = variable.set({}) if variable.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            variable.reset(token)


def remembered(function: Callable[[ir.Operation], T]) -> Callable[[ir.Operation], T]:
    """Let a function of one operation, whose result nobody changes, be remembered where operations are `unchanged`.

    Of a stage it may look at the body alone.
    """

    @functools.wraps(function)
    def asked(op: ir.Operation) -> T:
        known: dict[Any, Any] | None = _known.get()
        key: tuple[Any, Any] = function, op
        if known is not None and key in known:  # no stage is
            return known[key]
        if op.name == "kitsune.stage":
            known, key = _stages.get(), (function, op.results[0])
        if known is None:
            return function(op)
        if key not in known:
            known[key] = function(op)
        return known[key]

    return asked


def constant(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function of attributes, types and plain values alone, whose result nobody changes, be remembered in `lasting`."""

    @functools.wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        known = _constants.get()
        if known is None or kwargs:
            return function(*args, **kwargs)
        key = (function, *args)
        if key not in known:
            known[key] = function(*args, **kwargs)
        return known[key]

    return asked


def found_once(key: tuple[Hashable, ...], find: Callable[[], T]) -> T:
    """What `find` gives, which is the same for all that have this key, and which nobody changes: found once in `lasting`.

    Neither may hold operations or values. An error is not kept.
    """
    known = _constants.get()
    if known is None:
        return find()
    if key not in known:
        known[key] = find()
    return known[key]
