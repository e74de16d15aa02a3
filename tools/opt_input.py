"""What `kitsune-opt` reads: files and standard input, split into chunks, refused early where the native parser would crash."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from torch_mlir import ir

from kitsune_mlir.errors import KitsuneError

BYTECODE = b"ML\xefR"
SPLITTER = re.compile(r"^// -----[^\n]*$", re.MULTILINE)  # `mlir-opt` splits at lines that start with it

# The native parser, verifier and printer recurse: about 3,000 nested regions end in a stack overflow, and Python's verifiers
# stop at 1,000. Real programs stay far below this.
MAX_NESTING = 256
# Strings, comments, bracket characters and endless signs; `->` is an arrow, no bracket. An unclosed string ends with its line.
_TOKEN = re.compile(rb'"(?:\\.|[^"\\\n])*"?|//[^\n]*|-{%d,}|->|>=|<=|[][(){}<>]' % MAX_NESTING)


@dataclass(frozen=True)
class Source:
    """One input: `name` is shown in diagnostics, `path` is None for standard input."""

    name: str
    path: Path | None
    data: bytes

    @property
    def text(self) -> str:
        """The input as text; bytes that are no UTF-8 become U+FFFD (for showing lines and finding comments)."""
        return self.data.decode("utf-8", errors="replace")

    @property
    def is_bytecode(self) -> bool:
        """Whether this is MLIR bytecode."""
        return self.data.startswith(BYTECODE)


def read_source(name: str) -> Source:
    """The input called `name` ("-": standard input); KitsuneError in `mlir-opt`'s words when it cannot be read."""
    if name == "-":
        return Source("<stdin>", None, sys.stdin.buffer.read())
    try:
        return Source(name, Path(name), Path(name).read_bytes())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise KitsuneError(f"cannot open input file '{name}': {reason}") from error


def chunks_of(source: Source) -> list[str]:
    """The text between `// -----` lines. Each chunk starts with as many empty lines as precede it in the file, so that line
    numbers stay those of the file."""
    text = source.text
    chunks, start = [], 0
    for mark in [*(m.span() for m in SPLITTER.finditer(text)), (len(text), len(text))]:
        chunks.append("\n" * text.count("\n", 0, start) + text[start : mark[0]])
        start = mark[1]
    return chunks


def too_deep(data: bytes) -> tuple[int, int] | None:
    """Line and column (from 1) of the first bracket nested deeper than MAX_NESTING, or None."""
    depth = 0
    for found in _TOKEN.finditer(data):
        token = found.group()
        if token in (b"(", b"[", b"{", b"<") or token.startswith(b"--"):
            depth += len(token)
            if depth > MAX_NESTING:
                before = data[: found.start()]
                return before.count(b"\n") + 1, found.start() - (before.rfind(b"\n") + 1) + 1
        elif token in (b")", b"]", b"}", b">"):
            depth = max(depth - 1, 0)
    return None


def parse(source: Source, chunk: str | None, context: ir.Context) -> ir.Module:
    """The module of a source, or of one chunk of it. Raises ir.MLIRError; locations of text from memory are in file "-"."""
    if chunk is not None:
        return ir.Module.parse(chunk, context)
    if source.path is not None and source.path.is_file() and not source.is_bytecode:
        return ir.Module.parseFile(str(source.path), context)  # keeps the file's name in the locations
    return ir.Module.parse(source.data, context)
