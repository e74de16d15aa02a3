"""Futures without conditions of their own: step by step what the standard library's do, and from several threads."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED, CancelledError, Future, as_completed, wait
from concurrent.futures import TimeoutError as Late
from typing import Any

import pytest

from kitsune_mlir.serving.answer import Answer, answer, start


class Seen(Answer):
    """Counts how often it was dropped."""

    drops = 0

    def dropped(self) -> None:
        self.drops += 1


STEPS = ("cancel", "start", "answer", "fail", "add", "result", "exception", "done", "cancelled", "running", "wait", "repr")


def step(name: str, one: Future[Any], started: bool, begin: Callable, end: Callable, calls: list[str]) -> Any:
    """One step of a future; what it gave, or the kind of its error. Steps of an executor come in the order of one."""
    if name in ("start", "answer", "fail"):
        if name == "start":
            return begin(one) if not started else None
        if started and one.running():
            end(one, ValueError("own") if name == "fail" else 7)
        return None
    if name == "add":
        return one.add_done_callback(lambda future: calls.append(f"{len(calls)}{future.done()}"))
    if name == "wait":
        return len(wait([one], 0).done)
    if name == "repr":
        return repr(one).split("state=")[1]
    try:
        found = getattr(one, name)(*((0,) if name in ("result", "exception") else ()))
        return repr(found)
    except (CancelledError, Late, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("seed", range(3))
def test_every_step_is_the_standard_librarys(seed: int) -> None:
    draw = random.Random(seed)

    def settle(one: Future[Any], output: Any) -> None:
        one.set_exception(output) if isinstance(output, Exception) else one.set_result(output)

    def begin(one: Future[Any]) -> bool:
        return not one.cancelled() and one.set_running_or_notify_cancel()

    for _ in range(400):
        pair, calls = (Future[Any](), Seen()), ([], [])
        started = False
        for name in draw.choices(STEPS, k=draw.randint(1, 9)):
            plain = step(name, pair[0], started, begin, settle, calls[0])
            ours = step(name, pair[1], started, lambda one: bool(start([one])), lambda a, o: answer([a], [o]), calls[1])
            if name == "wait" and pair[0].cancelled():
                plain = 1  # who cancels says so to those that wait; an executor does when it comes to the request
            elif name == "repr" and pair[0].cancelled():
                plain = "cancelled>"
            assert ours == plain, name
            started |= name == "start"
        assert calls[0] == calls[1] and pair[1].drops == pair[1].cancelled()


def test_a_launch_answers_all_of_its_requests_but_those_that_were_cancelled() -> None:
    many = [Seen() for _ in range(6)]
    waiting = threading.Thread(target=many[1].result)
    waiting.start()
    assert many[2].cancel() and many[2].cancel()
    started = start(many)
    assert [*started] == [one for one in many if one is not many[2]] and not many[0].cancel()
    failure = KeyError("x")
    answer(started, [0, 1, failure, 4, 5])
    waiting.join(60)
    assert not waiting.is_alive() and many[3].exception() is failure and many[2].drops == 1
    assert [one.result() for one in many if one not in (many[2], many[3])] == [0, 1, 4, 5]
    with pytest.raises(KeyError):
        many[3].result()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = many[0].nothing
    assert {*as_completed(many, 60)} == {*many} and not wait(many, 60, ALL_COMPLETED).not_done


def test_a_callbacks_error_is_nobody_elses(caplog: pytest.LogCaptureFixture) -> None:
    one, called = Answer(), []
    one.add_done_callback(lambda _: 1 // 0)
    one.add_done_callback(called.append)
    answer(start([one]), [3])
    one.add_done_callback(called.append)
    assert called == [one, one] and "ZeroDivisionError" in caplog.text


def test_asyncio_waits_for_them() -> None:
    async def main() -> list[Any]:
        many = [Answer() for _ in range(4)]
        futures = [asyncio.wrap_future(one) for one in many]
        futures[3].cancel()
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: answer(start(many), [1, ValueError("own"), 3]))
        thread.start()
        found = await asyncio.gather(*futures, return_exceptions=True)
        thread.join()
        return [type(one) if isinstance(one, BaseException) else one for one in found]

    assert asyncio.run(main()) == [1, ValueError, 3, asyncio.CancelledError]


def test_threads_that_cancel_wait_and_add_while_it_is_answered() -> None:
    """Of each future everybody sees one end: it was cancelled, and dropped once, or answered."""
    rounds = 300
    many = [[Seen() for _ in range(8)] for _ in range(rounds)]
    called = [0] * rounds
    problems: list[str] = []
    barrier = threading.Barrier(4)

    def add(number: int) -> None:
        called[number] += 1

    def run(what: Callable[[int, list[Seen]], None]) -> None:
        barrier.wait(60)
        for number, row in enumerate(many):
            what(number, row)

    def serve(_: int, row: list[Seen]) -> None:
        started = start(row)
        answer(started, [id(one) for one in started])

    def cancel(_: int, row: list[Seen]) -> None:
        for one in row[::2]:
            one.cancel()

    def callbacks(number: int, row: list[Seen]) -> None:
        for one in row:
            one.add_done_callback(lambda _: add(number))

    def read(_: int, row: list[Seen]) -> None:
        for one in row:
            try:
                if one.result(60) != id(one):
                    problems.append("another's answer")
            except CancelledError:
                if not one.cancelled():
                    problems.append("cancelled and not")

    threads = [threading.Thread(target=run, args=(what,)) for what in (serve, cancel, callbacks, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems and not any(thread.is_alive() for thread in threads)
    assert called == [8] * rounds
    assert all(one.done() and one.drops == one.cancelled() for row in many for one in row)
