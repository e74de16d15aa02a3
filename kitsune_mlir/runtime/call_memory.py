"""What a compiled call asks of its tensors' memory: that what it writes is nobody else's, and what it reads beside is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir

from kitsune_mlir.runtime.python_calls import Interpreter
from kitsune_mlir.runtime.strided import extent_of
from kitsune_mlir.runtime.word_function import WordFunction

__all__ = ["MEMORY_FIELDS", "STRIDED_WORDS", "Memory", "emit_apart", "emit_is_there"]

MEMORY_FIELDS = (
    "constants",  # how many pointers come before those of inputs,
    "spans",  # and how many there are with those; 0 where nothing is written
    "pointers",  # array: of constants, then inputs
    "proven",  # array: the same in the last call of which it was found that what is written is nobody else's
    "begins",  # arrays: bytes from a pointer to the first element, and behind the last one
    "ends",
    "written",  # array: whether it is
    "owners",  # array: of each result, the number of the pointer in whose place it is, or NO_POINTER
    "shifts",  # array: of each input, bytes of the dense tensor that it is a part of before its first element
    "strided",  # how many inputs are such parts,
    "strided_words",  # array: of each, STRIDED_WORDS
    "offset",  # what gives a tensor's offset in its storage, that, and the storage's bytes
    "storage",
    "bytes",
)

STRIDED_WORDS = ("input", "elements", "size", "behind")
"""Number of an input; elements that have to lie before it; bytes of one; bytes of the dense tensor, from the input's first
element on, up to the last one that is read."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """How constants and tensors of a call, constants first, lie in memory.

    Attributes:
        spans: of each, bytes from its pointer to its first element, and behind its last one; of none where nothing is written.
        written: numbers of those that are.
        owners: by number of a result, of the one in whose place it is.
        strided: of each input that is a part of a dense tensor, whose pointer kernels take, `STRIDED_WORDS`.
    """

    spans: Sequence[tuple[int, int]] = ()
    written: frozenset[int] = frozenset()
    owners: Mapping[int, int] = dataclasses.field(default_factory=dict)
    strided: Sequence[tuple[int, int, int, int]] = ()

    @staticmethod
    def of(
        kept: Sequence[Any], args: Sequence[Any], owners: Mapping[int, int], strided: Sequence[tuple[int, int, int, int]]
    ) -> Memory:
        """Of a program's weights and arguments.

        Args:
            strided: as `unrolled` takes them.
        """
        parts = [(n, elements, args[n].element_size(), reach - before) for n, elements, before, reach in strided]
        shifts = {len(kept) + n: before for n, _, before, _ in strided}
        spans = list[tuple[int, int]]()
        for number, tensor in enumerate([*kept, *args] if owners else ()):
            first = shifts.get(number, 0)
            spans.append((first, first + extent_of(tensor.shape, tensor.stride()) * tensor.element_size()))
        return Memory(spans, frozenset(owners.values()), owners, parts)

    def shifts(self, inputs: int) -> list[int]:
        """Of each input, bytes of the dense tensor before its first element."""
        known = {n: elements * size for n, elements, size, _ in self.strided}
        return [known.get(n, 0) for n in range(inputs)]


def emit_apart(to: WordFunction, leave: Callable[[ir.Value], None]) -> None:
    """Leave if a tensor that is written shares memory with another one. Only those are looked at that lie elsewhere than when
    all were found to be apart."""
    build = to.build

    def edge(array: str, number: ir.Value) -> ir.Value:
        return build.add(to.at("pointers", number), to.at(array, number))

    with to.for_(0, to.field("spans")) as one:
        with build.if_then(to.compare("!=", to.at("pointers", one), to.at("proven", one)), likely=False):
            with to.for_(0, to.field("spans")) as other:
                matters = to.compare("!=", build.or_(to.at("written", one), to.at("written", other)), 0)
                crossing = build.and_(
                    to.compare("<", edge("begins", one), edge("ends", other)),
                    to.compare("<", edge("begins", other), edge("ends", one)),
                )
                leave(build.and_(build.and_(matters, crossing), to.compare("!=", one, other)))
    with to.for_(0, to.field("spans")) as one:
        to.put("proven", one, to.at("pointers", one))


def emit_is_there(to: WordFunction, python: Interpreter, args: ir.Value, leave: Callable[[ir.Value], None]) -> None:
    """Leave if what is read beside an input that is not contiguous is not in its storage."""
    build = to.build
    with to.for_(0, to.field("strided")) as one:
        first = build.mul(one, to.word(len(STRIDED_WORDS)))
        words = {name: to.at("strided_words", build.add(first, to.word(n))) for n, name in enumerate(STRIDED_WORDS)}
        tensor = python.call(to, "PyTuple_GetItem", args, words["input"])
        offset = _int_of(to, python, "offset", tensor, leave)
        leave(to.compare("<", offset, words["elements"]))
        storage = python.call(to, "PyObject_CallOneArg", to.field("storage"), tensor)
        leave(to.compare("==", storage, 0))
        held = _int_of(to, python, "bytes", storage, leave)
        python.call(to, "Py_DecRef", storage)
        leave(to.compare(">", build.add(build.mul(offset, words["size"]), words["behind"]), held))


def _int_of(to: WordFunction, python: Interpreter, method: str, of: ir.Value, leave: Callable[[ir.Value], None]) -> ir.Value:
    """What a method without arguments gives, an int. Leaves if it raises."""
    found = python.call(to, "PyObject_CallOneArg", to.field(method), of)
    leave(to.compare("==", found, 0))
    number = python.number(to, found)
    python.call(to, "Py_DecRef", found)
    return number
