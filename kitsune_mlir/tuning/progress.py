"""A progress bar on standard error for as long as a tuning takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["progress"]


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Gives a function that takes what is being measured, the number of measurements so far and of all."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("tuning {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def on_step(name: str, done: int, total: int) -> None:
            bar.update(task, description=name, completed=done, total=total)

        yield on_step
