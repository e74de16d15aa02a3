"""Some of a call's arguments, taken without a Python function: those are slow to call while torch.compile's hook is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

__all__ = ["taker"]


def taker(numbers: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Takes arguments by number: of a tuple a tuple."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    first = numbers[0] if numbers else 0
    return itemgetter(slice(first, first + len(numbers)))
