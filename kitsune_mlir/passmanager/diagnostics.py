"""Diagnostics as values, printed as `mlir-opt` prints them: `file:line:col: error: message`, the source line, a caret."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch_mlir import ir

_SEVERITIES = {
    ir.DiagnosticSeverity.ERROR: "error",
    ir.DiagnosticSeverity.WARNING: "warning",
    ir.DiagnosticSeverity.NOTE: "note",
    ir.DiagnosticSeverity.REMARK: "remark",
}


@dataclass(frozen=True)
class Diagnostic:
    """A message of a given severity (error, warning, note, remark) at a place in a file.

    `line` and `column` count from 1; an unknown place has file "<unknown>" and line 0.
    """

    severity: str
    message: str
    file: str = "<unknown>"
    line: int = 0
    column: int = 0
    notes: tuple[Diagnostic, ...] = ()

    @property
    def place(self) -> str:
        """`file:line:col`, or `<unknown>:0`."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else f"{self.file}:0"

    def renamed(self, old: str, new: str) -> Diagnostic:
        """The same with file `old` called `new`: text that was parsed from memory is in a file called "-"."""
        notes = tuple(n.renamed(old, new) for n in self.notes)
        return replace(self, file=new if self.file == old else self.file, notes=notes)

    def render(self, sources: Mapping[str, list[str]] | None = None) -> str:
        """The diagnostic and its notes, with the source line and a caret where `sources` (lines by file) has the line."""
        text = f"{self.place}: {self.severity}: {self.message}"
        lines = (sources or {}).get(self.file, [])
        if 0 < self.line <= len(lines):
            text += "\n" + _pointed(lines[self.line - 1], max(self.column - 1, 0))
        return "\n".join([text, *(n.render(sources) for n in self.notes)])


_WIDEST = 200  # generated IR has lines of a megabyte: show what is round the caret


def _pointed(line: str, at: int) -> str:
    """A source line and, below it, a caret under its character `at`."""
    start = max(0, at - _WIDEST // 2) if len(line) > _WIDEST else 0
    shown = line[start : start + _WIDEST]
    # A tab before the caret stays a tab, so that the caret lines up however wide tabs are shown.
    indent = "".join("\t" if c == "\t" else " " for c in shown[: at - start])
    return f"{shown}\n{indent}^"


def place_of(location: ir.Location) -> tuple[str, int, int]:
    """File, line and column of a location: the first file position in it, or ("<unknown>", 0, 0)."""
    if type(location) is ir.Location:  # what diagnostics carry: not yet of its own class
        location = ir.Location.from_attr(location.attr, location.context)
    if isinstance(location, ir.FileLineColLoc):
        return str(location.filename).strip('"'), location.start_line, location.start_col
    if isinstance(location, ir.NameLoc):
        return place_of(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return place_of(location.callee)
    if isinstance(location, ir.FusedLoc):
        for part in location.locations:
            found = place_of(part)
            if found[1]:
                return found
    return "<unknown>", 0, 0


def diagnostic_at(location: ir.Location, severity: str, message: str) -> Diagnostic:
    """A diagnostic of this project's own at an MLIR location."""
    return Diagnostic(severity, message, *place_of(location))


def error_on(op: ir.Operation, message: str) -> Diagnostic:
    """An error about an operation, in the words that MLIR's own verifiers begin with."""
    return diagnostic_at(op.location, "error", f"'{op.name}' op {message}")


def from_mlir(source: ir.Diagnostic | ir.DiagnosticInfo) -> Diagnostic:
    """A diagnostic that MLIR made, notes included."""
    notes = tuple(from_mlir(n) for n in source.notes)
    return Diagnostic(_SEVERITIES[source.severity], source.message.rstrip(), *place_of(source.location), notes=notes)


def from_error(error: ir.MLIRError) -> list[Diagnostic]:
    """The diagnostics that an exception of the bindings carries."""
    return [from_mlir(d) for d in error.error_diagnostics]
