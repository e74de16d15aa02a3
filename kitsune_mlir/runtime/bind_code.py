"""Checks of a call's tensors, their pointers and new results, by compiled code: what `unrolled` does, in half its time."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from kitsune_mlir.runtime.host_code import linked
from kitsune_mlir.runtime.python_calls import Interpreter, builtin_methods
from kitsune_mlir.runtime.results import ALIGNMENT
from kitsune_mlir.runtime.word_function import WordFunction

__all__ = ["binder"]

_FIELDS = (
    "none",  # Python's None and True
    "true",
    "check",  # what says whether tensors fit
    "pointer",  # what gives a tensor's pointer
    "weights",  # how many
    "inputs",
    "results",
    "constants",  # array: an int for each weight
    "empty",  # what makes a tensor, and array: of each result, the tuple that it is called with
    "sizes",
)

Bound = tuple[tuple[int, ...], list[Any]]


def _module() -> str:
    """LLVM IR of `call_bind`, the table's built-in function of a tuple of tensors: pointers and results, or None."""
    module = ir.Module("bind")
    python, to = Interpreter(module), WordFunction(module, "call_bind", 2, _FIELDS, outside=True)
    own, args = to.arguments
    to.arguments = [python.number(to, own)]

    def leave(condition: ir.Value, *held: ir.Value) -> None:
        with to.build.if_then(condition, likely=False):
            for one in held:
                python.call(to, "Py_DecRef", one)
            python.call(to, "PyErr_Clear")
            python.call(to, "Py_IncRef", to.field("none"))
            to.build.ret(to.field("none"))

    leave(to.compare("!=", python.call(to, "PyTuple_Size", args), to.field("inputs")))
    answer = python.call(to, "PyObject_Call", to.field("check"), args, to.word(0))
    leave(to.compare("==", answer, 0))
    python.call(to, "Py_DecRef", answer)
    leave(to.compare("!=", answer, to.field("true")))
    inputs_from = to.field("weights")
    results_from = to.build.add(inputs_from, to.field("inputs"))
    pointers = python.call(to, "PyTuple_New", to.build.add(results_from, to.field("results")))
    leave(to.compare("==", pointers, 0))
    with to.for_(0, inputs_from) as place:
        one = to.at("constants", place)
        python.call(to, "Py_IncRef", one)
        python.call(to, "PyTuple_SetItem", pointers, place, one)
    bits = to.variable(0)
    with to.for_(0, to.field("inputs")) as place:
        tensor = python.call(to, "PyTuple_GetItem", args, place)
        pointer = python.call(to, "PyObject_CallOneArg", to.field("pointer"), tensor)
        leave(to.compare("==", pointer, 0), pointers)
        to.set(bits, to.build.or_(to.get(bits), python.call(to, "PyLong_AsUnsignedLongLong", pointer)))
        python.call(to, "PyTuple_SetItem", pointers, to.build.add(inputs_from, place), pointer)
    leave(to.compare("!=", to.build.and_(to.get(bits), to.word(ALIGNMENT - 1)), 0), pointers)
    results = python.call(to, "PyList_New", to.field("results"))
    leave(to.compare("==", results, 0), pointers)
    with to.for_(0, to.field("results")) as place:
        tensor = python.call(to, "PyObject_Call", to.field("empty"), to.at("sizes", place), to.word(0))
        leave(to.compare("==", tensor, 0), pointers, results)
        python.call(to, "PyList_SetItem", results, place, tensor)  # which has it now
        pointer = python.call(to, "PyObject_CallOneArg", to.field("pointer"), tensor)
        leave(to.compare("==", pointer, 0), pointers, results)
        python.call(to, "PyTuple_SetItem", pointers, to.build.add(results_from, place), pointer)
    both = python.call(to, "PyTuple_New", to.word(2))
    leave(to.compare("==", both, 0), pointers, results)
    for number, one in enumerate((pointers, results)):
        python.call(to, "PyTuple_SetItem", both, to.word(number), one)
    to.build.ret(both)
    return str(module)


@functools.cache
def _compiled() -> Callable[[object], Callable[[Any], Any]] | None:
    """What makes a function of a table's address; None where it cannot be had."""
    address = linked("bind", _module, "call_bind")
    return None if address is None else builtin_methods("call_bind", address)


class _Table:
    """What a function's code reads, and what that refers to."""

    def __init__(self, constants: Sequence[int], sizes: Sequence[Any], inputs: int, **objects: Any):
        def array(each: Sequence[Any]) -> ctypes.Array:
            return (ctypes.c_uint64 * (len(each) + 1))(*map(id, each))

        self._kept = constants, sizes, objects
        self._arrays = array(constants), array(sizes)
        words = {name: id(value) for name, value in objects.items()} | {"none": id(None), "true": id(True)}
        words |= {"weights": len(constants), "inputs": inputs, "results": len(sizes)}
        words |= {name: ctypes.addressof(one) for name, one in zip(("constants", "sizes"), self._arrays, strict=True)}
        self.fields = (ctypes.c_uint64 * len(_FIELDS))(*(words[name] for name in _FIELDS))


def binder(
    constants: Sequence[int], check: Callable[..., bool], inputs: int, empty: Callable[..., Any], made: Sequence[Any]
) -> tuple[Callable[[tuple[Any, ...]], Bound | None], object] | None:
    """A function of a tuple of tensors that gives pointers and new results, and what it needs as long as it is called.

    It gives None where tensors do not fit, or lie at no multiple of 16 bytes. None where there is no compiled code.

    Args:
        constants: pointers that come first.
        check: says whether tensors fit.
        inputs: how many tensors there are.
        empty: makes a tensor of size, strides and type. made: those of each result.
    """
    import torch

    compiled = _compiled()
    if compiled is None:
        return None
    sizes = [tuple(one) for one in made]
    table = _Table([*constants], sizes, inputs, check=check, pointer=torch.Tensor.data_ptr, empty=empty)
    return compiled(ctypes.addressof(table.fields)), table
