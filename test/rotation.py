"""What a run of the tests does only a part of: another one whenever the compiler's sources change, so that all has its turn.

The same sources take the same part on every machine and day: a commit that passes once passes again. A run says which part it
takes; `KITSUNE_TEST_TURN=NUMBER` before the command takes that one, `KITSUNE_TEST_TURN=all` all of it (hours).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from kitsune_mlir.cache.sources import sources

__all__ = ["in_turn", "turn"]

TURN, ALL = "KITSUNE_TEST_TURN", "all"
T = TypeVar("T")


def turn() -> int:
    """The number of the part, 0 if it is all; the processes of a run have one number, even if a file changes meanwhile."""
    said = os.environ.setdefault(TURN, str(int(sources()[:8], 16)))
    return 0 if said == ALL else int(said)


def in_turn(items: Sequence[T], count: int) -> list[T]:
    """`count` of the items, in their order, or all if there are fewer; so many numbers later, each has been chosen."""
    start = turn() * count % max(1, len(items))
    if os.environ[TURN] == ALL:
        return list(items)
    chosen = {(start + number) % len(items) for number in range(min(count, len(items)))}
    return [item for number, item in enumerate(items) if number in chosen]
