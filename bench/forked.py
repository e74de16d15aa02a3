"""A case in a process of its own, forked before the GPU is touched, so that it starts at once and a hang costs only itself."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import multiprocessing
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from bench.records import Record

__all__ = ["Turns", "answer_of", "answers_of", "in_turns", "within"]


class Turns:
    """Cases prepare side by side, and are timed one at a time while none prepares. A process that dies gives its turn up.

    Args:
        path: a file that all of them can lock; it need not exist.
    """

    def __init__(self, path: Path):
        self.path = path

    @contextlib.contextmanager
    def preparing(self) -> Iterator[Callable[[], None]]:
        """Gives a function that ends the preparation: it returns once no other case prepares and none is timed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_SH)

            def prepared() -> None:
                fcntl.flock(file, fcntl.LOCK_UN)  # first: two that wait to go from shared to exclusive would wait for ever
                fcntl.flock(file, fcntl.LOCK_EX)

            yield prepared


class LateError(BaseException):
    """What was to be done in time is not. No `Exception`: what compiles a graph by parts takes one for a part that failed."""


@contextlib.contextmanager
def within(seconds: float, what: str) -> Iterator[Callable[[], None]]:
    """Raises LateError in the process's main thread if the given function is not called, and the block not left, in time."""

    def late(signum: int, frame: object) -> None:
        raise LateError(f"not {what} in {seconds} s")

    def in_time() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield in_time
    finally:
        in_time()
        signal.signal(signal.SIGALRM, before)


def in_turns(
    works: Mapping[str, Callable[[Callable[[], None]], dict[str, Any]]],
    record: Record,
    seconds: float,
    jobs: int,
    timed: bool = True,
) -> None:
    """Runs cases in processes, `jobs` at a time, each timed alone, and puts each answer into a record.

    Args:
        works: by the case's name; they are given what they must call before they time anything.
        seconds: for one case until it is prepared, and as much again for its turn: one that is too slow costs no other.
        timed: whether any is timed; else the next one starts when one ends.
    """

    def tell(case: str, answer: dict[str, Any]) -> None:
        record.add({"case": case, **answer})
        print(json.dumps(answer), flush=True)

    def work(one: Callable[[Callable[[], None]], dict[str, Any]], turns: Turns) -> dict[str, Any]:
        torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
        with turns.preparing() as alone, within(seconds, "prepared") as ready:

            def prepared() -> None:
                ready()
                alone()

            return one(prepared)

    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(Path(folder) / "turns")
        each = {case: functools.partial(work, one, turns) for case, one in works.items()}
        answers_of(each, 2 * seconds, jobs, tell, together=timed)


def answers_of(
    works: Mapping[str, Callable[[], dict[str, Any]]],
    seconds: float,
    jobs: int,
    tell: Callable[[str, dict[str, Any]], None],
    together: bool = True,
) -> None:
    """Runs cases in processes, `jobs` at a time, and tells each answer as it comes.

    Args:
        together: the next cases start when all of those have ended: else one that is to be timed would wait for new ones that
            prepare. Where none is timed the next one starts when one ends.
    """
    names, many = list(works), jobs if together else max(len(works), 1)
    for first in range(0, len(names), many):
        group = names[first : first + many]
        starting = threading.Lock()  # what one fork makes of locks and files, another one must not meet half done
        with ThreadPoolExecutor(min(jobs, len(group))) as pool:
            waiting = {pool.submit(answer_of, works[name], name, seconds, starting): name for name in group}
            for answer in as_completed(waiting):
                tell(waiting[answer], answer.result())


def answer_of(
    work: Callable[[], dict[str, Any]],
    case: str,
    seconds: float,
    starting: contextlib.AbstractContextManager[Any] = contextlib.nullcontext(),  # noqa: B008
) -> dict[str, Any]:
    """What `work` returns in a forked process, or {"case", "problem"} where it raises, ends, or takes longer than `seconds`.

    The process is started within `starting`.
    """
    context = multiprocessing.get_context("fork")

    def run(writer: Any) -> None:
        try:
            writer.send(work())
        except BaseException as error:  # whatever it is, the other cases go on
            writer.send({"case": case, "problem": f"{type(error).__name__}: {error}"})

    with starting:  # another process that had the writing end, too, would keep an end unseen
        reader, writer = context.Pipe(duplex=False)
        child = context.Process(target=run, args=(writer,))
        child.start()
        writer.close()
    try:
        if reader.poll(seconds):
            return reader.recv()
        return {"case": case, "problem": f"no answer in {seconds} s"}
    except EOFError:
        child.join()
        return {"case": case, "problem": f"its process ended with status {child.exitcode}"}
    finally:
        child.kill()
        child.join()
        reader.close()
