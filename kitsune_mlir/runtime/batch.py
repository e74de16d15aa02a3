"""`Batch`: several calls of one program as one launch (coalescing; "The OoO VLIW JIT Compiler", section 4)."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kitsune_mlir.errors import ArgumentError, ConflictError, KitsuneError
from kitsune_mlir.runtime.bound import Bound, stream_of
from kitsune_mlir.runtime.direct import DirectCall
from kitsune_mlir.runtime.plain import shown
from kitsune_mlir.runtime.runner import Runner
from kitsune_mlir.runtime.strided import span_of

__all__ = ["Batch", "Callee", "shared_memory"]


_End = tuple[Callable[[Any], Any], Any]
"""What makes an output, and of what."""
_Made = tuple[list[Sequence[int]], list[_End], Any]
"""Pointers of calls, how their outputs are made, and the device."""


class Callee(Protocol):
    """What a batch needs of a program (`runtime.program.Program`)."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        """A call that is not made yet."""
        ...

    @property
    def direct(self) -> DirectCall | None:
        """The quick way through calls, where there is one now."""
        ...

    def shares_code(self, other: Any) -> bool:
        """Whether both run the same code."""
        ...


class Batch:
    """A program for up to `limit` requests at once; `Program.batch` makes it.

    The request is the outermost dimension of every task, and pointers to arguments come from a table, so nothing is stacked or
    copied; intermediates and counters are there once a request.

    Attributes:
        program: for requests that bring no weights of their own.
        limit: most requests of a call.
        runner: runs the code.
    """

    def __init__(self, program: Callee, runner: Runner, limit: int):
        if type(limit) is not int or limit < 1:
            raise ArgumentError(f"a batch has a limit of at least 1 request, not {shown(limit)}")
        if limit > runner.most_requests:
            raise ArgumentError(
                f"a batch of {limit} requests: the program was compiled for at most {runner.most_requests} in one launch "
                f"(option 'requests')"
            )
        self.program, self.limit, self.runner = program, limit, runner

    def __call__(
        self,
        requests: Sequence[Sequence[Any]],
        programs: Sequence[Callee] | None = None,
        kwargs: Sequence[Mapping[str, Any]] | None = None,
        *,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Run all requests, of any number up to the limit, as so many calls of the program would.

        Args:
            requests: the positional arguments of each.
            programs: for each the program with its weights, as `Program.with_weights` gives it; None is the same for all.
            kwargs: keyword arguments of each.
            return_exceptions: give a request's error in the place of its output, and let the others run.

        Returns:
            the output of each request.

        Raises:
            ArgumentError: there are too many requests, or one does not fit, or writes what another one uses; the message names
                the request, the argument, what it is and what is wanted (ConflictError of memory that two use).
            KitsuneError: an assertion of the program failed in a request, which is named.
        """
        if len(requests) > self.limit:
            raise ArgumentError(f"{len(requests)} requests were given; the batch takes at most {self.limit}")
        for name, given in (("programs", programs), ("kwargs", kwargs)):
            if given is not None and len(given) != len(requests):
                raise ArgumentError(f"{len(given)} {name} were given for {len(requests)} requests")
        if kwargs is None or not any(kwargs):
            called = itertools.repeat(self.program) if programs is None else programs
            if (quick := self._quickly(requests, called)) is not None:
                return self._run(*quick, range(len(requests)), [None] * len(requests), return_exceptions)
        outputs: list[Any] = [None] * len(requests)
        calls: dict[int, Bound] = {}
        for number, args in enumerate(requests):
            try:
                program = self.program if programs is None else programs[number]
                calls[number] = self._bound(program, args, (kwargs[number] if kwargs is not None else None) or {})
            except KitsuneError as error:
                outputs[number] = named(number, error)
        while problem := shared_memory(calls):
            number, outputs[problem[0]] = problem
            del calls[number]
        failed = next((output for output in outputs if isinstance(output, KitsuneError)), None)
        if failed is not None and not return_exceptions:
            raise failed
        if calls:
            made = list(calls.values())
            ends: list[_End] = [(_output, call) for call in made]
            self._run([call.pointers for call in made], ends, made[0].device, calls.keys(), outputs, return_exceptions)
        return outputs

    def _quickly(self, requests: Sequence[Sequence[Any]], programs: Iterable[Callee]) -> _Made | None:
        """The calls, where each fits as it is and writes nothing that another one may use; else None."""
        count, made, direct = len(requests), None, None
        rows, ends = list[Sequence[int]](), list[_End]()
        for args, program in zip(requests, programs, strict=False):
            direct = program.direct
            if direct is None or direct.runner is not self.runner or direct.writes or type(args) is not tuple:
                return None
            if not rows:
                made = direct.together(count)  # for all: they have the same code
            if made is None:
                found = direct.bind(args)
                if found is None:
                    return None
                rows.append(found[0])
                ends.append((direct.assemble, found[1]))
            else:
                given = direct.given(args)
                if given is None:
                    return None
                rows.append(given)
                ends.append((direct.assemble, made[0][len(ends)]))
        if made is not None:
            rows[:] = [(*given, *own) for given, own in zip(rows, zip(*made[1], strict=True), strict=True)]
        return (rows, ends, direct.device) if direct is not None else None

    def _run(
        self,
        rows: Sequence[Sequence[int]],
        ends: Sequence[_End],
        device: Any,
        numbers: Iterable[int],
        outputs: list[Any],
        return_exceptions: bool,
    ) -> list[Any]:
        """Launch, and put the output or the error of each call in its place."""
        errors = self.runner.run_requests(rows, stream_of(device))
        if len(ends) == len(outputs) and not any(errors):
            outputs[:] = [assemble(results) for assemble, results in ends]
            return outputs
        for number, (assemble, results), error in zip(numbers, ends, errors, strict=True):
            if error is None:
                outputs[number] = assemble(results)
                continue
            outputs[number] = named(number, error)
            if not return_exceptions:
                raise outputs[number]
        return outputs

    def _bound(self, program: Callee, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
        if not program.shares_code(self.program):
            raise ArgumentError(f"{program!r} has other code than the batch's; one of `with_weights` of its program is wanted")
        if not isinstance(args, Sequence):
            raise ArgumentError(f"its arguments are a {type(args).__name__}; a tuple of positional arguments is wanted")
        return program.bind(args, kwargs)


def _output(call: Bound) -> Any:
    return call.output()


def named(number: int, error: KitsuneError) -> KitsuneError:
    """An error with the number of its request."""
    kind = ArgumentError if isinstance(error, ArgumentError) else KitsuneError
    made = kind(f"request {number}: {error}")
    made.__cause__ = error
    return made


def shared_memory(calls: Mapping[int, Bound]) -> tuple[int, ConflictError] | None:
    """The first call that uses memory which another one writes (or writes what another one uses), and why that is an error:
    calls of a launch have no order."""
    written: list[tuple[int, int, int, str]] = []
    for number, call in calls.items():
        for place in call.written:
            written.append((*_span(call.own[place]), number, call.names[place]))
    if not written:
        return None
    written.sort()

    def problem(number: int, name: str, other: int, its: str) -> tuple[int, ConflictError]:
        text = f"request {number}: {name} shares memory with {its} of request {other}, which changes it; run them one by one"
        return number, ConflictError(text)

    for (_, end, first, its), (low, _, second, name) in zip(written, written[1:], strict=False):
        if low < end and first != second:
            return problem(second, name, first, its)
    lows = [low for low, _, _, _ in written]
    for number, call in calls.items():
        for place, tensor in enumerate(call.own):
            low, high = _span(tensor)
            for other_low, other_high, other, its in written[max(0, bisect.bisect_right(lows, low) - 1) :]:
                if other_low >= high:
                    break
                if low < other_high and other != number:
                    return problem(number, call.names[place], other, its)
    return None


def _span(tensor: Any) -> tuple[int, int]:
    return span_of(tensor) if hasattr(tensor, "data_ptr") else (0, 0)
