"""Python's collector of cycles while a model is compiled.

A full collection looks at every object there is. Of a process with PyTorch these are half a million that live as long as it,
and a deep model's graphs make Python collect again and again: a sixth of the time to compile 48 layers. Full collections
therefore wait until the model is compiled; younger objects are collected as ever.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["full_collections_later"]

NEVER = 1 << 30
"""Collections of younger objects before all are looked at."""

_lock = threading.Lock()
_blocks = 0
_before: tuple[int, int, int] = gc.get_threshold()


@contextmanager
def full_collections_later() -> Iterator[None]:
    """No full collection begins by itself before the last of these blocks of all threads ends; one that is due comes then.

    A program's own thresholds come back, and stay where it sets new ones meanwhile.
    """
    global _blocks, _before
    with _lock:
        if not _blocks:
            _before = gc.get_threshold()
            gc.set_threshold(*_before[:2], NEVER)
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if not _blocks and gc.get_threshold() == (*_before[:2], NEVER):
                gc.set_threshold(*_before)
