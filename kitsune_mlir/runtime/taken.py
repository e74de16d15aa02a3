"""Who takes calls of programs that this thread makes, in the place of running them at once: an open `kitsune_mlir.window()`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["takers", "taking"]

Taker = Callable[..., Any]
"""Given a program, arguments, keywords and `into`, it gives the output; NotImplemented where the program is to run at once."""

takers: dict[int, Taker] = {}
"""By thread."""


@contextlib.contextmanager
def taking(taker: Taker) -> Iterator[None]:
    """Have the calls of this thread taken for the block."""
    thread = threading.get_ident()
    before = takers.get(thread)
    takers[thread] = taker
    try:
        yield
    finally:
        if before is None:
            del takers[thread]
        else:
            takers[thread] = before
