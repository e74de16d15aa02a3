"""Recorded measurements: one JSON file holds cases by name, and the runs that they come from.

{"format": 1,
 "runs": [{"environment": {...}, "rates": {"matrix": ..., "copy": ...}, "command": "..."}],
 "cases": {NAME: {"run": index into runs, "ok": ..., "milliseconds": {PEER: {"median": ..., "p10": ..., ...}}, ...}}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Record", "merge"]

FORMAT = 1


class Record:
    """A record that is written to its file (if it has one) after each change."""

    def __init__(self, path: Path | None = None, runs: Iterable[dict] = (), cases: Mapping[str, dict] | None = None):
        self.path = path
        self.runs = list(runs)
        self.cases = dict(cases or {})

    @staticmethod
    def open(path: Path | None, resume: bool = True) -> Record:
        """The record in a file; an empty one where there is none, or where it is not to be resumed."""
        if path is None or not resume or not path.exists():
            return Record(path)
        data = json.loads(path.read_text())
        if data.get("format") != FORMAT:
            raise ValueError(f"{path}: format {data.get('format')!r}, this version reads {FORMAT}")
        return Record(path, data["runs"], data["cases"])

    def begin(self, run: dict[str, Any]) -> None:
        """Cases that are added from now on come from this run."""
        self.runs.append(run)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Take a case's measurement; it replaces an earlier one."""
        self.cases[entry["case"]] = {**entry, "run": len(self.runs) - 1}
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.write_text(json.dumps({"format": FORMAT, "runs": self.runs, "cases": self.cases}, indent=1))
        temporary.replace(self.path)

    def run_of(self, name: str) -> dict[str, Any]:
        """The run that a case was measured in."""
        return self.runs[self.cases[name]["run"]]


def merge(records: Iterable[Record], into: Record) -> Record:
    """Cases of later records replace those of earlier ones; runs that no case is from are dropped."""
    chosen: dict[str, tuple[dict, dict]] = {name: (entry, into.run_of(name)) for name, entry in into.cases.items()}
    for record in records:
        chosen.update((name, (entry, record.run_of(name))) for name, entry in record.cases.items() if entry["run"] >= 0)
    into.runs, into.cases = [], {}
    for name, (entry, run) in chosen.items():
        if run not in into.runs:
            into.runs.append(run)
        into.cases[name] = {**entry, "run": into.runs.index(run)}
    return into
