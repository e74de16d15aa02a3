"""`CompiledHazards`: `Hazards` in code that LLVM compiles when the first window is made; and ranges of a program's calls."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, overload

from kitsune_mlir.errors import ArgumentError, KitsuneError
from kitsune_mlir.runtime.host_code import link
from kitsune_mlir.runtime.host_object import emit_object
from kitsune_mlir.runtime.python_calls import builtin_function
from kitsune_mlir.windows.hazard_code import FUNCTIONS, NO_ROOM, hazard_module
from kitsune_mlir.windows.hazards import Entries, Hazards, Range, Upstream
from kitsune_mlir.windows.piece_code import FIELDS

__all__ = ["CompiledHazards", "Placed", "Places", "make_hazards"]

PIECES = 1024
"""Pieces that there is room for at first."""
RANGES = 16
"""Ranges of an entry that there is room for at first."""
_WORD = 8
_NOTHING = Upstream(frozenset(), frozenset())
_upstream = tuple.__new__


class Places:
    """What every call of a program touches: ranges from pointers that a call has.

    Attributes:
        ranges: number of the pointer, first byte and the one behind the last from there, and mode; in ascending order of modes.
        most: how many ranges or pointers there are, whichever is more.
    """

    def __init__(self, ranges: Sequence[tuple[int, int, int, int]], pointers: int):
        self.ranges, self.count = tuple(ranges), len(ranges)
        self._words = (ctypes.c_int64 * max(1, 4 * self.count))(*chain.from_iterable(self.ranges))
        self.address = ctypes.addressof(self._words)
        self.most = max(self.count, pointers)


class Placed(Sequence[Range]):
    """A call's ranges, which compiled code can do without."""

    __slots__ = ("places", "pointers")

    def __init__(self, places: Places, pointers: Sequence[int]):
        self.places, self.pointers = places, pointers

    def __len__(self) -> int:
        return self.places.count

    def __iter__(self) -> Iterator[Range]:
        pointers = self.pointers
        return iter([(pointers[n] + low, pointers[n] + high, mode) for n, low, high, mode in self.places.ranges])

    @overload
    def __getitem__(self, index: int) -> Range: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Range]: ...
    def __getitem__(self, index: int | slice) -> Range | Sequence[Range]:
        return [*self][index]


@functools.cache
def _compiled() -> tuple[object, dict[str, Callable[..., Any]]]:
    """What keeps the code in memory, and its functions by name.

    Raises:
        KitsuneError: it cannot be compiled or loaded here.
    """
    kept, addresses = link("hazards", emit_object(hazard_module()), [f"hazards_{name}" for name in FUNCTIONS])
    return kept, {name: builtin_function(name, addresses[f"hazards_{name}"]) for name in FUNCTIONS}


class CompiledHazards(Entries):
    """As `Hazards`, arguments, attributes and errors too."""

    _entries: dict[int, int]  # number, and slot

    def __init__(self, size: int = 128):
        super().__init__(size)
        self._free = list(range(size - 1, -1, -1))
        self._kept, self._code = _compiled()
        self._append, self._append_placed, self._retire = (self._code[f] for f in ("append", "append_placed", "retire"))
        self._words = (size + 63) // 64
        self._fields = (ctypes.c_int64 * len(FIELDS))()
        self._table = ctypes.addressof(self._fields)
        self._arrays: dict[str, ctypes.Array] = {}
        self._set("words", self._words)
        for name, words in (("named", 2 * self._words), ("numbers", size), ("counts", size + 1)):
            self._make(name, words)
        self._make_room(PIECES)
        self._widen(RANGES)

    @property
    def pieces(self) -> int:
        """As of `Hazards`."""
        return self._code["purge"](self._table)

    def append(self, ranges: Sequence[Range] | None) -> tuple[int, Upstream]:
        """As of `Hazards`; quicker with `Placed`."""
        free = self._free
        if not free:
            raise self._full()
        slot, number = free[-1], self._next
        if type(ranges) is Placed:
            places = ranges.places
            if places.most > self._most:
                self._widen(places.most)
            found = self._append_placed(self._table, slot, number, places.address, places.count, ranges.pointers)
            while found == NO_ROOM:
                self._more_room(places.count)
                found = self._append_placed(self._table, slot, number, places.address, places.count, ranges.pointers)
        else:
            some = [*ranges] if ranges is not None else []
            if len(some) > self._most:
                self._widen(len(some))
            while (found := self._append(self._table, slot, number, some)) == NO_ROOM:
                self._more_room(len(some))
        if found or ranges is None or self._barrier >= 0:
            data, order = found or (set[int](), set[int]())
            if ranges is None:
                data.update(self._entries)
                self._barrier = number
            elif self._barrier >= 0:
                data.add(self._barrier)
            upstream = _upstream(Upstream, (data, order))
        else:
            upstream = _NOTHING
        free.pop()
        self._next = number + 1
        self._entries[number] = slot
        return number, upstream

    def touching(self, ranges: Iterable[Range]) -> set[int]:
        """As of `Hazards`."""
        ranges = [*ranges]
        if len(ranges) > self._most:
            self._widen(len(ranges))
        found = self._code["touching"](self._table, self.size, ranges)
        return found | {self._barrier} if self._barrier >= 0 else found

    def last_written(self, number: int) -> list[tuple[int, int]]:
        """As of `Hazards`."""
        count = self._code["last_written"](self._table, self._entries[number])
        out = self._arrays["out"][: 2 * count]
        return list(zip(out[::2], out[1::2], strict=True))

    def retire(self, number: int) -> None:
        """As of `Hazards`."""
        slot = self._take(number)
        self._retire(self._table, slot)
        self._free.append(slot)

    def _more_room(self, count: int) -> None:
        """Drop pieces, and if most of them are in use, make room for more."""
        left, capacity = self._code["purge"](self._table), self._get("capacity")
        if 2 * left + 3 * count > capacity // 2:
            self._make_room(max(2 * capacity, 2 * (2 * left + 3 * count)))

    def _make_room(self, capacity: int) -> None:
        """Make the arrays of pieces, of so many; those that are there keep their numbers."""
        before = self._get("capacity")
        for name in ("starts", "order", "begins", "ends", "writers"):
            self._make(name, capacity)
        self._make("readers", capacity * self._words)
        self._make("free", capacity)
        free = self._get("free_count")
        added = capacity - before
        self._arrays["free"][free : free + added] = [*range(before, capacity)]
        self._set("free_count", free + added)
        self._set("capacity", capacity)
        bits = (2 * capacity - 1).bit_length()
        self._make("places", 1 << bits, keep=False)
        self._set("mask", (1 << bits) - 1)
        self._set("shift", 64 - bits)
        self._make("out", 2 * max(self.size, capacity), keep=False)
        self._code["rebuild"](self._table)

    def _widen(self, most: int) -> None:
        """Make room for entries with so many ranges, of so many pointers."""
        row, words = self._get("stride"), 3 * most
        ranges = (ctypes.c_int64 * (words * (self.size + 1)))()
        if row:
            start, old = ctypes.addressof(ranges), ctypes.addressof(self._arrays["ranges"])
            for slot in range(self.size + 1):
                ctypes.memmove(start + slot * words * _WORD, old + slot * row * _WORD, row * _WORD)
        self._arrays["ranges"] = ranges
        self._set("ranges", ctypes.addressof(ranges))
        self._set("stride", words)
        self._make("pointers", most, keep=False)
        self._set("most_pointers", most)
        self._most = most

    def _make(self, name: str, words: int, keep: bool = True) -> None:
        """Make an array of words, with what it had before."""
        made = (ctypes.c_int64 * words)()
        if keep and name in self._arrays:
            ctypes.memmove(made, self._arrays[name], ctypes.sizeof(self._arrays[name]))
        self._arrays[name] = made
        self._set(name, ctypes.addressof(made))

    def _set(self, field: str, value: int) -> None:
        self._fields[FIELDS.index(field)] = value

    def _get(self, field: str) -> int:
        return self._fields[FIELDS.index(field)]


def make_hazards(size: int) -> Hazards | CompiledHazards:
    """Compiled hazards, or where this machine's code cannot be compiled, Python's."""
    try:
        return CompiledHazards(size)
    except KitsuneError as error:
        if isinstance(error, ArgumentError):
            raise
        return Hazards(size)
