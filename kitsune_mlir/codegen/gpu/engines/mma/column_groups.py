"""Groups of a product's columns that are counted apart, so that a product of its rows begins before the last of them is there.

A product of several waves makes its tiles column by column (`codegen/gpu/engines/mma/rasterize.py`). Who sums over its columns
can begin with those of the waves before, and finds the last ones there when it comes to them, instead of waiting until the last
tile has been stored: five microseconds on an H200 (`codegen/gpu/engines/mma/deferred_waits.py`).
"""

from collections.abc import Sequence

from kitsune_mlir.machine.target import Target

__all__ = ["column_groups"]

MOST = 4
"""Each group is one more wait of a tile."""


def column_groups(kinds: Sequence[str], counts: Sequence[int], target: Target) -> int:
    """How many groups.

    Args:
        kinds: "m", "n" or "batch" of each dimension of a product.
        counts: tiles along it.
    """
    moving = [kind for kind, count in zip(kinds, counts, strict=True) if count > 1]
    if moving != ["m", "n"]:
        return 1
    rows, cols = (count for count in counts if count > 1)
    waves = -(-rows * cols // target.workers)
    groups = min(MOST, waves, cols)
    return -(-cols // -(-cols // groups))  # none of them empty
