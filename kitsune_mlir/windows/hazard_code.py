"""The hazards of `windows.hazards` in LLVM IR: the same pieces, with readers as bits, in memory that the caller gives.

Every entry has a *slot* while it is in the window, and its ranges lie there; a piece has its last writer's slot, and a bit for
each slot that has read it since (`windows.piece_code`). So nothing is allocated here, and an entry that ends takes its bits
away.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from llvmlite import ir

from kitsune_mlir.runtime.python_calls import Interpreter
from kitsune_mlir.runtime.word_function import WORD, WordFunction
from kitsune_mlir.windows.piece_code import FIELDS, PIECES, Code

__all__ = ["FUNCTIONS", "NO_ROOM", "hazard_module"]

FUNCTIONS = ("append", "append_placed", "retire", "touching", "last_written", "purge", "rebuild")
NO_ROOM = -1
"""What `append` gives where there may be too little room for pieces: nothing was done then."""

_READ, _WRITE = 0, 2


def hazard_module() -> str:
    """LLVM IR of built-in functions of Python, `hazards_NAME`; all arguments but ranges and pointers are ints, as the table's
    address and slots are:

    - `append(table, slot, number, ranges)`: an entry with a list of ranges, in ascending order of their modes; two sets, data
      and order, of entries that it waits for, or `NO_ROOM`.
    - `append_placed(table, slot, number, placed, count, pointers)`: the same; ranges are `count` times four words at an
      address: which one of a tuple of pointers, first byte and the one behind the last from there, and mode.
    - `retire(table, slot)`: the entry has ended.
    - `touching(table, slot, ranges)`: the set of those that ranges wait for, which are put in a slot that is no entry's.
    - `last_written(table, slot)`: how many pairs of bytes are in `out` that this entry was the last to write.
    - `purge(table)`: drop pieces that no entry touches; how many are left.
    - `rebuild(table)`: fill the hash table from `order`; the same.
    """
    module = ir.Module("hazards")
    python = Interpreter(module)
    code = {name: WordFunction(module, name, count, FIELDS) for name, (count, _) in _OWN.items()}
    for name, (_, body) in _OWN.items():
        body(code[name], code)
        if name not in _OFTEN:
            code[name].function.attributes.add("noinline")
    for name in FUNCTIONS:
        _emit_builtin(WordFunction(module, f"hazards_{name}", 3, FIELDS, outside=True), name, code, python)
    return str(module)


def _emit_builtin(to: WordFunction, name: str, code: Code, python: Interpreter) -> None:
    count = {"append": 4, "append_placed": 6, "retire": 2, "touching": 3, "last_written": 2}.get(name, 1)
    objects = python.arguments(to, count)
    lists = {"append": 3, "append_placed": 5, "touching": 2}.get(name, count)
    words = [python.number(to, value) for value in objects[:lists]]
    python.leave_on_error(to)
    to.arguments = words
    if name == "append_placed":
        table, slot, number, placed, count = words
        _read_pointers(to, python, objects[lists])
        python.leave_on_error(to)
        to.call(code["place"], slot, placed, count)
        _give_names(to, python, to.call(code["append"], slot, number, count))
    elif lists < count:
        length = _read_ranges(to, python, words[1], objects[lists])
        python.leave_on_error(to)
        if name == "append":
            _give_names(to, python, to.call(code[name], words[1], words[2], length))
        else:
            to.put("counts", words[1], length)
            found = to.call(code[name], words[1])
            to.build.ret(python.set_of(to, to.field("out"), to.word(0), found))
    else:
        python.give(to, to.call(code[name], *words[1:]))


def _read_ranges(to: WordFunction, python: Interpreter, slot: ir.Value, ranges: ir.Value) -> ir.Value:
    """Write a list of tuples into a slot; how many they are."""
    count = python.call(to, "PyList_Size", ranges)
    _check_most(to, python, to.build.mul(count, to.word(3)), to.field("stride"))
    first = to.build.mul(slot, to.field("stride"))
    with to.for_(0, count) as index:
        one = python.call(to, "PyList_GetItem", ranges, index)
        at = to.build.add(first, to.build.mul(index, to.word(3)))
        for place in range(3):
            value = python.number(to, python.call(to, "PyTuple_GetItem", one, to.word(place)))
            to.put("ranges", to.build.add(at, to.word(place)), value)
    return count


def _read_pointers(to: WordFunction, python: Interpreter, pointers: ir.Value) -> None:
    """Write a tuple of pointers where there is room for `most_pointers`."""
    count = python.call(to, "PyTuple_Size", pointers)
    _check_most(to, python, count, to.field("most_pointers"))
    with to.for_(0, count) as index:
        to.put("pointers", index, python.number(to, python.call(to, "PyTuple_GetItem", pointers, index)))


def _check_most(to: WordFunction, python: Interpreter, count: ir.Value, most: ir.Value) -> None:
    with to.build.if_then(to.compare(">", count, most), likely=False):
        python.call(to, "PyErr_BadArgument")
        to.build.ret(to.word(0))


def _give_names(to: WordFunction, python: Interpreter, found: ir.Value) -> None:
    """Return a tuple of two sets; 0 where both are empty, or NO_ROOM."""
    with to.build.if_then(to.compare("<=", found, 0)):
        python.give(to, found)
    data = to.build.and_(found, to.word((1 << 32) - 1))
    every = to.build.add(data, to.build.lshr(found, to.word(32)))
    pair = python.call(to, "PyTuple_New", to.word(2))
    for place, (first, end) in enumerate(((to.word(0), data), (data, every))):
        python.call(to, "PyTuple_SetItem", pair, to.word(place), python.set_of(to, to.field("out"), first, end))
    to.build.ret(pair)


def _bit(to: WordFunction, slot: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The word of a set that a slot is in, and its bit there."""
    inside = to.build.and_(slot, to.word(63))
    return to.build.lshr(slot, to.word(6)), to.build.shl(to.word(1), inside)


def _range(to: WordFunction, slot: ir.Value, number: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """First byte, the one behind the last and mode of a slot's range."""
    first = to.build.add(to.build.mul(slot, to.field("stride")), to.build.mul(number, to.word(3)))
    low, high, mode = (to.at("ranges", to.build.add(first, to.word(n))) for n in range(3))
    return low, high, mode


def _touch(to: WordFunction, code: Code) -> None:
    """Note whom an access of a slot to a whole piece waits for, and the access."""
    piece, slot, mode = to.arguments[1:]
    words, writer = to.field("words"), to.at("writers", piece)
    readers, named = to.build.mul(piece, words), to.field("named")
    mine, bit = _bit(to, slot)

    def name(which: int) -> None:
        word, one = _bit(to, writer)
        place = to.element(named, to.build.add(word, words if which else to.word(0)))
        to.set(place, to.build.or_(to.get(place), one))

    written = to.compare(">=", writer, 0)
    with to.build.if_then(to.build.and_(written, to.compare("!=", mode, _WRITE))):
        name(0)
    with to.build.if_else(to.compare("==", mode, _READ)) as (reads, writes):
        with reads:
            place = to.element(to.field("readers"), to.build.add(readers, mine))
            to.set(place, to.build.or_(to.get(place), bit))
        with writes:
            some = to.variable(0)
            with to.for_(0, words) as word:
                place = to.element(to.field("readers"), to.build.add(readers, word))
                own = to.build.select(to.compare("==", word, mine), bit, to.word(0))
                others = to.build.and_(to.get(place), to.build.not_(own))
                order = to.element(named, to.build.add(words, word))
                to.set(order, to.build.or_(to.get(order), others))
                to.set(some, to.build.or_(to.get(some), others))
                to.set(place, 0)
            with to.build.if_then(to.build.and_(written, to.compare("==", to.get(some), 0))):
                name(1)
            to.put("writers", piece, slot)
    to.build.ret(to.word(0))


def _cut(to: WordFunction, code: Code) -> None:
    """Touch a range that is no piece: pieces that it shares with neighbours are split, and gaps are filled."""
    low, high, slot, mode = to.arguments[1:]
    place, at = to.variable(to.call(code["first"], low)), to.variable(low)

    def inside() -> ir.Value:
        there = to.compare("<", to.get(place), to.field("count"))
        with to.build.if_else(there) as (then, other):
            with then:
                before = to.compare("<", to.at("starts", to.get(place)), high)
                one = to.build.block
            with other:
                two = to.build.block
        found = to.build.phi(ir.IntType(1))
        found.add_incoming(before, one)
        found.add_incoming(ir.Constant(ir.IntType(1), 0), two)
        return found

    with to.while_(inside):
        start = to.at("starts", to.get(place))
        with to.build.if_then(to.compare("<", start, low)):
            to.call(code["split"], to.get(place), low)
            to.add(place, 1)
        with to.build.if_then(to.compare(">", start, to.get(at))):
            gap = to.call(code["insert"], to.get(place), to.get(at), start)
            to.call(code["touch"], gap, slot, mode)
            to.add(place, 1)
        piece = to.at("order", to.get(place))
        with to.build.if_then(to.compare(">", to.at("ends", piece), high)):
            to.call(code["split"], to.get(place), high)
        to.call(code["touch"], piece, slot, mode)
        to.set(at, to.at("ends", piece))
        to.add(place, 1)
    with to.build.if_then(to.compare("<", to.get(at), high)):
        gap = to.call(code["insert"], to.get(place), to.get(at), high)
        to.call(code["touch"], gap, slot, mode)
    to.build.ret(to.word(0))


def _clear_names(to: WordFunction) -> None:
    with to.for_(0, to.build.shl(to.field("words"), to.word(1))) as word:
        to.put("named", word, to.word(0))


def _give(to: WordFunction, code: Code) -> None:
    """Write the entries of one of the two sets into `out`, from a place on; the place behind them."""
    which, first = to.arguments[1:]
    words, place = to.field("words"), to.variable(first)
    with to.for_(0, words) as word:
        left = to.variable(to.at("named", to.build.add(to.build.mul(which, words), word)))
        with to.while_(lambda: to.compare("!=", to.get(left), 0)):
            bits = to.get(left)
            inside = to.build.cttz(bits, ir.Constant(ir.IntType(1), 1))
            slot = to.build.add(to.build.shl(word, to.word(6)), inside)
            to.put("out", to.get(place), to.at("numbers", slot))
            to.add(place, 1)
            to.set(left, to.build.and_(bits, to.build.sub(bits, to.word(1))))
    to.build.ret(to.get(place))


def _append(to: WordFunction, code: Code) -> None:
    slot, number, count = to.arguments[1:4]
    # A range makes two pieces at its ends, and one in each gap between those that are there.
    most = to.build.add(to.build.shl(to.field("count"), to.word(1)), to.build.mul(count, to.word(3)))
    with to.build.if_then(to.compare(">", most, to.field("capacity")), likely=False):
        to.build.ret(to.word(NO_ROOM))
    _clear_names(to)
    to.put("numbers", slot, number)
    to.put("counts", slot, count)
    with to.for_(0, count) as index:
        low, high, mode = _range(to, slot, index)
        with to.build.if_then(to.compare("<", low, high)):
            piece = to.call(code["find"], low)
            whole = to.variable(0)
            with to.build.if_then(to.compare(">=", piece, 0)):
                to.set(whole, to.build.zext(to.compare("==", to.at("ends", piece), high), WORD))
            with to.build.if_else(to.compare("!=", to.get(whole), 0)) as (then, other):
                with then:
                    to.call(code["touch"], piece, slot, mode)
                with other:
                    to.call(code["cut"], low, high, slot, mode)
    mine, bit = _bit(to, slot)
    for start in (to.word(0), to.field("words")):
        place = to.element(to.field("named"), to.build.add(start, mine))
        to.set(place, to.build.and_(to.get(place), to.build.not_(bit)))
    data = to.call(code["give"], to.word(0), to.word(0))
    every = to.call(code["give"], to.word(1), data)
    to.build.ret(to.build.or_(data, to.build.shl(to.build.sub(every, data), to.word(32))))


def _place(to: WordFunction, code: Code) -> None:
    """Write ranges into a slot that begin at some of the pointers that are in the table."""
    slot, placed, count = to.arguments[1:]
    first = to.build.mul(slot, to.field("stride"))
    with to.for_(0, count) as index:
        word, target = to.build.shl(index, to.word(2)), to.build.add(first, to.build.mul(index, to.word(3)))
        which, low, high, mode = (to.get(to.element(placed, to.build.add(word, to.word(n)))) for n in range(4))
        base = to.at("pointers", which)
        for place, value in enumerate((to.build.add(base, low), to.build.add(base, high), mode)):
            to.put("ranges", to.build.add(target, to.word(place)), value)
    to.build.ret(to.word(0))


@contextlib.contextmanager
def _each_piece(to: WordFunction, code: Code, slot: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
    """A loop over the pieces that a slot's ranges share a byte with, and the modes of these."""
    with to.for_(0, to.at("counts", slot)) as index:
        low, high, mode = _range(to, slot, index)
        with to.build.if_then(to.compare("<", low, high)):
            # Most ranges are a piece as it is; else they are looked for in the order.
            piece, place = to.variable(to.call(code["find"], low)), to.variable(-1)
            with to.build.if_then(to.compare("<", to.get(piece), 0)):
                to.set(place, to.call(code["first"], low))
                to.set(piece, to.call(code["next"], to.get(place), high))
            with to.while_(lambda: to.compare(">=", to.get(piece), 0)):
                yield to.get(piece), mode
                end = to.at("ends", to.get(piece))
                with to.build.if_else(to.compare(">=", end, high)) as (last, more):
                    with last:
                        to.set(piece, -1)
                    with more:
                        with to.build.if_else(to.compare("<", to.get(place), 0)) as (unknown, known):
                            with unknown:
                                to.set(place, to.call(code["first"], end))
                            with known:
                                to.add(place, 1)
                        to.set(piece, to.call(code["next"], to.get(place), high))


def _retire(to: WordFunction, code: Code) -> None:
    slot, words = to.arguments[1], to.field("words")
    word, bit = _bit(to, slot)
    with _each_piece(to, code, slot) as (piece, _):
        place = to.element(to.field("readers"), to.build.add(to.build.mul(piece, words), word))
        to.set(place, to.build.and_(to.get(place), to.build.not_(bit)))
        writer = to.at("writers", piece)
        to.put("writers", piece, to.build.select(to.compare("==", writer, slot), to.word(-1), writer))
    to.build.ret(to.word(0))


def _touching(to: WordFunction, code: Code) -> None:
    words = to.field("words")
    _clear_names(to)
    with _each_piece(to, code, to.arguments[1]) as (piece, mode):
        writer = to.at("writers", piece)
        with to.build.if_then(to.compare(">=", writer, 0)):
            word, bit = _bit(to, writer)
            place = to.element(to.field("named"), word)
            to.set(place, to.build.or_(to.get(place), bit))
        with to.build.if_then(to.compare("!=", mode, _READ)), to.for_(0, words) as word:
            place = to.element(to.field("named"), word)
            readers = to.at("readers", to.build.add(to.build.mul(piece, words), word))
            to.set(place, to.build.or_(to.get(place), readers))
    to.build.ret(to.call(code["give"], to.word(0), to.word(0)))


def _last_written(to: WordFunction, code: Code) -> None:
    slot, count = to.arguments[1], to.variable(0)
    with _each_piece(to, code, slot) as (piece, mode):
        own = to.compare("==", to.at("writers", piece), slot)
        with to.build.if_then(to.build.and_(own, to.compare("!=", mode, _READ))):
            for place, array in enumerate(("begins", "ends")):
                at = to.build.add(to.build.shl(to.get(count), to.word(1)), to.word(place))
                to.put("out", at, to.at(array, piece))
            to.add(count, 1)
    to.build.ret(to.get(count))


_OFTEN = ("find", "touch", "append", "place", "retire")
"""Functions that LLVM may put where they are called: the others would only make it take longer."""
_OWN: dict[str, tuple[int, Callable[[WordFunction, Code], None]]] = {
    **PIECES,
    "touch": (4, _touch),
    "cut": (5, _cut),
    "give": (3, _give),
    "append": (4, _append),
    "place": (4, _place),
    "retire": (2, _retire),
    "touching": (2, _touching),
    "last_written": (2, _last_written),
}
