"""Measurements on disk, one small file for a stage on a device.

A file is written beside its place and moved there, so two processes that measure the same stage do not disturb each other: one
of two whole files stays. A file that cannot be read counts as none. They take turns at measuring, so that neither's times hold
the other's work.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kitsune_mlir.cache.replacing import replacing
from kitsune_mlir.cache.store import cache_folder

__all__ = ["TuningCache"]

FORMAT = 1
POLL_SECONDS = 0.05


class TuningCache:
    """Times of tiles by stage, for one device.

    Args:
        device: its name.
        folder: where all devices' caches are; None is `cache_folder()`.
    """

    def __init__(self, device: str, folder: str | os.PathLike[str] | None = None):
        name = re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-").lower()[:40]
        name += "-" + hashlib.sha256(device.encode()).hexdigest()[:8]  # a processor's name lists all its features
        self.folder = Path(folder or cache_folder()) / "tuning" / name

    def get(self, key: str) -> dict[tuple[int, ...], float] | None:
        """Milliseconds by tile, of a stage that was measured to the end; None of any other."""
        try:
            data = json.loads((self.folder / f"{key}.json").read_text())
            if data["format"] != FORMAT:
                return None
            times = {tuple(map(int, tile.split("x"))): float(ms) for tile, ms in data["milliseconds"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return times or None

    def put(self, key: str, stage: str, times: dict[tuple[int, ...], float]) -> None:
        """Keep the times of a stage; `stage` is its name, for people."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = {"format": FORMAT, "stage": stage, "milliseconds": {"x".join(map(str, t)): ms for t, ms in times.items()}}
        with replacing(self.folder / f"{key}.json") as path:
            path.write_text(json.dumps(text, indent=1))

    @contextlib.contextmanager
    def turn(self, end: float) -> Iterator[bool]:
        """The device for this process, among those that use this cache; gives whether it was to be had by `end`, a time of
        `time.monotonic`.

        A process that ends gives it up. Where the file system has no locks nobody waits.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".turn").open("w") as file:
            mine = _locked(file)
            while mine is False and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
                mine = _locked(file)
            yield mine is not False


def _locked(file: IO[str]) -> bool | None:
    """Whether the file is this process's now, until it is closed; None where files cannot be locked."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
