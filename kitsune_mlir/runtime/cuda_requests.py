"""Launches a kernel that does several requests at once (`codegen/gpu/kernel/requests.py`)."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import functools
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.arenas import DeviceMemory
from kitsune_mlir.runtime.call_table import Calls, CallTable
from kitsune_mlir.runtime.cuda_executor import CudaExecutor
from kitsune_mlir.runtime.cuda_sequence import CudaSequence
from kitsune_mlir.runtime.driver import Device, call, capture_id, written_apart
from kitsune_mlir.runtime.launch import library
from kitsune_mlir.runtime.manifest import REQUEST_HEADER
from kitsune_mlir.runtime.runner import WeightTable
from kitsune_mlir.runtime.tensormap import MAP_BYTES, EncodedMaps
from kitsune_mlir.runtime.timeline import Timeline

__all__ = ["CudaRequestKernels", "CudaRequests"]

PARTS = 4
"""Tables that may wait for their copy to the device, before a launch waits for the first."""

_WORD = 8
_MAP_WORDS = MAP_BYTES // _WORD
_HEADER = struct.Struct("3Q")
_UNTIMED = 2  # CU_EVENT_DISABLE_TIMING


@dataclasses.dataclass
class _Table:
    """The table of requests of one stream, or of launches in a capture, in device memory.

    Attributes:
        parameter, parameters: its address, and the address of that, as a launch takes it.
        rows: what it holds; empty where nobody will ask for the same again.
        kept: the memory, on the device and on the host; None where graphs have it.
        parts: page-locked memory of the host, each with its address and an event that is over when it has been copied; what is
            written next is written into the first, and then it is the last.
    """

    parameter: ctypes.c_uint64
    parameters: ctypes.Array
    rows: Sequence[Sequence[int]] = ()
    kept: Any = None
    parts: collections.deque[tuple[memoryview, int, int]] = dataclasses.field(default_factory=collections.deque)

    @staticmethod
    def at(address: int) -> _Table:
        """A table at an address."""
        parameter = ctypes.c_uint64(address)
        return _Table(parameter, (ctypes.c_uint64 * 1)(ctypes.addressof(parameter)))

    @staticmethod
    def new(size: int, device: Device, stream: int) -> _Table:
        """A table of so many bytes in memory of its own, for launches on a stream."""
        import torch

        own = DeviceMemory(size, device, stream)
        host = torch.empty(PARTS * size, dtype=torch.uint8, pin_memory=True)
        table = _Table.at(own.address)
        table.kept, written, start = (own, host), host.numpy(), host.data_ptr()
        for first in range(0, PARTS * size, size):
            table.parts.append((written[first : first + size].data, start + first, int(call("cuEventCreate", _UNTIMED))))
        return table


class CudaRequests(CudaExecutor):
    """A kernel whose launch takes up to `manifest.requests` requests; arguments, attributes and errors of `CudaExecutor`.

    The table goes to the device by a copy on the stream, and only where it differs from the last one. In a capture it goes
    there at once, apart from the graph, whose every replay would else copy it (a third of the time of small programs): each
    table that a graph's launches need has memory of its own, and as nobody knows who has the graph, it stays.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._encoded = [EncodedMaps(parameter.map or {}, parameter.offset) for parameter in self._maps]
        first = {"input": 0, "result": len(self.manifest.input_bytes)}
        self._map_of = [None if one.of == "arena" else first[one.of] + one.index for one in self._maps]  # which pointer's
        self._gathered, self._library = self._gatherer(), library()
        count = len(self._maps)
        self._row_bytes = _WORD * (self._pointer_count + 1)
        self._size = REQUEST_HEADER + self.manifest.requests * (self._row_bytes + count * MAP_BYTES) + MAP_BYTES

    def run(self, pointers: Sequence[int], stream: int = 0) -> None:
        """As of `CudaExecutor`: a launch of one request."""
        self.run_requests([pointers], stream)

    def run_requests(self, rows: Sequence[Sequence[int]], stream: int = 0) -> None:
        """Launch for several requests, with pointers as of `run` for each, without waiting for anything.

        Raises:
            ArgumentError: there are too many; or as of `CudaExecutor.run`.
            KitsuneError: the driver rejects the launch.
        """
        self._check_count(len(rows))
        for pointers in rows:
            if len(pointers) != self._pointer_count:
                raise self._miscounted(pointers)
        if not rows:
            return
        calm = self.calm_state(stream)
        state = calm or self._stated(stream)
        with state.lock:
            if state.requests is None or list(rows) != state.requests.rows:
                write = functools.partial(self._write_table, state=state, rows=rows)
                self._set_table(state, write, len(rows), stream, calm is None).rows = list(rows)
            if self._launch(state.config.address, self._handle, state.table_address, None):
                self._launch_again(state)

    def run_calls(
        self, weights: WeightTable, calls: Calls, results: Sequence[tuple[int, int]], stream: int = 0
    ) -> np.ndarray | None:
        """As `run_requests`, of calls that compiled code reads; the numbers of their programs in a table of weights, or None
        where nothing was launched: one does not fit as it is, or the stream is captured, or has no memory yet.

        Args:
            results: for each where the first request's lies, and bytes to the next one's.
        """
        self._check_count(calls.count)
        state = self.calm_state(stream)
        if state is None:
            return None
        found: np.ndarray | None = None

        def write(table: memoryview, address: int) -> bool:
            nonlocal found
            maps_at, source = self._maps_at(calls.count), state.requests.parts[0][1]
            _HEADER.pack_into(table, 0, calls.count, state.workspace.address, address + maps_at)
            filler = self._call_table(weights, calls, state)
            found = filler.fill(source + REQUEST_HEADER, source + maps_at, calls, results)
            return found is not None

        with state.lock:
            self._set_table(state, write, calls.count, stream, False)
            if found is not None and self._launch(state.config.address, self._handle, state.table_address, None):
                self._launch_again(state)
        return found

    def _call_table(self, weights: WeightTable, calls: Calls, state: Any) -> CallTable:
        """What fills tables of launches in a state from calls of the programs in a table of weights."""
        known = weights.kept.get((self, "calls"))
        if known is None or known[0] is not state:
            own = self._arenas(state, self.manifest.requests)
            arenas = {n: self._maps_of(n, own) for n, place in enumerate(self._map_of) if place is None}
            given = weights.pointers.shape[1]
            keyed = [
                (n, place - given, self._encoded[n])
                for n, place in enumerate(self._map_of)
                if place is not None and place >= given
            ]
            inputs, results = len(self.manifest.input_bytes) - given, len(self.manifest.result_bytes)
            table = CallTable(calls.models, weights.pointers, inputs, results, own, self._weight_maps(weights), arenas, keyed)
            known = weights.kept[self, "calls"] = state, table
        return known[1]

    def _check_count(self, count: int) -> None:
        if count > self.manifest.requests:
            kernel, most = self.manifest.kernel, self.manifest.requests
            raise ArgumentError(f"kernel '{kernel}' takes at most {most} requests in a launch, got {count}")

    def _maps_at(self, count: int) -> int:
        """Where in a table of so many requests their tensor maps begin."""
        return -(-(REQUEST_HEADER + count * self._row_bytes) // MAP_BYTES) * MAP_BYTES

    def _set_table(
        self, state: Any, write: Callable[[memoryview, int], bool], count: int, stream: int, captured: bool
    ) -> _Table:
        """Let the state's table, of so many requests, be what is written, and give it; `captured`: the stream may be.

        Args:
            write: fills the bytes of a table that will be at an address; whether it has, else nothing is copied.
        """
        size = self._maps_at(count) + count * len(self._maps) * MAP_BYTES
        if captured:
            with self.device.current():
                if capture_id(stream) is not None:

                    def data(address: int) -> np.ndarray:
                        table = np.zeros(size, np.uint8)
                        write(table.data, address)
                        return table

                    state.requests = _Table.at(written_apart(size, data))
                    state.table_address = ctypes.addressof(state.requests.parameters)
                    return state.requests
        if state.requests is None:
            with self.device.current():
                state.requests = _Table.new(self._size, self.device, stream)
        table, library = state.requests, self._library
        state.table_address = ctypes.addressof(table.parameters)
        table.rows = ()
        host, source, copied = table.parts[0]
        if library.ready(copied) and library.passed(copied):
            self._again("cuEventSynchronize", copied)
        if not write(host[:size], table.parameter.value):
            return table
        if library.copy(table.parameter.value, source, size, stream):
            self._again("cuMemcpyHtoDAsync", table.parameter.value, source, size, stream)
        if library.record(copied, stream):
            self._again("cuEventRecord", copied, stream)
        table.parts.rotate(-1)
        return table

    def _again(self, name: str, *arguments: Any) -> None:
        """What a call needs is looked at when one fails, as of a launch (`_launch_again`)."""
        with self.device.current():
            call(name, *arguments)

    def _arenas(self, state: Any, count: int) -> np.ndarray:
        """The arena of each of so many requests."""
        arena, stride = state.arena.address, self.manifest.arena_stride
        return np.arange(arena, arena + count * stride, stride, dtype=np.uint64) if stride else np.full(count, arena, np.uint64)

    def _write_table(self, table: memoryview, address: int, state: Any, rows: Sequence[Sequence[int]]) -> bool:
        """Fill the bytes of a table that will be at an address."""
        maps_at, own = self._maps_at(len(rows)), self._arenas(state, len(rows)).tolist()
        _HEADER.pack_into(table, 0, len(rows), state.workspace.address, address + maps_at)
        words = itertools.chain.from_iterable(itertools.chain.from_iterable(zip(rows, zip(own), strict=True)))
        struct.pack_into(f"{len(rows) * (self._pointer_count + 1)}Q", table, REQUEST_HEADER, *words)
        if self._maps:
            table[maps_at:] = b"".join(self._gathered(rows, own))
        return True

    def _gatherer(self) -> Callable[[Sequence[Sequence[int]], Sequence[int]], list[bytes]]:
        """What gives the tensor maps of rows with these arenas, request by request; a word of code for each of a kernel's."""
        known = {f"m{n}": maps for n, maps in enumerate(self._encoded)}
        starts = ["arena" if place is None else f"row[{place}]" for place in self._map_of]
        words = "".join(f"{name}[{start}], " for name, start in zip(known, starts, strict=True))
        return eval(f"lambda rows, own: [it for row, arena in zip(rows, own) for it in ({words})]", dict(known))

    def _maps_of(self, number: int, starts: np.ndarray) -> np.ndarray:
        """A kernel's tensor map `number` of memory that begins at each of these addresses, [addresses, words]."""
        return np.frombuffer(b"".join(map(self._encoded[number].__getitem__, starts.tolist())), np.uint64).reshape(
            -1, _MAP_WORDS
        )

    def _weight_maps(self, weights: WeightTable) -> np.ndarray:
        """The tensor maps of each program of a table, [programs, words of a request's maps]; 0 for those of no weights."""
        made = weights.kept.get(self)
        if made is None:
            count, given = weights.pointers.shape
            made = np.zeros((count, len(self._maps) * _MAP_WORDS), np.uint64)
            for number, place in enumerate(self._map_of):
                if place is not None and place < given:
                    made[:, number * _MAP_WORDS : (number + 1) * _MAP_WORDS] = self._maps_of(number, weights.pointers[:, place])
            weights.kept[self] = made
        return made


class CudaRequestKernels(CudaSequence):
    """Kernels of a program that takes several requests: each launch is one's, which is for as many requests as there are.

    They share the arena of a stream.
    """

    kind = CudaRequests

    def run(self, pointers: Sequence[int], stream: int = 0) -> None:
        """As of `CudaExecutor`: a launch of one request."""
        self.run_requests([pointers], stream)

    def run_requests(self, rows: Sequence[Sequence[int]], stream: int = 0) -> None:
        """As of `CudaRequests`."""
        with self._lock:  # kernels that share an arena must not alternate
            self._chosen(len(rows)).run_requests(rows, stream)

    def run_calls(
        self, weights: WeightTable, calls: Calls, results: Sequence[tuple[int, int]], stream: int = 0
    ) -> np.ndarray | None:
        """As of `CudaRequests`."""
        with self._lock:
            return self._chosen(calls.count).run_calls(weights, calls, results, stream)

    def _chosen(self, count: int) -> CudaRequests:
        """The kernel for so many requests."""
        chosen = max((one for one in self.executors if one.manifest.least_requests <= max(1, count)), key=_least)
        assert isinstance(chosen, CudaRequests)
        return chosen

    def timeline(self, stream: int = 0) -> Timeline:
        """Of the kernel for one request; as of `CudaExecutor`."""
        return self.executors[0].timeline(stream)


def _least(executor: CudaExecutor) -> int:
    return executor.manifest.least_requests
