"""Futures of many requests that cost little: a lock and a condition are made for those that somebody waits for.

`concurrent.futures.Future` makes a condition for each future and takes it at every step, whether or not somebody waits for it
before it is answered. Here one lock guards the steps of all futures that have no condition of their own yet, and whoever starts
or answers a launch takes it once for all of its requests. As soon as somebody waits, cancels, or hands a future to
`concurrent.futures.wait` or asyncio, it has its condition, and every later step of it is the standard library's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import _base as states
from typing import Any, TypeVar

__all__ = ["Answer", "answer", "start"]

A = TypeVar("A", bound="Answer")

_guard = threading.Lock()
"""Of all futures without a condition; held for a few instructions, and nobody waits for anything else meanwhile."""

_PENDING, _RUNNING, _FINISHED = states.PENDING, states.RUNNING, states.FINISHED
_CANCELLED = frozenset((states.CANCELLED, states.CANCELLED_AND_NOTIFIED))
_DONE = _CANCELLED | {_FINISHED}


class Answer(Future[Any]):
    """A future, see the module; `start` and `answer` are its executor's side."""

    _state = _PENDING
    _result = None
    _exception = None
    _done_callbacks: Sequence[Callable[[Future[Any]], object]] = ()
    _own = False  # whether it has a condition

    def __init__(self) -> None:
        """Nothing: what `Future` makes here is made by `__getattr__`, when it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name not in ("_condition", "_waiters"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        with _guard:
            if not self._own:
                self._condition, self._waiters = threading.Condition(), []
                self._done_callbacks = [*self._done_callbacks]
                self._own = True
        self.waited_for()
        return self.__dict__[name]

    def waited_for(self) -> None:
        """Called when it gets its condition: somebody waits for it, alone or with others."""

    def dropped(self) -> None:
        """Called once, by whoever cancels it."""

    @property
    def pending(self) -> bool:
        """Whether it was neither started nor cancelled."""
        return self._state is _PENDING

    def cancelled(self) -> bool:
        """As of `Future`."""
        return self._state in _CANCELLED

    def done(self) -> bool:
        """As of `Future`."""
        return self._state in _DONE

    def result(self, timeout: float | None = None) -> Any:
        """As of `Future`."""
        if self._state is _FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of `Future`."""
        return self._exception if self._state is _FINISHED else super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """As of `Future`."""
        with _guard:
            if not self._own and self._state is not _FINISHED:
                self._done_callbacks = [*self._done_callbacks, fn]
                return
        super().add_done_callback(fn)

    def _invoke_callbacks(self) -> None:
        if self.cancelled():
            self.set_running_or_notify_cancel()  # tells those that `concurrent.futures.wait`
            self.dropped()
        super()._invoke_callbacks()  # type: ignore[misc]


def start(answers: Sequence[A]) -> Sequence[A]:
    """Those that were not cancelled; they cannot be any more."""
    own = []
    with _guard:
        for one in answers:
            if one._own:
                own.append(one)
            else:
                one._state = _RUNNING
    for one in own:
        with one._condition:  # not `set_running_or_notify_cancel`: whoever cancels notifies
            one._state = _RUNNING if one._state == _PENDING else one._state
    return [one for one in answers if one._state is _RUNNING] if own else answers


def answer(answers: Sequence[Answer], outputs: Sequence[Any]) -> None:
    """Give each of some that were started its output, or the error that is in its place."""
    own, called = [], []
    with _guard:
        for one, output in zip(answers, outputs, strict=True):
            if one._own:
                own.append((one, output))
                continue
            if isinstance(output, BaseException):
                one._exception = output
            else:
                one._result = output
            one._state = _FINISHED
            if one._done_callbacks:
                called.append(one)
    for one, output in own:
        if isinstance(output, BaseException):
            one.set_exception(output)
        else:
            one.set_result(output)
    for one in called:
        one._invoke_callbacks()
