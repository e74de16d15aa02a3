"""Where a pair of a fragment's elements is: of the thread's two rows number `half`, of the columns its pair in the 8 of `block`
(the accumulator layout of wgmma).
"""

from __future__ import annotations

import dataclasses

__all__ = ["FragmentIndex"]


@dataclasses.dataclass(frozen=True)
class FragmentIndex:
    """See the module's docstring."""

    half: int
    block: int
