"""A file of results that several processes write at the same time: each adds its own and keeps the others'."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["add_results"]


def add_results(path: Path, head: dict[str, Any], results: Sequence[dict[str, Any]], keys: Sequence[str] = ("case",)) -> None:
    """Write {**head, "results": [...]}: the file's results, those with equal `keys` replaced by new ones, in order of the keys.

    Results that stay and are of another commit than the environment of `head` get its name, as "commit".

    Args:
        head: what else the file says, such as the environment; the last writer's counts.
        keys: what tells results apart.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lock of its own: the file is replaced, and a lock belongs to what was opened.
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"kitsune-results-{os.getuid()}-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _results(json.loads(path.read_text()), _commit(head)) if path.exists() else []
        merged = {tuple(result[key] for key in keys): result for result in (*known, *results)}
        text = json.dumps({**head, "results": [merged[name] for name in sorted(merged)]}, indent=1)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text + "\n")
        temporary.replace(path)


def _commit(head: dict[str, Any]) -> str | None:
    environment = head.get("environment")
    return environment.get("commit") if isinstance(environment, dict) else None


def _results(table: dict[str, Any], commit: str | None) -> list[dict[str, Any]]:
    """The results of a file that goes on with those of `commit`."""
    theirs = _commit(table)
    results: list[dict[str, Any]] = table["results"]
    return results if theirs in (None, commit) else [{"commit": theirs, **result} for result in results]
