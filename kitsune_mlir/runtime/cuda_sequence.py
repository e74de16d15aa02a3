"""Launches the kernels of a `separate` program one after the other: together they are what one `CudaExecutor` is."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from kitsune_mlir.runtime.cuda_executor import CudaExecutor
from kitsune_mlir.runtime.kernel_frame import KernelFrame
from kitsune_mlir.runtime.manifest import Manifest
from kitsune_mlir.runtime.timeline import Timeline

__all__ = ["CudaSequence"]


class CudaSequence:
    """The kernels of a program, loaded on one device. They share the arena of a stream, so two calls on it must not alternate;
    each has its own workspace.

    Args:
        kernels: manifest and code of each, in the order of the launches.
        device: index of the device.

    Attributes:
        executors: one a kernel.

    Raises:
        TargetError: the device cannot run a kernel.
    """

    kind: type[CudaExecutor] = CudaExecutor

    def __init__(self, kernels: Sequence[tuple[Manifest, bytes]], device: int = 0):
        self.executors: list[CudaExecutor] = []
        for manifest, cubin in kernels:
            first = self.executors[0] if self.executors else None
            self.executors.append(self.kind(manifest, cubin, device, first))
        self._lock = threading.Lock()
        self._pointers: dict[int, tuple[int, ...]] = {}  # of the last call on each stream

    def run(self, pointers: Sequence[int], stream: int = 0) -> None:
        """Launch all kernels on a stream, without waiting; arguments and errors as of `CudaExecutor.run`."""
        wanted = tuple(pointers)
        with self._lock:
            # The same object as in the last call, if it is equal: so that each kernel need not compare all pointers.
            kept = self._pointers.get(stream)
            if kept is None or kept != wanted:
                self._pointers[stream] = kept = wanted
            first, *others = self.executors
            state = first.calm_state(stream)
            with state.lock if state is not None else first.arena(stream).lock:  # what another program puts there comes later
                first.run_with(kept, state, stream)
                for executor in others:
                    executor.run_with(kept, None if state is None else executor.kept_state(stream), stream)

    def frames(self, stream: int) -> list[KernelFrame] | None:
        """As of `CudaExecutor`, of all kernels."""
        each = [executor.frames(stream) for executor in self.executors]
        return None if None in each else [frame for frames in each for frame in frames or ()]

    def check(self, stream: int = 0) -> None:
        """Wait for a stream; errors as of `CudaExecutor.check`."""
        for executor in self.executors:
            executor.check(stream)

    def timeline(self, stream: int = 0) -> Timeline:
        """All kernels' times as one timeline; a block that a smaller kernel does not have passes its tasks in no time.

        Raises:
            KitsuneError: the program was not compiled with timestamps, or has not run on this stream.
        """
        each = [executor.times(stream) for executor in self.executors]
        blocks = max(len(times) for times in each)
        start = min(times.min() for times in each)
        whole, waits = [], []
        for executor, times in zip(self.executors, each, strict=True):
            missing = np.full((blocks - len(times), *times.shape[1:]), times.min(), dtype=times.dtype)
            whole.append(np.concatenate([times, missing]))
            waits.append(np.pad(executor.waits(stream), ((0, blocks - len(times)), (0, 0))))
        tasks = [task for executor in self.executors for task in executor.manifest.tasks]
        spans = (np.concatenate(whole, axis=1) - start).astype(np.float64) / 1e3
        return Timeline(tasks, spans, np.concatenate(waits, axis=1) / 1e3)

    def close(self) -> None:
        """Give the memory of all streams back. No launch may be under way."""
        for executor in self.executors:
            executor.close()
