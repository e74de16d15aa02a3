"""Compiled functions of words as built-in functions of Python.

ctypes takes about 0.4 us to make a call, more than the work of an append. CPython calls a function of C with an array of its
arguments in a tenth of that (METH_FASTCALL, in the stable ABI since 3.10: docs.python.org/3/c-api/structures.html). So what
reads arguments and makes results is written here in LLVM IR, too, by calls of CPython's stable ABI. The global lock stays held.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from kitsune_mlir.runtime.word_function import WORD, WordFunction

__all__ = ["Interpreter", "builtin_function", "builtin_methods"]

_FASTCALL, _ONE = 0x0080, 0x0008
_SHORT = ir.IntType(32)
_NOTHING = ir.VoidType()
_RESULTS = {
    "PySet_Add": _SHORT, "PyTuple_SetItem": _SHORT, "PyList_SetItem": _SHORT, "PyErr_BadArgument": _SHORT,
    "Py_IncRef": _NOTHING, "Py_DecRef": _NOTHING, "PyErr_Clear": _NOTHING, "PyEval_RestoreThread": _NOTHING,
}  # fmt: skip
"""Of CPython's functions that give no word."""


class Interpreter:
    """CPython's functions, as those of a module call them: objects are words, 0 is an error that is set."""

    def __init__(self, module: ir.Module):
        self._module = module
        self._known: dict[str, ir.Function] = {}

    def call(self, to: WordFunction, name: str, *words: ir.Value) -> ir.Value:
        """Emit a call."""
        if name not in self._known:
            # Where Python is a library of another program, the process' own symbols may not have it.
            llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
            kind = ir.FunctionType(_RESULTS.get(name, WORD), [WORD] * len(words))
            self._known[name] = ir.Function(self._module, kind, name)
        return to.build.call(self._known[name], words)

    def arguments(self, to: WordFunction, count: int) -> list[ir.Value]:
        """The objects that a built-in function (of its object, an array, and how many are in it) was called with."""
        array, given = to.arguments[1:]
        with to.build.if_then(to.compare("!=", given, count), likely=False):
            self.call(to, "PyErr_BadArgument")
            to.build.ret(to.word(0))
        return [to.get(to.element(array, to.word(number))) for number in range(count)]

    def number(self, to: WordFunction, value: ir.Value) -> ir.Value:
        """What an int object is; of others an error is set. So it is of 0, an object that could not be had."""
        return self.call(to, "PyLong_AsLongLong", value)

    def leave_on_error(self, to: WordFunction) -> None:
        """Return if an error is set."""
        with to.build.if_then(to.compare("!=", self.call(to, "PyErr_Occurred"), 0), likely=False):
            to.build.ret(to.word(0))

    def give(self, to: WordFunction, number: ir.Value) -> None:
        """Return an int."""
        to.build.ret(self.call(to, "PyLong_FromLongLong", number))

    def set_of(self, to: WordFunction, array: ir.Value, first: ir.Value, end: ir.Value) -> ir.Value:
        """A set of the words at some places of an array."""
        found = self.call(to, "PySet_New", to.word(0))
        with to.for_(first, end) as place:
            one = self.call(to, "PyLong_FromLongLong", to.get(to.element(array, place)))
            self.call(to, "PySet_Add", found, one)
            self.call(to, "Py_DecRef", one)
        return found


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_: Sequence[tuple[str, type]] = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    ]


_methods: list[_Method] = []
"""Of functions that were made: they have to stay where they are."""


def builtin_function(name: str, address: int) -> Callable[..., object]:
    """The built-in function whose code is at an address; the code has to stay there."""
    return _method(_kept(_Method(name.encode(), address, _FASTCALL, None)), None)


def builtin_methods(name: str, address: int) -> Callable[[object], Callable[[Any], Any]]:
    """Makes, of an object, the built-in function of one argument whose code, at an address, is given that object, too."""
    return functools.partial(_method, _kept(_Method(name.encode(), address, _ONE, None)))


def _kept(method: _Method) -> _Method:
    _methods.append(method)
    return method


def _method(method: _Method, own: object) -> Callable[..., Any]:
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(ctypes.addressof(method), own, None)
