"""A kernel's arguments on a stream, in memory of their own, for code that makes the same call again (`compiled_call`)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kitsune_mlir.runtime.manifest import Parameter
from kitsune_mlir.runtime.tensormap import MAP_BYTES, EncodedMaps

__all__ = ["KernelFrame"]

_WORD = 8


class KernelFrame:
    """What a launch takes, as the last one on a stream took it; the caller's pointers are to be written anew.

    Args:
        state: of the kernel on the stream (`cuda_executor`), which it keeps.
        handle: of the function.
        slots: of each parameter that is a pointer, its place in the state's values, where those of the caller come first.
        maps: the parameters that are tensor maps.
        mapped: by number of a caller's pointer, numbers of the maps of its memory.
        encoded: addresses of the state's maps, or one where all of them lie.

    Attributes:
        launch: addresses of configuration, function and arguments.
        arena: the stream's. bound: where it was when the arguments were written.
    """

    def __init__(
        self,
        state: Any,
        handle: int,
        slots: Sequence[int],
        maps: Sequence[Parameter],
        mapped: Mapping[int, Sequence[int]],
        encoded: Sequence[int] | int,
    ):
        self._state, self._mapped = state, mapped
        self._used = None if isinstance(encoded, int) else frozenset((*slots, *mapped))
        self.arena, self.bound = state.arena, state.bound
        self._known = {n: EncodedMaps(maps[n].map or {}, maps[n].offset) for numbers in mapped.values() for n in numbers}
        self._values = type(state.values)(*state.values)
        first = ctypes.addressof(self._values)
        self._memory = (ctypes.c_uint8 * (MAP_BYTES * (len(maps) + 1)))()
        start = self._first_map = -(-ctypes.addressof(self._memory) // MAP_BYTES) * MAP_BYTES
        if isinstance(encoded, int):
            ctypes.memmove(start, encoded, MAP_BYTES * len(maps))
            words = [first, start]
        else:
            for number, address in enumerate(encoded):
                ctypes.memmove(start + number * MAP_BYTES, address, MAP_BYTES)
            words = [*(first + _WORD * slot for slot in slots), *(start + n * MAP_BYTES for n in range(len(maps)))]
        self._table = (ctypes.c_uint64 * len(words))(*words)
        self.launch = state.config.address, handle, ctypes.addressof(self._table)

    def place(self, number: int) -> int:
        """The address of the word that holds a pointer of the caller's."""
        return ctypes.addressof(self._values) + _WORD * number

    def read(self, count: int) -> Iterable[int]:
        """The numbers below `count` of the caller's pointers that the kernel reads, or has maps of."""
        return range(count) if self._used is None else [n for n in self._used if n < count]

    def maps(self, number: int) -> list[tuple[EncodedMaps, int]]:
        """What encodes each map of a pointer's memory, and the address where it is to be."""
        return [(self._known[n], self._first_map + n * MAP_BYTES) for n in self._mapped.get(number, ())]

    def set(self, number: int, pointer: int) -> None:
        """Write a pointer of the caller's."""
        ctypes.c_uint64.from_address(self.place(number)).value = pointer
        for known, target in self.maps(number):
            ctypes.memmove(target, known[pointer], MAP_BYTES)
