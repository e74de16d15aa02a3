"""Which sources a program is made by: one digest of all of this project's files.

Reading a thousand files takes longer than the rest of finding a program, so what they hold is kept by what the disk says of
them: whoever changes a file changes that.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator

from kitsune_mlir.cache.store import Store

__all__ = ["sources"]

KIND = "sources"
FOLDERS = ("kitsune_mlir", "kitsune_mlir.dialects", "kitsune_mlir.passes")

_found: list[str] = []


def sources(store: Store | None = None) -> str:
    """The digest, of 64 hexadecimal digits; in a process it stays as it was at first.

    Args:
        store: where it is looked for, and kept; None: all files are read.
    """
    if not _found:
        files = sorted(_files())
        key = hashlib.sha256(repr(files).encode()).hexdigest()
        data = store.read(KIND, key) if store is not None else None
        digest = data.decode(errors="replace") if data is not None else ""
        if len(digest) != 64:
            digest = _read([(name, path) for name, path, *_ in files])
            if store is not None:
                store.write(KIND, key, digest.encode())
        _found.append(digest)
    return _found[0]


def _files() -> Iterator[tuple[str | int, ...]]:
    """Of each file its name in the project, its path, size, times of the last changes of it and of its entry, its number."""
    for folder in FOLDERS:
        spec = importlib.util.find_spec(folder)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            waiting, start = [str(root)], len(str(root)) + 1
            while waiting:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        if entry.name.endswith(".py"):
                            seen = entry.stat()
                            name = f"{folder} {entry.path[start:]}"
                            yield name, entry.path, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino
                        elif entry.is_dir():
                            waiting.append(entry.path)


def _read(files: list[tuple[str | int, str | int]]) -> str:
    """The digest of names and of what the files hold, wherever they lie."""
    lines = []
    for name, path in files:
        with open(path, "rb") as file:
            lines.append(f"{name} {hashlib.sha256(file.read()).hexdigest()}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
