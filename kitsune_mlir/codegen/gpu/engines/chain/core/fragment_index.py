"""Where a pair of a fragment's elements is."""

from __future__ import annotations

import dataclasses

__all__ = ["FragmentIndex"]


@dataclasses.dataclass(frozen=True)
class FragmentIndex:
    """See the module's docstring."""

    unit: int
    half: int
    block: int
