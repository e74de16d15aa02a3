"""A progress bar on standard error for as long as a tuning takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["progress"]


@contextlib.contextmanager
def progress(announce: Callable[[str], None] | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Gives a function that takes what is being measured, the number of measurements so far and of all.

    Args:
        announce: gets this in words, where the caller has a display of its own (a terminal takes one at a time).
    """
    if announce is not None:
        yield lambda name, done, total: announce(f"tune {name}, {done + 1} of {total}")
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("tuning {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)
