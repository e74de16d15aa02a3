"""Launches a compiled tile program on a GPU.

Every stream gets a *state* of its own, the workspace (counters and scratch) and the kernel's arguments, and an arena for the
intermediates of all kernels that run there (`runtime/arenas.py`). So calls on different streams run side by side, and calls
on one stream follow each other. A graph capture gets a state of its own too, because its graph may be replayed on any stream.
"""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import struct
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from kitsune_mlir.errors import ArgumentError, KitsuneError, TargetError
from kitsune_mlir.runtime.arenas import Arena, DeviceMemory, arena_of
from kitsune_mlir.runtime.driver import Device, call, capture_id, cleared_apart, driver, load, resident_clusters
from kitsune_mlir.runtime.kernel_frame import KernelFrame
from kitsune_mlir.runtime.launch import Config, library
from kitsune_mlir.runtime.manifest import MAX_BLOCKS, REPORT_BYTES, REPORT_FIELDS, Manifest, parameters_problem
from kitsune_mlir.runtime.tensormap import MAP_BYTES, encode
from kitsune_mlir.runtime.timeline import Timeline

__all__ = ["CudaExecutor"]

KEPT_CAPTURES = 16
"""States of graph captures that are kept; torch keeps their memory for as long as the graph lives in any case."""

KEPT_MAPS = 256
"""Encoded tensor maps kept for one parameter of one state, most recently used last."""


class _Lasting:
    """Device memory, zero at first, for a captured launch, which counts on what its last replay left there.

    From the capture's own memory it would have to be cleared by every replay, which takes one to three microseconds. Who has
    the graph is not known, so nobody gives it back.
    """

    def __init__(self, size: int):
        self.address = cleared_apart(size)

    def release(self) -> None:
        """Leave it to the graphs."""


@dataclasses.dataclass
class _State:
    """What the launches on one stream (or in one capture) share."""

    workspace: DeviceMemory | _Lasting
    arena: Arena
    bound: int  # the arena's address in `values`, and in the tensor maps
    config: Config
    values: ctypes.Array  # the caller's pointers, then those to memory of the state, eight bytes each
    table: ctypes.Array  # addresses of all parameters, what the launch takes
    table_address: int
    capturing: ctypes.c_int  # where the driver writes whether the stream is being captured
    capturing_address: int
    lock: threading.RLock  # the arena's
    pointers: tuple[int, ...]
    maps: list[collections.OrderedDict[int, Any]]  # encoded tensor maps by address, one dict a tensor-map parameter
    gathered: ctypes.Array | None  # all tensor maps, one after the other, where they are one parameter
    requests: Any = None  # of a kernel that takes several: their table (`cuda_requests`)


class CudaExecutor:
    """A compiled tile program, loaded on one device.

    Args:
        manifest: what the compiler says about the kernel.
        cubin: its code.
        device: index of the device.
        before: the executor of the kernel that runs before this one on the same stream and shares its arena, or None.

    Attributes:
        manifest: as given.
        device: the device.
        blocks: size of the grid: as many blocks as can run at a time, and no more than there are tiles, unless the program is
            spatial. Where nothing waits (`Manifest.streaming`), as many as there are tiles.

    Raises:
        TargetError: the device cannot run the kernel.
    """

    def __init__(self, manifest: Manifest, cubin: bytes, device: int = 0, before: CudaExecutor | None = None):
        self.manifest = manifest
        self._before = before
        self.device = Device.open(device)
        self._function = load(self.device, cubin, manifest.kernel, manifest.threads, manifest.shared_bytes)
        resident = self._function.resident * self.device.multiprocessors
        if manifest.cluster > 1:
            with self.device.current():
                clusters = resident_clusters(self._function, manifest.cluster, manifest.threads, manifest.shared_bytes)
            resident = clusters * manifest.cluster
        # The shares of a spatial program are parts of all blocks that there can be.
        useful = resident if manifest.workers else manifest.tiles
        if resident < manifest.least_blocks:
            raise TargetError(
                f"kernel '{manifest.kernel}' needs {manifest.least_blocks} blocks at the same time for {manifest.together}; "
                f"{resident} can run on {self.device.multiprocessors} multiprocessors here"
            )
        self.blocks = manifest.tiles if manifest.streaming else max(1, min(resident, useful, MAX_BLOCKS))
        self._launch, self._is_capturing = library().launch, library().is_capturing
        self._handle = int(self._function.handle)
        self._pointer_count = len(manifest.input_bytes) + len(manifest.result_bytes)
        self._write = struct.Struct(f"{self._pointer_count}Q").pack_into
        if problem := parameters_problem(manifest):
            raise KitsuneError(f"kernel '{manifest.kernel}': {problem}")
        self._maps = [parameter for parameter in manifest.parameters if parameter.kind == "tensor_map"]
        pointers = manifest.parameters[: len(manifest.parameters) - len(self._maps)]
        # Of the pointers to memory of its own; those that the caller gives lie before them in `_State.values`.
        self._own = [parameter for parameter in pointers if parameter.kind in ("arena", "workspace")]
        own = iter(range(self._pointer_count, self._pointer_count + len(self._own)))
        first = {"input": 0, "result": len(manifest.input_bytes)}
        self._slots = [first[p.kind] + p.index if p.kind in first else next(own) for p in pointers]
        self._mapped: dict[int, list[int]] = {}  # by number of a pointer: the tensor maps of its memory
        for number, parameter in enumerate(self._maps):
            if parameter.of != "arena":
                first = 0 if parameter.of == "input" else len(manifest.input_bytes)
                self._mapped.setdefault(first + parameter.index, []).append(number)
        self._states: dict[int, _State] = {}
        self._captures: collections.OrderedDict[tuple[int, int], _State] = collections.OrderedDict()
        self._lock = threading.Lock()

    def run(self, pointers: Sequence[int], stream: int = 0) -> None:
        """Launch on a stream, without waiting for anything.

        The first call on a stream takes memory; later ones allocate nothing. Works while the stream is being captured.

        Args:
            pointers: addresses of the inputs, then of the results, in device memory.
            stream: handle of the stream (0: the legacy default stream).

        Raises:
            ArgumentError: the number of pointers is wrong, or one that is read by TMA is not aligned to 16 bytes.
            KitsuneError: the driver rejects the launch.
        """
        self.run_with(tuple(pointers), self.calm_state(stream), stream)

    def run_with(self, pointers: tuple[int, ...], state: _State | None, stream: int) -> None:
        """As `run`, with what `calm_state` has said of the stream."""
        if len(pointers) != self._pointer_count:
            raise self._miscounted(pointers)
        state = self._stated(stream) if state is None else state
        with state.lock:
            if pointers is not state.pointers and pointers != state.pointers:
                self._fill(state, pointers)
            if state.bound != state.arena.address:  # another program has needed a larger one
                self._bind(state)
            if self._launch(state.config.address, self._handle, state.table_address, None):
                self._launch_again(state)

    def _miscounted(self, pointers: Sequence[int]) -> ArgumentError:
        kernel, wanted = self.manifest.kernel, self._pointer_count
        return ArgumentError(f"kernel '{kernel}' takes {wanted} pointers (inputs, then results), got {len(pointers)}")

    def calm_state(self, stream: int) -> _State | None:
        """The state of a launch on a stream; None where there is none yet, or a graph is being captured."""
        state = self._states.get(stream)
        if state is None or self._is_capturing(stream, state.capturing_address) or state.capturing.value:
            return None
        return state

    def kept_state(self, stream: int) -> _State | None:
        """As `calm_state`, of a stream that is known not to be captured."""
        return self._states.get(stream)

    def frames(self, stream: int) -> list[KernelFrame] | None:
        """Arguments of launches on a stream apart from other calls'; None where nothing ran there or it is captured."""
        state = self.calm_state(stream)
        if state is None:
            return None
        with state.lock:
            maps = state.table[1] if self.manifest.arrays else list(state.table[len(self._slots) :])
            return [KernelFrame(state, self._handle, self._slots, self._maps, self._mapped, maps)]

    def _stated(self, stream: int) -> _State:
        with self.device.current():
            return self._state(stream)

    def _launch_again(self, state: _State) -> None:
        """What a launch needs is looked at when one fails: this thread may have no context yet, or another device's."""
        with self.device.current():
            status = self._launch(state.config.address, self._handle, state.table_address, None)
        if status:
            name = driver().CUresult(status).name
            raise KitsuneError(f"launching kernel '{self.manifest.kernel}' with {self.blocks} blocks failed: {name}")

    def check(self, stream: int = 0) -> None:
        """Wait for a stream; in a debug build, raise if a wait on it gave up.

        Raises:
            KitsuneError: a wait was not satisfied; the message names block and stage, what it waits for, and both
                counts. Or an error of the device.
        """
        report = np.zeros((1 + self.blocks, REPORT_BYTES // 4), dtype=np.uint32)
        with self.device.current():
            call("cuStreamSynchronize", stream)
            state = self._states.get(stream)
            if not self.manifest.debug or state is None:
                return
            address = state.workspace.address + self.manifest.debug_offset
            call("cuMemcpyDtoH", report.ctypes.data, address, report.nbytes)
            if report[0, 0]:
                call("cuMemsetD8", address, 0, report.nbytes)
        waiting = [(*row[1 : len(REPORT_FIELDS)], block) for block, row in enumerate(report[1:].tolist()) if row[0]]
        if waiting:
            # Later stages hang on earlier ones: the first in the program's order is where it began.
            task, slot, seen, wanted, block = min(waiting)
            stage, engine, tiles = self.manifest.tasks[task]
            raise KitsuneError(
                f"kernel '{self.manifest.kernel}': block {block} of {self.blocks}, in stage '{stage}' ({engine}, {tiles} "
                f"tiles), waits for {self.manifest.counters[slot]}: {seen} posts seen of {wanted} needed at counter {slot} "
                f"({len(waiting)} blocks were waiting)"
            )

    def arena(self, stream: int) -> Arena:
        """The arena of the launches on a stream (of its capture, if it is being captured)."""
        with self.device.current():
            return self._state(stream).arena

    def timeline(self, stream: int = 0) -> Timeline:
        """When each block began and ended each task of the last run on a stream. Waits for the stream."""
        raw = self.times(stream)
        return Timeline(self.manifest.tasks, (raw - raw.min()).astype(np.float64) / 1e3, self.waits(stream) / 1e3)

    def times(self, stream: int = 0) -> np.ndarray:
        """Nanoseconds of the device's clock at which each block began and ended each task, [blocks, tasks, 2].

        Raises:
            KitsuneError: the program was not compiled with timestamps, or has not run on this stream.
        """
        state = self._states.get(stream)
        if not self.manifest.timestamps or state is None:
            raise KitsuneError(
                f"kernel '{self.manifest.kernel}' has no times: compile with options(timestamps=True) and run it on this stream"
            )
        raw = np.zeros((self.blocks, len(self.manifest.tasks), 2), dtype=np.uint64)
        with self.device.current():
            call("cuStreamSynchronize", stream)
            address = state.workspace.address + self.manifest.timestamps_offset(self.blocks)
            call("cuMemcpyDtoH", raw.ctypes.data, address, raw.nbytes)
        return raw

    def waits(self, stream: int = 0) -> np.ndarray:
        """Nanoseconds that each block spent in the waits of each task of the last run, [blocks, tasks]; raises as `times`."""
        self.times(stream)
        raw = np.zeros((self.blocks, len(self.manifest.tasks), 2), dtype=np.uint64)
        if self.manifest.slots:
            parity = np.zeros(1, dtype=np.uint32)
            workspace = self._states[stream].workspace.address
            with self.device.current():
                call("cuMemcpyDtoH", parity.ctypes.data, workspace, parity.nbytes)
                call("cuMemcpyDtoH", raw.ctypes.data, workspace + self.manifest.waits_offset(self.blocks), raw.nbytes)
            raw = raw[:, :, ::-1] if parity[0] == 0 else raw  # the word says which counters the next run uses
        return raw[:, :, 0].astype(np.float64)

    def close(self) -> None:
        """Give the memory of all streams back. No launch may be under way."""
        with self._lock:
            for state in [*self._states.values(), *self._captures.values()]:
                state.workspace.release()
                state.arena.leave()
            self._states.clear()
            self._captures.clear()

    def _state(self, stream: int) -> _State:
        capture = capture_id(stream)
        if capture is None:
            state = self._states.get(stream)
            if state is None:
                with self._lock:
                    state = self._states.get(stream)
                    if state is None:
                        state = self._states[stream] = self._new_state(stream, None)
            return state
        with self._lock:
            state = self._captures.get((capture, stream))
            if state is None:
                state = self._captures[capture, stream] = self._new_state(stream, capture)
                while len(self._captures) > KEPT_CAPTURES:
                    self._captures.popitem(last=False)[1].arena.leave()
            return state

    def _new_state(self, stream: int, capture: int | None) -> _State:
        """Memory for a stream. Its clearing is ordered on the stream; in a capture of a debug build it is part of the graph."""
        manifest, capturing = self.manifest, capture is not None
        if capturing and ("torch" not in sys.modules or not sys.modules["torch"].cuda.is_available()):
            raise TargetError("a graph capture needs torch's allocator: import torch before capturing")
        size, cleared = manifest.workspace_bytes(self.blocks), manifest.cleared_bytes
        # A debug build's run that hung leaves counts behind: there every replay begins with zeros.
        lasting = capturing and cleared > 0 and not manifest.debug
        workspace = _Lasting(size) if lasting else DeviceMemory(size, self.device, stream)
        arena = self._before.arena(stream) if self._before else self._new_arena(stream, capture)
        arena.enter(manifest.requests * manifest.arena_stride)
        cleared = size if manifest.timestamps and manifest.slots else cleared
        if cleared and not lasting:
            call("cuMemsetD8Async", workspace.address, 0, cleared, stream)
        own = [0 if p.kind == "arena" else workspace.address + p.offset for p in self._own]
        values = (ctypes.c_uint64 * (self._pointer_count + len(own)))(*(0,) * self._pointer_count, *own)
        first = ctypes.addressof(values)
        gathered = (ctypes.c_uint8 * (MAP_BYTES * max(1, len(self._maps))))() if manifest.arrays else None
        if gathered is not None:
            table = (ctypes.c_uint64 * 2)(first, ctypes.addressof(gathered))
        else:
            table = (ctypes.c_uint64 * len(manifest.parameters))(*(first + 8 * slot for slot in self._slots))
        # Blocks that wait for each other run at the same time.
        sizes = (self.blocks, manifest.threads, manifest.shared_bytes)
        config = Config(*sizes, stream, cooperative=manifest.slots > 0, follows=manifest.follows)
        flag = ctypes.c_int()
        maps = [collections.OrderedDict() for _ in self._maps]
        state = _State(
            *(workspace, arena, 0, config, values, table, ctypes.addressof(table), flag, ctypes.addressof(flag)),
            *(arena.lock, (-1,) * self._pointer_count, maps, gathered),
        )
        with arena.lock:
            self._bind(state)
        return state

    def _new_arena(self, stream: int, capture: int | None) -> Arena:
        """That of the stream; one of its own where there is nothing in it, or tables hold its address (`cuda_requests`)."""
        shared = self.manifest.arena_stride and self.manifest.requests == 1
        return arena_of(self.device, stream, capture) if shared else Arena(self.device, stream)

    def _bind(self, state: _State) -> None:
        """Write where the arena is into the table of arguments; its lock is held."""
        state.bound = start = state.arena.address
        for number, parameter in enumerate(self._own):
            if parameter.kind == "arena":
                state.values[self._pointer_count + number] = start + parameter.offset
        for number, parameter in enumerate(self._maps):
            if parameter.of == "arena":
                self._set_map(state, number, start)

    def _fill(self, state: _State, pointers: tuple[int, ...]) -> None:
        """Write the pointers, and the tensor maps that depend on those that changed, into the table of arguments."""
        before, state.pointers = state.pointers, (-1,) * self._pointer_count
        self._write(state.values, 0, *pointers)
        for place, numbers in self._mapped.items():
            if pointers[place] != before[place]:
                for number in numbers:
                    self._set_map(state, number, pointers[place])
        state.pointers = pointers

    def _set_map(self, state: _State, number: int, start: int) -> None:
        """Point the table to tensor map `number` of memory that begins at `start`."""
        parameter, known = self._maps[number], state.maps[number]
        address = start + parameter.offset
        encoded = known.get(address)
        if encoded is None:
            encoded = known[address] = encode(parameter.map or {}, address)
            while len(known) > KEPT_MAPS:
                known.popitem(last=False)
        else:
            known.move_to_end(address)
        if self.manifest.arrays:
            ctypes.memmove(state.table[1] + number * MAP_BYTES, int(encoded.getPtr()), MAP_BYTES)
        else:
            state.table[len(self._slots) + number] = int(encoded.getPtr())
