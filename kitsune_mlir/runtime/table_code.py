"""The code that fills a table of requests from calls as Python has them, written in LLVM IR."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from llvmlite import ir

from kitsune_mlir.runtime.python_calls import Interpreter
from kitsune_mlir.runtime.word_function import WordFunction

__all__ = ["DONE", "FIELDS", "MAP_WORDS", "MISFIT", "UNKNOWN_MAP", "table_module"]

FIELDS = (
    "models",  # a dict: the number of each name
    "check",  # what says whether tensors fit
    "pointer",  # what gives a tensor's pointer
    "true",  # Python's True
    "inputs",  # how many
    "results",
    "weights",
    "weight_rows",  # array of the weights' pointers: [models, weights]
    "row_words",  # of a request: weights, inputs, results, arena
    "rows",  # array that is filled: [requests, row_words]
    "firsts",  # array: where the first request's results lie, and how far it is from one request's to the next one's
    "arena",  # of the first request, and from one to the next
    "arena_step",
    "numbers",  # array that is filled: the model of each request
    "map_words",  # of a request's tensor maps
    "maps",  # array that is filled: [requests, map_words]
    "weight_maps",  # array: [models, map_words]
    "arena_maps",  # array: place and address of [requests, words of a map], of so many
    "arena_map_count",
    "keyed_maps",  # array: place, number of the input (results after them), and a dict: a map in bytes, by the pointer; so many
    "keyed_map_count",
    "unknown_place",  # where a dict has no map
    "unknown_pointer",
)

MAP_WORDS = 16
"""Of a tensor map."""

DONE, MISFIT, UNKNOWN_MAP = range(3)
"""What `tables_fill` gives."""


def table_module() -> str:
    """LLVM IR of `tables_fill(table, calls, first, count)`, a built-in function of Python: fill rows and maps from so many of a
    list of calls, each a tuple of a model's name and a tuple of tensors. It is

    - `DONE`,
    - `MISFIT`: a call is none, or its tensors are not as they should be, or not aligned to 16 bytes; no error is set,
    - `UNKNOWN_MAP`: a dict lacks the map of a pointer, both are in the table.
    """
    module = ir.Module("tables")
    _Fill(WordFunction(module, "tables_fill", 3, FIELDS, outside=True), Interpreter(module)).emit()
    return str(module)


class _Fill:
    """Emits the function."""

    def __init__(self, to: WordFunction, python: Interpreter):
        self._to, self._python = to, python

    def emit(self) -> None:
        to, python = self._to, self._python
        table, calls, first, count = python.arguments(to, 4)
        words = [python.number(to, value) for value in (table, first, count)]
        python.leave_on_error(to)
        to.arguments = words[:1]
        bits = to.variable(0)
        with to.for_(0, words[2]) as request:
            one = self._had(python.call(to, "PyList_GetItem", calls, to.build.add(words[1], request)))
            name, args = (self._had(python.call(to, "PyTuple_GetItem", one, to.word(place))) for place in (0, 1))
            number = python.number(to, self._had(python.call(to, "PyDict_GetItem", to.field("models"), name)))
            self._check(args)
            to.put("numbers", request, number)
            row = self._row(request, number)
            self._copy_maps(request, number)
            inputs = to.field("inputs")
            with to.for_(0, inputs) as place:
                tensor = python.call(to, "PyTuple_GetItem", args, place)
                pointer = self._had(python.call(to, "PyObject_CallOneArg", to.field("pointer"), tensor))
                address = python.call(to, "PyLong_AsUnsignedLongLong", pointer)
                to.set(bits, to.build.or_(to.get(bits), address))
                to.set(to.element(row, to.build.add(to.field("weights"), place)), address)
                self._keyed_maps(request, place, pointer, address)
                python.call(to, "Py_DecRef", pointer)
            with to.for_(0, to.field("results")) as place:
                twice = to.build.mul(place, to.word(2))
                step = to.at("firsts", to.build.add(twice, to.word(1)))
                address = to.build.add(to.at("firsts", twice), to.build.mul(request, step))
                number = to.build.add(inputs, place)
                to.set(to.element(row, to.build.add(to.field("weights"), number)), address)
                pointer = python.call(to, "PyLong_FromLongLong", address)
                self._keyed_maps(request, number, pointer, address)
                python.call(to, "Py_DecRef", pointer)
        with self._rarely(to.compare("!=", to.build.and_(to.get(bits), to.word(15)), 0)):
            python.give(to, to.word(MISFIT))
        python.give(to, to.word(DONE))

    @contextlib.contextmanager
    def _rarely(self, condition: ir.Value) -> Iterator[None]:
        with self._to.build.if_then(condition, likely=False):
            yield

    def _leave(self, condition: ir.Value) -> None:
        """Return if something does not fit."""
        with self._rarely(condition):
            self._python.call(self._to, "PyErr_Clear")
            self._python.give(self._to, self._to.word(MISFIT))

    def _had(self, value: ir.Value) -> ir.Value:
        """An object, which could be had."""
        self._leave(self._to.compare("==", value, 0))
        return value

    def _check(self, args: ir.Value) -> None:
        """Return if the arguments of a call do not fit."""
        to, python = self._to, self._python
        self._leave(to.compare("!=", python.call(to, "PyTuple_Size", args), to.field("inputs")))
        answer = self._had(python.call(to, "PyObject_Call", to.field("check"), args, to.word(0)))
        python.call(to, "Py_DecRef", answer)
        self._leave(to.compare("!=", answer, to.field("true")))

    def _copy(self, target: ir.Value, source: ir.Value, words: ir.Value) -> None:
        to = self._to
        with to.for_(0, words) as place:
            to.set(to.element(target, place), to.get(to.element(source, place)))

    def _row(self, request: ir.Value, number: ir.Value) -> ir.Value:
        """Write weights and arena of a request; the address of its row."""
        to, build = self._to, self._to.build
        words, weights = to.field("row_words"), to.field("weights")
        row = self._place("rows", build.mul(request, words))
        self._copy(row, self._place("weight_rows", build.mul(number, weights)), weights)
        arena = build.add(to.field("arena"), build.mul(request, to.field("arena_step")))
        to.set(to.element(row, build.sub(words, to.word(1))), arena)
        return row

    def _place(self, array: str, index: ir.Value) -> ir.Value:
        """The address of a word of one of the table's arrays."""
        return self._to.build.add(self._to.field(array), self._to.build.mul(index, self._to.word(8)))

    def _copy_maps(self, request: ir.Value, number: ir.Value) -> None:
        """Write the tensor maps of weights and arena of a request."""
        to, build = self._to, self._to.build
        words = to.field("map_words")
        maps = self._place("maps", build.mul(request, words))
        self._copy(maps, self._place("weight_maps", build.mul(number, words)), words)
        with to.for_(0, to.field("arena_map_count")) as one:
            place, source = (to.at("arena_maps", build.add(build.mul(one, to.word(2)), to.word(n))) for n in range(2))
            source = build.add(source, build.mul(request, to.word(8 * MAP_WORDS)))
            self._copy(build.add(maps, build.mul(place, to.word(8 * MAP_WORDS))), source, to.word(MAP_WORDS))

    def _keyed_maps(self, request: ir.Value, number: ir.Value, pointer: ir.Value, address: ir.Value) -> None:
        """Write the tensor maps of a request's input or result, whose pointer is an int object; returns if one is not known."""
        to, python, build = self._to, self._python, self._to.build
        with to.for_(0, to.field("keyed_map_count")) as one:
            first = build.mul(one, to.word(3))
            place, its, known = (to.at("keyed_maps", build.add(first, to.word(n))) for n in range(3))
            with build.if_then(to.compare("==", its, number)):
                found = python.call(to, "PyDict_GetItem", known, pointer)
                with self._rarely(to.compare("==", found, 0)):
                    to.set_field("unknown_place", place)
                    to.set_field("unknown_pointer", address)
                    python.call(to, "Py_DecRef", pointer)
                    python.give(to, to.word(UNKNOWN_MAP))
                source = python.call(to, "PyBytes_AsString", found)
                maps = self._place("maps", build.mul(request, to.field("map_words")))
                self._copy(build.add(maps, build.mul(place, to.word(8 * MAP_WORDS))), source, to.word(MAP_WORDS))
