"""Writes functions of 64-bit words in LLVM IR: variables, loops, and arrays whose addresses are in a table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir

__all__ = ["WORD", "WordFunction"]

WORD = ir.IntType(64)
_POINTER = ir.PointerType()


class WordFunction:
    """Emits one function, from front to back. Variables are memory, of which LLVM makes registers.

    Args:
        name, arguments: of the function; its arguments and its result are words, the first one is the table's address.
        fields: names of the table's words.
        outside: whether it may be called from outside of the module.
    """

    def __init__(self, module: ir.Module, name: str, arguments: int, fields: Sequence[str], outside: bool = False):
        kind = ir.FunctionType(WORD, [WORD] * arguments)
        self.function = ir.Function(module, kind, name)
        self.function.linkage = "" if outside else "internal"
        self.build: Any = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.arguments: Sequence[ir.Value] = self.function.args
        self.fields = fields

    def word(self, number: int) -> ir.Value:
        return ir.Constant(WORD, number)

    def variable(self, start: ir.Value | int) -> ir.Value:
        """Memory of a word, made in the entry block: loops must not make it again."""
        with self.build.goto_entry_block():
            place = self.build.alloca(WORD)
        self.set(place, start)
        return place

    def get(self, place: ir.Value) -> ir.Value:
        return self.build.load(place, typ=WORD)

    def set(self, place: ir.Value, value: ir.Value | int) -> None:
        self.build.store(self.word(value) if isinstance(value, int) else value, place)

    def add(self, place: ir.Value, value: ir.Value | int) -> None:
        """Add to a variable."""
        self.set(place, self.build.add(self.get(place), self.word(value) if isinstance(value, int) else value))

    def element(self, array: ir.Value, index: ir.Value) -> ir.Value:
        """The place of a word of an array."""
        return self.build.gep(self.build.inttoptr(array, _POINTER), [index], source_etype=WORD)

    def field(self, name: str) -> ir.Value:
        """A word of the table."""
        return self.get(self.element(self.arguments[0], self.word(self.fields.index(name))))

    def set_field(self, name: str, value: ir.Value) -> None:
        self.set(self.element(self.arguments[0], self.word(self.fields.index(name))), value)

    def at(self, array: str, index: ir.Value) -> ir.Value:
        """A word of one of the table's arrays."""
        return self.get(self.element(self.field(array), index))

    def put(self, array: str, index: ir.Value, value: ir.Value) -> None:
        self.set(self.element(self.field(array), index), value)

    def compare(self, how: str, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return self.build.icmp_signed(how, a, self.word(b) if isinstance(b, int) else b)

    def call(self, callee: WordFunction, *arguments: ir.Value) -> ir.Value:
        return self.build.call(callee.function, [self.arguments[0], *arguments])

    @contextlib.contextmanager
    def while_(self, condition: Callable[[], ir.Value]) -> Iterator[None]:
        """A loop; the condition is emitted where it is asked."""
        head, body, after = (self.function.append_basic_block(name) for name in ("head", "body", "after"))
        self.build.branch(head)
        self.build.position_at_end(head)
        self.build.cbranch(condition(), body, after)
        self.build.position_at_end(body)
        yield
        self.build.branch(head)
        self.build.position_at_end(after)

    @contextlib.contextmanager
    def for_(self, first: ir.Value | int, end: ir.Value) -> Iterator[ir.Value]:
        """A loop over numbers."""
        place = self.variable(first)
        with self.while_(lambda: self.compare("<", self.get(place), end)):
            yield self.get(place)
            self.add(place, 1)
