"""Tables of requests that compiled code fills from calls: no step of Python is taken for a request.

To check a call's tensors and ask for their pointers, and to write its row and tensor maps, takes Python 4 to 6 us, and NumPy,
all calls at once, 1 to 2. Code of LLVM's (`table_code`) makes the same calls of PyTorch's, and writes what they give where the
table is.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kitsune_mlir.runtime.host_code import linked
from kitsune_mlir.runtime.python_calls import builtin_function
from kitsune_mlir.runtime.table_code import DONE, FIELDS, MISFIT, table_module

__all__ = ["CallTable", "Calls"]


@dataclasses.dataclass(frozen=True)
class Calls:
    """So many of a list of calls, from the first one on.

    Attributes:
        models: the number of each program by its name.
        check: says whether tensors fit (`tensor_guards.guard_of`).
        given: each a program's name and a tuple of tensors.
    """

    models: dict[str, int]
    check: Callable[..., bool]
    given: list[Any]
    first: int
    count: int


@functools.cache
def _fill() -> Callable[..., Any] | None:
    """The function; None where it cannot be compiled or loaded."""
    address = linked("tables", table_module, "tables_fill")
    return None if address is None else builtin_function("tables_fill", address)


class CallTable:
    """Of one kernel, its memory on one stream, and programs with weights of their own.

    Attributes:
        most: calls of a table.

    Args:
        models: the number of each program by its name.
        pointers: of each program's weights, [programs, weights].
        inputs, results: how many.
        arenas: of each request, as many as a table has at most.
        weight_maps: tensor maps of each program, [programs, maps x words]; those of others are overwritten.
        arena_maps: by place among a request's maps, those of each request, [requests, words].
        keyed_maps: place, number of the input (results after them), and what has the map of a pointer in bytes.
    """

    def __init__(
        self,
        models: dict[str, int],
        pointers: np.ndarray,
        inputs: int,
        results: int,
        arenas: np.ndarray,
        weight_maps: np.ndarray,
        arena_maps: Mapping[int, np.ndarray],
        keyed_maps: Sequence[tuple[int, int, dict[int, bytes]]],
    ):
        import torch

        self._fill = _fill()
        self._maps = {place: known for place, _, known in keyed_maps}
        self._pointers, self._weight_maps = np.ascontiguousarray(pointers), np.ascontiguousarray(weight_maps)
        self._arena_maps = {place: np.ascontiguousarray(maps) for place, maps in arena_maps.items()}
        own = [word for place, maps in self._arena_maps.items() for word in (place, maps.ctypes.data)]
        keyed = [word for place, number, known in keyed_maps for word in (place, number, id(known))]
        self._arrays = np.array([*own, 0], np.int64), np.array([*keyed, 0], np.int64)
        self.most = len(arenas)
        self._numbers, self._firsts = np.zeros(len(arenas), np.int64), (ctypes.c_int64 * (2 * results + 1))()
        self._kept, self._check = (models, torch.Tensor.data_ptr), None
        self._fields = (ctypes.c_int64 * len(FIELDS))()
        self._table = ctypes.addressof(self._fields)
        words, step = pointers.shape[1] + inputs + results + 1, int(arenas[-1] - arenas[0]) // max(1, len(arenas) - 1)
        for name, value in {
            "models": id(models), "pointer": id(torch.Tensor.data_ptr), "true": id(True), "inputs": inputs, "results": results,
            "weights": pointers.shape[1], "weight_rows": self._pointers.ctypes.data, "row_words": words,
            "firsts": ctypes.addressof(self._firsts), "numbers": self._numbers.ctypes.data,
            "arena": int(arenas[0]), "arena_step": step,
            "map_words": weight_maps.shape[1], "weight_maps": self._weight_maps.ctypes.data,
            "arena_maps": self._arrays[0].ctypes.data, "arena_map_count": len(arena_maps),
            "keyed_maps": self._arrays[1].ctypes.data, "keyed_map_count": len(keyed_maps),
        }.items():  # fmt: skip
            self._fields[FIELDS.index(name)] = value

    def fill(self, rows: int, maps: int, calls: Calls, results: Sequence[tuple[int, int]]) -> np.ndarray | None:
        """Fill the rows and maps at these addresses; the numbers of the calls' programs, or None where one does not fit.

        Args:
            results: for each where the first request's lies, and bytes to the next one's.
        """
        if self._fill is None:
            return None
        fields = self._fields
        if calls.check is not self._check:
            self._check, fields[_CHECK] = calls.check, id(calls.check)
        fields[_ROWS], fields[_MAPS] = rows, maps
        for place, span in enumerate(results):
            self._firsts[2 * place : 2 * place + 2] = span
        for _ in range(calls.count * len(self._maps) + 1):
            status = self._fill(self._table, calls.given, calls.first, calls.count)
            if status == DONE:
                return self._numbers[: calls.count].copy()
            if status == MISFIT:
                return None
            self._maps[fields[_UNKNOWN_PLACE]][fields[_UNKNOWN_POINTER]]  # is made, and known from now on
        return None


_CHECK, _ROWS, _MAPS, _UNKNOWN_PLACE, _UNKNOWN_POINTER = (
    FIELDS.index(name) for name in ("check", "rows", "maps", "unknown_place", "unknown_pointer")
)
