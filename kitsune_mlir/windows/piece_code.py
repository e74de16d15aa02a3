"""Pieces of memory in LLVM IR: in the order of their addresses (`starts`, `order`), and in a hash table with linear probing by
their first byte (`places`). `FIELDS` is what a table has, a word each: numbers, then addresses of arrays of words."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from kitsune_mlir.runtime.word_function import WordFunction

__all__ = ["FIELDS", "PIECES", "Code"]

Code = dict[str, WordFunction]
"""Functions by name."""

FIELDS = (
    "words",  # of a set of slots
    "capacity",  # pieces that there is room for
    "count",  # pieces
    "free_count",  # pieces that may be used
    "mask",  # places of the hash table, less one
    "shift",  # 64 less the bits of these
    "stride",  # words of a slot's ranges
    "most_pointers",  # that there is room for
    "starts",  # first bytes in ascending order,
    "order",  # and the pieces that begin there
    "begins",  # of a piece: its first byte,
    "ends",  # the one behind its last,
    "writers",  # the slot of the last writer, or -1,
    "readers",  # and `words` words of slots
    "free",  # pieces that may be used
    "places",  # hash table: a piece and one, or 0
    "ranges",  # of a slot: low, high, mode, each `stride` words apart
    "counts",  # of a slot: its ranges
    "pointers",  # of the call that is appended
    "numbers",  # of a slot: its entry
    "named",  # two sets of slots: data, order
    "out",  # what functions give
)

_HASH = 0x9E3779B97F4A7C15


def _hash(to: WordFunction, start: ir.Value) -> ir.Value:
    return to.build.lshr(to.build.mul(start, to.word(_HASH)), to.field("shift"))


def _find(to: WordFunction, code: Code) -> None:
    """The piece that begins at a byte, or -1."""
    start, found, place = to.arguments[1], to.variable(-1), to.variable(_hash(to, to.arguments[1]))
    piece = to.variable(to.at("places", to.get(place)))
    with to.while_(lambda: to.compare("!=", to.get(piece), 0)):
        one = to.build.sub(to.get(piece), to.word(1))
        same = to.compare("==", to.at("begins", one), start)
        with to.build.if_else(same) as (then, other):
            with then:
                to.set(found, one)
                to.set(piece, 0)
            with other:
                to.set(place, to.build.and_(to.build.add(to.get(place), to.word(1)), to.field("mask")))
                to.set(piece, to.at("places", to.get(place)))
    to.build.ret(to.get(found))


def _enter(to: WordFunction, code: Code) -> None:
    """Enter a piece in the hash table."""
    piece = to.arguments[1]
    place = to.variable(_hash(to, to.at("begins", piece)))
    with to.while_(lambda: to.compare("!=", to.at("places", to.get(place)), 0)):
        to.set(place, to.build.and_(to.build.add(to.get(place), to.word(1)), to.field("mask")))
    to.put("places", to.get(place), to.build.add(piece, to.word(1)))
    to.build.ret(to.word(0))


def _first(to: WordFunction, code: Code) -> None:
    """How many pieces in order end at a byte or before."""
    low, first, end = to.arguments[1], to.variable(0), to.variable(to.field("count"))
    with to.while_(lambda: to.compare("<", to.get(first), to.get(end))):
        middle = to.build.lshr(to.build.add(to.get(first), to.get(end)), to.word(1))
        before = to.compare("<=", to.at("ends", to.at("order", middle)), low)
        with to.build.if_else(before) as (then, other):
            with then:
                to.set(first, to.build.add(middle, to.word(1)))
            with other:
                to.set(end, middle)
    to.build.ret(to.get(first))


def _next(to: WordFunction, code: Code) -> None:
    """The piece at a place in the order, if it begins before a byte; else -1."""
    place, high = to.arguments[1:]
    found = to.variable(-1)
    with to.build.if_then(to.compare("<", place, to.field("count"))):
        with to.build.if_then(to.compare("<", to.at("starts", place), high)):
            to.set(found, to.at("order", place))
    to.build.ret(to.get(found))


def _insert(to: WordFunction, code: Code) -> None:
    """A new piece at a place in the order, from one byte to another, that nobody has touched; its number."""
    at, start, end = to.arguments[1:]
    left, count = to.build.sub(to.field("free_count"), to.word(1)), to.field("count")
    piece = to.at("free", left)
    to.set_field("free_count", left)
    to.set_field("count", to.build.add(count, to.word(1)))
    move = to.variable(count)
    with to.while_(lambda: to.compare(">", to.get(move), at)):
        before = to.build.sub(to.get(move), to.word(1))
        for array in ("starts", "order"):
            to.put(array, to.get(move), to.at(array, before))
        to.set(move, before)
    for array, index, value in (("starts", at, start), ("order", at, piece), ("begins", piece, start), ("ends", piece, end)):
        to.put(array, index, value)
    to.put("writers", piece, to.word(-1))
    words = to.field("words")
    with to.for_(0, words) as word:
        to.put("readers", to.build.add(to.build.mul(piece, words), word), to.word(0))
    to.call(code["enter"], piece)
    to.build.ret(piece)


def _split(to: WordFunction, code: Code) -> None:
    """Cut the piece at a place in the order at a byte; the second, which is at the next place."""
    at, byte = to.arguments[1:]
    piece = to.at("order", at)
    end, words = to.at("ends", piece), to.field("words")
    second = to.call(code["insert"], to.build.add(at, to.word(1)), byte, end)
    to.put("ends", piece, byte)
    to.put("writers", second, to.at("writers", piece))
    with to.for_(0, words) as word:
        readers = to.at("readers", to.build.add(to.build.mul(piece, words), word))
        to.put("readers", to.build.add(to.build.mul(second, words), word), readers)
    to.build.ret(second)


def _purge(to: WordFunction, code: Code) -> None:
    words, count, kept = to.field("words"), to.field("count"), to.variable(0)
    with to.for_(0, count) as place:
        piece, start = to.at("order", place), to.at("starts", place)
        used = to.variable(to.build.add(to.at("writers", piece), to.word(1)))
        with to.for_(0, words) as word:
            readers = to.at("readers", to.build.add(to.build.mul(piece, words), word))
            to.set(used, to.build.or_(to.get(used), readers))
        with to.build.if_else(to.compare("!=", to.get(used), 0)) as (keep, drop):
            with keep:
                to.put("starts", to.get(kept), start)
                to.put("order", to.get(kept), piece)
                to.add(kept, 1)
            with drop:
                free = to.field("free_count")
                to.put("free", free, piece)
                to.set_field("free_count", to.build.add(free, to.word(1)))
    to.set_field("count", to.get(kept))
    to.build.ret(to.call(code["rebuild"]))


def _rebuild(to: WordFunction, code: Code) -> None:
    with to.for_(0, to.build.add(to.field("mask"), to.word(1))) as place:
        to.put("places", place, to.word(0))
    with to.for_(0, to.field("count")) as place:
        to.call(code["enter"], to.at("order", place))
    to.build.ret(to.field("count"))


PIECES: dict[str, tuple[int, Callable[[WordFunction, Code], None]]] = {
    "find": (2, _find),
    "enter": (2, _enter),
    "first": (2, _first),
    "next": (3, _next),
    "insert": (4, _insert),
    "split": (3, _split),
    "rebuild": (1, _rebuild),
    "purge": (1, _purge),
}
"""Functions of the module's own: how many arguments each has (the table's address first), and what writes it."""
