"""Calls of a program on a GPU by compiled code: checks, new results and all launches are one function (`call_code`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.arenas import Arena
from kitsune_mlir.runtime.call_code import CAPTURED, FAILED, FIELDS, MOVED, NO_POINTER, call_module
from kitsune_mlir.runtime.call_memory import Memory
from kitsune_mlir.runtime.copy_kernel import Copies
from kitsune_mlir.runtime.driver import driver
from kitsune_mlir.runtime.host_code import linked
from kitsune_mlir.runtime.kernel_frame import KernelFrame
from kitsune_mlir.runtime.launch import library
from kitsune_mlir.runtime.python_calls import builtin_methods

__all__ = ["CompiledCall", "Cut", "Made"]

Made = tuple[Sequence[int], Sequence[int], Any]
"""Size, strides and type of a result as the program writes it."""
Cut = tuple[Sequence[int], Sequence[int]]
"""Size and strides that a caller wants of it."""

MOST_MISFITS = 64
"""Calls that could not be made, from which on it is not worth to try."""


@functools.cache
def _compiled() -> Callable[[object], Callable[[Any], Any]] | None:
    """What makes a function of a table's address; None where it cannot be had."""
    address = linked("calls", call_module, "call_make")
    return None if address is None else builtin_methods("call_make", address)


class CompiledCall:
    """Calls on one stream with tensors like those of an earlier call.

    Args:
        frames: the kernels.
        arena: the stream's.
        stream: its handle.
        check: says whether tensors are like those.
        tensors: how many.
        constants: pointers that the kernels take first.
        copies: made first, of the tensors; None where kernels take their pointers, behind the constants.
        made: of each result, whose pointers come last.
        empty: makes a tensor of size, strides and type.
        cut: gives a tensor another size and strides. cuts: for each result what a caller wants; None: as it is made.
        held: what it keeps, beside.
        memory: how constants and tensors lie in memory; without copies.

    Attributes:
        call: of a tuple of tensors, the list of results, None in the place of those that lie where tensors do; None where the
            call could not be made: see `may_fit`.
    """

    def __init__(
        self,
        frames: Sequence[KernelFrame],
        arena: Arena,
        stream: int,
        check: Callable[..., bool],
        tensors: int,
        constants: Sequence[int],
        copies: Copies | None,
        made: Sequence[Made],
        empty: Callable[..., Any],
        cut: Callable[..., Any] | None = None,
        cuts: Sequence[Cut | None] = (),
        held: Any = None,
        memory: Memory = Memory(),  # noqa: B008  (it is frozen)
    ):
        import torch

        compiled = _compiled()
        if compiled is None:
            raise KitsuneError("LLVM gives no code for calls")
        for frame in frames:
            for number, pointer in enumerate(constants):
                frame.set(number, pointer)
        first, spans = len(constants), len(memory.spans)
        pointers = (ctypes.c_uint64 * (spans + 1))(*constants[:spans])
        all_of = first + len(made) + (tensors if copies is None else 0)
        read: list[list[KernelFrame]] = [[] for _ in range(all_of)]  # by pointer, the kernels that read it: few of many
        for frame in frames:
            for number in frame.read(all_of):
                read[number].append(frame)
        places, maps = [], []
        for number in range(tensors + len(made)):
            if number < tensors and copies is not None:
                places.append([copies.place(number)])
                maps.append([])
                continue
            own = first + number - (tensors if copies is not None else 0)
            places.append([frame.place(own) for frame in read[own]])
            if number < tensors and spans:
                places[-1].append(ctypes.addressof(pointers) + 8 * (first + number))
            maps.append([one for frame in read[own] for one in frame.maps(own)])
        launches = [*([copies.launch] if copies is not None else []), *(frame.launch for frame in frames)]
        sizes = [tuple(one) for one in made]
        wanted = [() if one is None else (tuple(one[0]), tuple(one[1])) for one in cuts or [None] * len(made)]
        driver_calls, flag = library(), ctypes.c_uint64()
        self._kept = (maps, frames, arena, check, copies, sizes, wanted, empty, cut, driver_calls, flag, held)
        self._arrays: list[Any] = [pointers]
        acquire, release = arena.lock.acquire, arena.lock.release
        self._methods = acquire, release
        self._misfits = 0
        words = {
            "none": id(None), "true": id(True), "zero": id(0), "check": id(check), "pointer": id(torch.Tensor.data_ptr),
            "acquire": id(acquire), "release": id(release), "arena": ctypes.addressof(arena.place), "bound": arena.address,
            "inputs": tensors, "results": len(made), "empty": id(empty), "sizes": self._array(map(id, sizes)), "cut": id(cut),
            "cuts": self._array(word for one in wanted for word in ((id(one[0]), id(one[1])) if one else (0, 0))),
            "last": self._array([NO_POINTER] * len(places)),
            "place_firsts": self._array(_firsts(places)), "places": self._array(one for each in places for one in each),
            "map_firsts": self._array(_firsts(maps)),
            "maps": self._array(word for each in maps for known, target in each for word in (id(known), target)),
            "launches": len(launches), "launch_words": self._array(word for one in launches for word in one),
            "launch": _address(driver_calls.launch), "capturing": _address(driver_calls.is_capturing), "stream": stream,
            "flag": ctypes.addressof(flag),
            "constants": first, "spans": spans, "pointers": ctypes.addressof(pointers),
            "proven": self._array([NO_POINTER] * spans),
            "begins": self._array(begin for begin, _ in memory.spans), "ends": self._array(end for _, end in memory.spans),
            "written": self._array(n in memory.written for n in range(spans)),
            "owners": self._array(memory.owners.get(n, NO_POINTER) for n in range(len(made))),
            "shifts": self._array(memory.shifts(tensors)), "strided": len(memory.strided),
            "strided_words": self._array(word for one in memory.strided for word in one),
            "offset": id(torch.Tensor.storage_offset), "storage": id(torch.Tensor.untyped_storage),
            "bytes": id(torch.UntypedStorage.nbytes),
        }  # fmt: skip
        self._fields = (ctypes.c_uint64 * len(FIELDS))(*(words.get(name, 0) for name in FIELDS))
        self.call: Callable[[tuple[Any, ...]], list[Any] | None] = compiled(ctypes.addressof(self._fields))

    def _array(self, words: Any) -> int:
        """The address of an array of words, which it keeps."""
        given = [*words]
        self._arrays.append((ctypes.c_uint64 * (len(given) + 1))(*given))
        return ctypes.addressof(self._arrays[-1])

    def may_fit(self) -> bool:
        """After a call that could not be made: whether later ones are to be tried.

        Raises:
            KitsuneError: the driver has launched some of the call's kernels, and rejects another.
        """
        status, which, code = (self._fields[number] for number in (_STATUS, _WHICH, _CODE))
        if status == FAILED and which > 0:
            raise KitsuneError(f"launching kernel {which} of a call failed: {driver().CUresult(code).name}")
        self._misfits += status != CAPTURED
        return status != MOVED and self._misfits < MOST_MISFITS


_STATUS, _WHICH, _CODE = (FIELDS.index(name) for name in ("status", "which", "code"))


def _firsts(each: Sequence[Sequence[Any]]) -> list[int]:
    """Of lists one after the other, where each begins, and where the last one ends."""
    found = [0]
    for one in each:
        found.append(found[-1] + len(one))
    return found


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
