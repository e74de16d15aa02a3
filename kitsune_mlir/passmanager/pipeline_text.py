"""Textual pass pipelines, parsed: `builtin.module(kitsune-normalize,func.func(cse),kitsune-form-stages{max-ops=4})`.

MLIR's own parser only knows passes registered in C++, so this project splits the text itself. The syntax is MLIR's
(https://mlir.llvm.org/docs/PassManagement/#textual-pass-pipeline-specification).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kitsune_mlir.errors import KitsuneError

ROOT = "builtin.module"
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_SPACE = re.compile(r"\s*")
_MAX_NESTING = 64  # far above any real pipeline, far below Python's recursion limit


class PipelineError(KitsuneError):
    """A textual pipeline is malformed, or names a pass or an option that does not exist.

    Attributes:
        text: the pipeline, or None when the error has no position.
        column: where in `text` the error is, counted from 0.
    """

    def __init__(self, message: str, text: str | None = None, column: int = 0):
        self.reason, self.text, self.column = message, text, column
        where = "" if text is None else f"\n  {text}\n  {' ' * column}^"
        super().__init__(message + where)


@dataclass(frozen=True)
class PassNode:
    """One pass by name, with the text between its braces (without them; empty where there are none)."""

    name: str
    options: str = ""
    column: int = 0

    def __str__(self) -> str:
        return f"{self.name}{{{self.options}}}" if self.options else self.name


@dataclass(frozen=True)
class NestNode:
    """Passes that run on each operation called `op` of the enclosing operation."""

    op: str
    nodes: tuple[Node, ...]
    column: int = 0

    def __str__(self) -> str:
        return f"{self.op}({','.join(map(str, self.nodes))})"


Node = PassNode | NestNode


def parse_pipeline(text: str) -> list[Node]:
    """The elements of a pipeline that runs on a `builtin.module`.

    The outer `builtin.module(...)` may be left out. PipelineError points at the first character that does not fit.
    """
    parser = _Parser(text)
    nodes = parser.elements(depth=0, closing=False)
    if len(nodes) == 1 and isinstance(nodes[0], NestNode) and nodes[0].op in (ROOT, "any"):
        return list(nodes[0].nodes)
    for node in nodes:
        if isinstance(node, NestNode) and node.op == ROOT:
            raise PipelineError(f"'{ROOT}' must hold the whole pipeline", text, node.column)
    return nodes


def leaves(nodes: list[Node] | tuple[Node, ...], anchors: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], PassNode]]:
    """Every pass with the operations that it is nested in (outermost first), in the order in which they run."""
    for node in nodes:
        if isinstance(node, NestNode):
            yield from leaves(node.nodes, (*anchors, node.op))
        else:
            yield anchors, node


def nested(anchors: tuple[str, ...], node: Node) -> Node:
    """`node` inside the operations `anchors`, outermost first."""
    for op in reversed(anchors):
        node = NestNode(op, (node,), node.column)
    return node


class _Parser:
    """Recursive descent over one pipeline; `at` is the next character."""

    def __init__(self, text: str):
        self.text = text
        self.at = 0

    def fail(self, message: str, column: int | None = None) -> PipelineError:
        return PipelineError(message, self.text, self.at if column is None else column)

    def skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def peek(self) -> str:
        self.skip_space()
        return self.text[self.at : self.at + 1]

    def elements(self, depth: int, closing: bool) -> list[Node]:
        """A comma-separated list up to `)` (which stays) or the end of the text."""
        if depth > _MAX_NESTING:
            raise self.fail(f"nested deeper than {_MAX_NESTING} operations")
        nodes: list[Node] = []
        end = ")" if closing else ""
        if self.peek() == end:
            return nodes
        while True:
            nodes.append(self.element(depth))
            if self.peek() == end:
                return nodes
            if self.peek() != ",":
                if not self.peek():
                    raise self.fail("unbalanced parentheses: ')' is missing")
                raise self.fail("expected ',' after a pass")
            self.at += 1

    def element(self, depth: int) -> Node:
        self.skip_space()
        start = self.at
        found = _NAME.match(self.text, start)
        if not found:
            raise self.fail("expected the name of a pass or of an operation")
        self.at = found.end()
        if self.peek() == "(":
            self.at += 1
            nodes = self.elements(depth + 1, closing=True)
            self.at += 1
            return NestNode(found.group(), tuple(nodes), start)
        return PassNode(found.group(), self.options() if self.peek() == "{" else "", start)

    def options(self) -> str:
        """The text between balanced braces; braces inside quotes do not count."""
        start, depth, quote = self.at, 0, ""
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == "{":
                depth += 1
            elif char == "}":
                depth -= 1
                if depth == 0:
                    return self.text[start + 1 : self.at - 1].strip()
        raise self.fail("unbalanced braces: '}' is missing", start)


def split_options(text: str) -> list[tuple[str, str | None]]:
    """`a=1 b={2,3} c='x y' d` as [("a", "1"), ("b", "2,3"), ("c", "x y"), ("d", None)].

    Spaces separate options; braces and quotes round a value are taken off. PipelineError on an unclosed one.
    """
    items: list[tuple[str, str | None]] = []
    at = 0
    while (at := _SPACE.match(text, at).end()) < len(text):  # pyright: ignore[reportOptionalMemberAccess]
        key = re.compile(r"[^\s=]+").match(text, at)
        if not key:
            raise PipelineError("expected the name of an option", text, at)
        at = key.end()
        if text[at : at + 1] != "=":
            items.append((key.group(), None))
            continue
        value, at = _option_value(text, at + 1)
        items.append((key.group(), value))
    return items


def _option_value(text: str, start: int) -> tuple[str, int]:
    """The value that starts at `start`, and where it ends."""
    depth, quote, at = 0, "", start
    while at < len(text) and (depth or quote or not text[at].isspace()):
        char = text[at]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char == "{") - (char == "}")
        at += 1
    if depth or quote:
        raise PipelineError(f"unclosed {quote or 'brace'} in the value of an option", text, start)
    value = text[start:at]
    if len(value) >= 2 and (value[0] + value[-1] in ("{}", "''", '""')):
        value = value[1:-1]
    return value, at
