"""What a run of the tests does only a part of, another one each day, so that all of it has its turn.

A run says which day's part it takes; `KITSUNE_TEST_DAY=NUMBER` before the command takes that one again.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["day", "todays"]

DAY = "KITSUNE_TEST_DAY"
T = TypeVar("T")


def day() -> int:
    """The number of the day; all processes of a run have one, even if it runs through midnight."""
    return int(os.environ.setdefault(DAY, str(datetime.date.today().toordinal())))


def todays(items: Sequence[T], count: int) -> list[T]:
    """`count` of the items, in their order, or all if there are fewer; so many days later, each has been chosen."""
    start = day() * count % max(1, len(items))
    chosen = {(start + number) % len(items) for number in range(min(count, len(items)))}
    return [item for number, item in enumerate(items) if number in chosen]
