"""Files by kind and key in the user's folder for caches, bounded in size.

    FOLDER/programs/KEY    whole programs, `.kit` files (`cache/programs.py`)
    FOLDER/graphs/KEY       which of them a graph of Dynamo's becomes (`dynamo/kept_graphs.py`)
    FOLDER/cubins/KEY      assembled kernels (`codegen/gpu/backend/cubin_cache.py`)
    FOLDER/choices/KEY     what was faster, ours or PyTorch (`dynamo/decisions.py`)
    FOLDER/sources/KEY     what this project's files hold, by what the disk says of them (`cache/sources.py`)
    FOLDER/tuning/...      measurements of stages (`tuning/cache.py`): small, and dear; they do not count and stay

A file is written beside its place and moved there, so processes do not disturb each other: one of two whole files stays. Where
all files together are larger than they may be, those that were not used for the longest time go. Nothing is locked, and no
database is kept: folders for caches are often on a network file system, where several machines use them.

Who can write to the folder can run code here: a program's code is loaded as it is found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kitsune_mlir.errors import ArgumentError

from .replacing import replacing

__all__ = ["KINDS", "Entry", "Store", "cache_folder", "listeners", "store_of"]

KINDS = ("programs", "graphs", "cubins", "choices", "sources", "tuning")
EVICTED = ("programs", "graphs", "cubins", "choices", "sources")
MEGABYTES = 4096
KEPT = 0.9
"""What stays of the most that there may be, where files go: so that not every write has to look for some."""
STALE_SECONDS = 3600
"""After that a file that was not moved to its place was left behind by a process that ended."""


def cache_folder() -> Path:
    """KITSUNE_CACHE_DIR, or `kitsune-mlir` in the user's folder for caches."""
    if named := os.environ.get("KITSUNE_CACHE_DIR"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kitsune-mlir"


def store_of(cache: bool | None, folder: str | os.PathLike[str] | None) -> Store | None:
    """The store that options ask for: None where nothing is to be kept; `cache` None leaves that to KITSUNE_CACHE ("0": no)."""
    wanted = os.environ.get("KITSUNE_CACHE", "1") != "0" if cache is None else cache
    return Store(folder) if wanted else None


@dataclass(frozen=True)
class Entry:
    """A file of the store: its size in bytes, and when it was used, in seconds since the epoch."""

    kind: str
    path: Path
    bytes: int
    used: float


listeners: list[Callable[[str, str, Path], None]] = []
"""Called with kind, key and path of each file that was found or written."""


class Store:
    """The files of a folder.

    Args:
        folder: None is `cache_folder()`.
        limit: bytes of all files together; None is KITSUNE_CACHE_MB (megabytes), or 4 GiB.

    Raises:
        ArgumentError: KITSUNE_CACHE_MB is no number.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, limit: int | None = None):
        self.folder = Path(folder or cache_folder())
        self.limit = _limit() if limit is None else limit

    def get(self, kind: str, key: str) -> Path | None:
        """The file, which is used now; None if there is none. It may be gone when it is opened."""
        path = self.folder / kind / key
        try:
            os.utime(path)
        except OSError:
            if not path.exists():
                return None  # else it is in a folder that may only be read
        _tell(kind, key, path)
        return path

    def read(self, kind: str, key: str) -> bytes | None:
        """What the file holds; None if there is none."""
        try:
            return path.read_bytes() if (path := self.get(kind, key)) is not None else None
        except OSError:
            return None

    def put(self, kind: str, key: str, write: Callable[[Path], object]) -> None:
        """Keep what `write` writes to a path. Where the disk does not take it, nothing is kept."""
        folder = self.folder / kind
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(folder / key) as path:
                write(path)
            _tell(kind, key, folder / key)
            self._evict()

    def write(self, kind: str, key: str, data: bytes) -> None:
        """Keep bytes; as `put`."""
        self.put(kind, key, lambda path: path.write_bytes(data))

    def remove(self, kind: str, key: str) -> None:
        """Forget a file that turned out to be damaged."""
        with contextlib.suppress(OSError):
            (self.folder / kind / key).unlink()

    def entries(self) -> list[Entry]:
        """All files, those of tuning too."""
        return [entry for kind in KINDS for entry in self._entries(kind)]

    def clear(self, kind: str | None = None) -> int:
        """Remove all files, or those of a kind; their number."""
        gone = [entry for entry in self.entries() if kind in (None, entry.kind)]
        for one in KINDS if kind is None else [kind]:
            shutil.rmtree(self.folder / one, ignore_errors=True)
        return len(gone)

    def _entries(self, kind: str) -> Iterator[Entry]:
        for path in (self.folder / kind).rglob("*"):
            with contextlib.suppress(OSError):  # another process removes it
                found = path.stat()
                if path.name.startswith("."):
                    if kind in EVICTED and time.time() - found.st_mtime > STALE_SECONDS:
                        path.unlink()
                elif path.is_file():
                    yield Entry(kind, path, found.st_size, found.st_mtime)

    def _evict(self) -> None:
        """Remove what was not used for the longest time, if there is too much."""
        found = [entry for kind in EVICTED for entry in self._entries(kind)]
        total = sum(entry.bytes for entry in found)
        if total <= self.limit:
            return
        for entry in sorted(found, key=lambda entry: entry.used):
            if total <= KEPT * self.limit:
                break
            entry.path.unlink(missing_ok=True)
            total -= entry.bytes


def _tell(kind: str, key: str, path: Path) -> None:
    for listener in listeners:
        listener(kind, key, path)


def _limit() -> int:
    text = os.environ.get("KITSUNE_CACHE_MB", str(MEGABYTES))
    if not text.isdecimal():
        raise ArgumentError(f"KITSUNE_CACHE_MB is a number of megabytes, not '{text}'")
    return int(text) << 20
