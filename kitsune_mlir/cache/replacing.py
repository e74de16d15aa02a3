"""Files that are whole or not there: they are written beside their place and moved to it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new, empty file in the same folder, its name begun with a dot; it takes the place of `path` where the block ends well.

    Raises:
        OSError: the folder takes no file.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    os.close(handle)
    try:
        yield Path(temporary)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
