"""`--verify-diagnostics`: diagnostics against the `expected-error {{...}}` comments of the input.

The comments are MLIR's: `// expected-error@+1 {{text}}`, with error, warning, remark or note; `@+N`, `@-N`, `@below`,
`@above` or `@unknown` for the line; `-re` after the severity where the text holds regular expressions in `{{` `}}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kitsune_mlir.passmanager.diagnostics import Diagnostic

_EXPECTED = re.compile(
    r"expected-(?P<kind>error|note|remark|warning)(?P<re>-re)? *"
    r"(?:@(?P<where>unknown|above|below|[+-]\d+))? *\{\{(?P<text>.*)\}\}$"
)
_COMMENT = re.compile(r"//(.*)$")
_BLOCK = re.compile(r"\{\{(.*?)\}\}")
# MLIR adds it to errors of ops; `mlir-opt` turns it off where it verifies diagnostics, which the bindings cannot.
_CURRENT_OP = "see current operation"


@dataclass
class Expectation:
    """One comment: a diagnostic of `kind` with `text` in it on `line` (0: at an unknown place)."""

    kind: str
    text: str
    line: int
    at: int  # line of the comment
    column: int
    is_regex: bool = False
    met: bool = False

    def matches(self, found: Diagnostic) -> bool:
        """Whether `found` is the diagnostic described."""
        if found.severity != self.kind or found.line != self.line:
            return False
        if not self.is_regex:
            return self.text in found.message
        parts = _BLOCK.split(self.text)  # plain text and regular expressions in turn
        pattern = "".join(p if i % 2 else re.escape(p) for i, p in enumerate(parts))
        return re.search(pattern, found.message) is not None


def expectations(text: str) -> list[Expectation]:
    """The expectations in a text, in order. `@above` counts from the comment up to the nearest line that holds more than
    comments, `@below` down to it, so that several may stand together."""
    lines = text.split("\n")
    found = []
    for i, line in enumerate(lines):
        comment = _COMMENT.search(line)
        match = _EXPECTED.search(line.rstrip()) if comment else None
        if match:
            target = _line_of(match["where"], i, lines)
            found.append(Expectation(match["kind"], match["text"], target, i + 1, match.start() + 1, bool(match["re"])))
    return found


def _line_of(where: str | None, index: int, lines: list[str]) -> int:
    """The line (from 1) that a comment on lines[index] speaks of."""
    if where is None:
        return index + 1
    if where == "unknown":
        return 0
    if where in ("above", "below"):
        step = -1 if where == "above" else 1
        at = index + step
        while 0 <= at < len(lines) and _EXPECTED.search(lines[at].rstrip()) and lines[at].lstrip().startswith("//"):
            at += step
        return at + 1
    return index + 1 + int(where)


def check(expected: list[Expectation], diagnostics: Iterable[Diagnostic], file: str) -> list[Diagnostic]:
    """What is wrong: diagnostics that no comment expects, and comments that nothing met. Sets `met`."""
    wrong = []
    for diagnostic in diagnostics:
        for part in (diagnostic, *diagnostic.notes):
            hit = next((e for e in expected if not e.met and e.matches(part)), None)
            if hit:
                hit.met = True
            elif not (part.severity == "note" and part.message.startswith(_CURRENT_OP)):
                text = f"unexpected {part.severity}: {part.message}"
                wrong.append(Diagnostic("error", text, part.file, part.line, part.column))
    for e in expected:
        if not e.met:
            wrong.append(Diagnostic("error", f'expected {e.kind} "{e.text}" was not produced', file, e.at, e.column))
    return wrong
