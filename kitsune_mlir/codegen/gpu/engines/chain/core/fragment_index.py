"""Where a pair of a fragment's elements is."""

from __future__ import annotations

import dataclasses

__all__ = ["Place"]


@dataclasses.dataclass(frozen=True)
class Place:
    """See the module's docstring."""

    unit: int
    half: int
    block: int
