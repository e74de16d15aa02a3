"""The code that makes a call of a program whose arguments lie as in earlier calls, written in LLVM IR.

A launch takes the driver 2 to 3 us; around it Python takes as long again, and more where what it runs is not in the processor's
caches, as between other people's code. Here all launches of a call are made by one function.
"""

from __future__ import annotations

from llvmlite import ir

from kitsune_mlir.runtime.call_memory import MEMORY_FIELDS, emit_apart, emit_is_there
from kitsune_mlir.runtime.python_calls import Interpreter
from kitsune_mlir.runtime.results import ALIGNMENT
from kitsune_mlir.runtime.table_code import MAP_WORDS
from kitsune_mlir.runtime.word_function import WORD, WordFunction

__all__ = ["CAPTURED", "DONE", "FAILED", "FIELDS", "MISFIT", "MOVED", "NO_POINTER", "call_module"]

FIELDS = (
    "none",  # Python's None, True and 0
    "true",
    "zero",
    "check",  # what says whether tensors fit
    "pointer",  # what gives a tensor's pointer
    "acquire",  # of the lock that is held while the call is launched
    "release",
    "arena",  # address of the word that says where the arena is,
    "bound",  # and where it was
    "inputs",  # how many
    "results",
    "empty",  # what makes a tensor, and array: of each result, the tuple that it is called with
    "sizes",
    "cut",  # what gives a tensor other sizes and strides, and array: of each result two tuples, or zeros
    "cuts",
    "last",  # array: the pointers of the last call, of inputs, then of results
    "place_firsts",  # array: of each pointer, its first of `places`; those of the last one end at one more
    "places",  # array: addresses of words that hold it
    "map_firsts",  # array: as of `places`
    "maps",  # array: what gives a map in bytes by the pointer, and the address where its words are
    "launches",  # how many
    "launch_words",  # array: configuration, function and arguments of each
    "launch",  # addresses of the driver's functions
    "capturing",
    "stream",
    "flag",  # address of what the driver writes to
    "status",  # what became of the call
    "which",  # of the launches it became of
    "code",  # that the driver gave
    *MEMORY_FIELDS,
)

DONE, MISFIT, MOVED, CAPTURED, FAILED = range(5)
"""What is written to `status`: all is launched; the arguments do not fit; the arena lies elsewhere; the stream is being
captured; the driver did not launch kernel `which`. Nothing else is an error."""

NO_POINTER = -1
"""In the place of a pointer in `last`."""

_SHORT = ir.IntType(32)


def call_module() -> str:
    """LLVM IR of `call_make`, the table's built-in function of a tuple of tensors: the list of results, or None."""
    module = ir.Module("calls")
    python = Interpreter(module)
    inner = WordFunction(module, "call_locked", 2, FIELDS)
    _Call(inner, python).emit()
    _outer(WordFunction(module, "call_make", 2, FIELDS, outside=True), python, inner)
    return str(module)


def _outer(to: WordFunction, python: Interpreter, inner: WordFunction) -> None:
    """Check the arguments, and make the call with the lock held."""
    own, args = to.arguments
    table = python.number(to, own)
    to.arguments = [table]
    to.set_field("status", to.word(MISFIT))
    with to.build.if_then(to.compare("!=", python.call(to, "PyTuple_Size", args), to.field("inputs")), likely=False):
        _give_none(to, python)
    answer = python.call(to, "PyObject_Call", to.field("check"), args, to.word(0))
    with to.build.if_then(to.compare("==", answer, 0), likely=False):
        _give_none(to, python)
    python.call(to, "Py_DecRef", answer)
    with to.build.if_then(to.compare("!=", answer, to.field("true")), likely=False):
        _give_none(to, python)
    found = to.variable(0)
    held = python.call(to, "PyObject_CallNoArgs", to.field("acquire"))
    with to.build.if_then(to.compare("==", held, 0), likely=False):  # interrupted
        to.build.ret(to.word(0))
    python.call(to, "Py_DecRef", held)
    to.set(found, to.call(inner, args))
    with to.build.if_then(to.compare("==", to.get(found), 0), likely=False):
        python.call(to, "PyErr_Clear")  # nothing may be called with an error set; who makes the call another way has it again
    left = python.call(to, "PyObject_CallNoArgs", to.field("release"))
    with to.build.if_then(to.compare("!=", left, 0)):
        python.call(to, "Py_DecRef", left)
    with to.build.if_then(to.compare("==", to.get(found), 0), likely=False):
        _give_none(to, python)
    to.build.ret(to.get(found))


def _give_none(to: WordFunction, python: Interpreter) -> None:
    python.call(to, "PyErr_Clear")
    python.call(to, "Py_IncRef", to.field("none"))
    to.build.ret(to.field("none"))


class _Call:
    """Emits what is done under the lock: a function of the arguments that gives the results, or 0."""

    def __init__(self, to: WordFunction, python: Interpreter):
        self._to, self._python = to, python

    def emit(self) -> None:
        to = self._to
        args = to.arguments[1]
        self._leave(to.compare("!=", to.get(to.element(to.field("arena"), to.word(0))), to.field("bound")), MOVED)
        self._calm()
        emit_is_there(to, self._python, args, lambda problem: self._leave(problem, MISFIT))
        with to.for_(0, to.field("inputs")) as place:
            address = self._address(self._python.call(to, "PyTuple_GetItem", args, place), 0)
            self._set(place, to.build.sub(address, to.at("shifts", place)), 0)
        emit_apart(to, lambda problem: self._leave(problem, MISFIT))
        results = self._python.call(to, "PyList_New", to.field("results"))
        self._leave(to.compare("==", results, 0), MISFIT)
        with to.for_(0, to.field("results")) as place:
            address, owner = to.variable(0), to.at("owners", place)
            with to.build.if_else(to.compare("==", owner, NO_POINTER)) as (new, owned):
                with new:
                    tensor = self._python.call(to, "PyObject_Call", to.field("empty"), to.at("sizes", place), to.word(0))
                    self._leave(to.compare("==", tensor, 0), MISFIT, results)
                    self._python.call(to, "PyList_SetItem", results, place, tensor)  # which has it now
                    to.set(address, self._address(tensor, results))
                with owned:
                    none = to.field("none")
                    self._python.call(to, "Py_IncRef", none)
                    self._python.call(to, "PyList_SetItem", results, place, none)
                    to.set(address, to.at("pointers", owner))
            self._set(to.build.add(to.field("inputs"), place), to.get(address), results)
        self._launch(results)
        with to.for_(0, to.field("results")) as place:
            self._cut(results, place)
        to.set_field("status", to.word(DONE))
        to.build.ret(results)

    def _leave(self, condition: ir.Value, status: int, results: ir.Value | int = 0) -> None:
        """Return if something is not as it was."""
        with self._to.build.if_then(condition, likely=False):
            self._give(status, results)

    def _give(self, status: int, results: ir.Value | int) -> None:
        to = self._to
        to.set_field("status", to.word(status))
        if not isinstance(results, int):
            self._python.call(to, "Py_DecRef", results)
        to.build.ret(to.word(0))

    def _driver(self, name: str, *words: ir.Value) -> ir.Value:
        """Call a function of the driver's; its CUresult."""
        to, kind = self._to, ir.FunctionType(_SHORT, [WORD] * len(words))
        return to.build.zext(to.build.call(to.build.inttoptr(to.field(name), kind.as_pointer()), words), WORD)

    def _calm(self) -> None:
        """Return while the stream is being captured."""
        to = self._to
        status, flag = self._driver("capturing", to.field("stream"), to.field("flag")), to.field("flag")
        seen = to.build.load(to.build.inttoptr(flag, ir.PointerType()), typ=_SHORT)
        self._leave(to.compare("!=", to.build.or_(status, to.build.zext(seen, WORD)), 0), CAPTURED)

    def _address(self, tensor: ir.Value, results: ir.Value | int) -> ir.Value:
        """Where a tensor lies. Returns if nobody can say."""
        to, python = self._to, self._python
        pointer = python.call(to, "PyObject_CallOneArg", to.field("pointer"), tensor)
        self._leave(to.compare("==", pointer, 0), MISFIT, results)
        address = python.call(to, "PyLong_AsUnsignedLongLong", pointer)
        python.call(to, "Py_DecRef", pointer)
        return address

    def _set(self, number: ir.Value, address: ir.Value, results: ir.Value | int) -> None:
        """Write a pointer where kernels have it, if it is another one. Returns if a map of it cannot be encoded."""
        to, python, build = self._to, self._python, self._to.build
        following = build.add(number, to.word(1))
        with build.if_then(to.compare("!=", address, to.at("last", number))):
            to.put("last", number, to.word(NO_POINTER))
            self._leave(to.compare("!=", build.and_(address, to.word(ALIGNMENT - 1)), 0), MISFIT, results)
            with to.for_(to.at("map_firsts", number), to.at("map_firsts", following)) as one:
                pair = build.mul(one, to.word(2))
                pointer = python.call(to, "PyLong_FromUnsignedLongLong", address)
                self._leave(to.compare("==", pointer, 0), MISFIT, results)
                found = python.call(to, "PyObject_GetItem", to.at("maps", pair), pointer)  # which encodes one that is not known
                python.call(to, "Py_DecRef", pointer)
                self._leave(to.compare("==", found, 0), MISFIT, results)
                source, target = python.call(to, "PyBytes_AsString", found), to.at("maps", build.add(pair, to.word(1)))
                with to.for_(0, to.word(MAP_WORDS)) as word:
                    to.set(to.element(target, word), to.get(to.element(source, word)))
                python.call(to, "Py_DecRef", found)
            with to.for_(to.at("place_firsts", number), to.at("place_firsts", following)) as one:
                to.set(to.element(to.at("places", one), to.word(0)), address)
            to.put("last", number, address)

    def _launch(self, results: ir.Value) -> None:
        """Launch all kernels; others have the interpreter meanwhile, as the driver may wait for a place in its queue."""
        to, python, build = self._to, self._python, self._to.build
        code = to.variable(0)
        thread = python.call(to, "PyEval_SaveThread")
        with to.for_(0, to.field("launches")) as one:
            with build.if_then(to.compare("==", to.get(code), 0)):
                first = build.mul(one, to.word(3))
                words = [to.at("launch_words", build.add(first, to.word(n))) for n in range(3)]
                to.set(code, self._driver("launch", *words, to.word(0)))
                to.set_field("which", one)
        python.call(to, "PyEval_RestoreThread", thread)
        to.set_field("code", to.get(code))
        self._leave(to.compare("!=", to.get(code), 0), FAILED, results)

    def _cut(self, results: ir.Value, place: ir.Value) -> None:
        """Give a result its sizes and strides, where it has others."""
        to, python, build = self._to, self._python, self._to.build
        first = build.mul(place, to.word(2))
        size, stride = (to.at("cuts", build.add(first, to.word(n))) for n in range(2))
        with build.if_then(to.compare("!=", size, 0)):
            given = python.call(to, "PyTuple_New", to.word(4))
            self._leave(to.compare("==", given, 0), MISFIT, results)
            for number, one in enumerate((python.call(to, "PyList_GetItem", results, place), size, stride, to.field("zero"))):
                python.call(to, "Py_IncRef", one)
                python.call(to, "PyTuple_SetItem", given, to.word(number), one)
            made = python.call(to, "PyObject_Call", to.field("cut"), given, to.word(0))
            python.call(to, "Py_DecRef", given)
            self._leave(to.compare("==", made, 0), MISFIT, results)
            python.call(to, "PyList_SetItem", results, place, made)
