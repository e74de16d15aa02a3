"""Launches epoch kernels: one launch for a window of work (`codegen/gpu/kernel/epochs.py`)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from kitsune_mlir.errors import KitsuneError, TargetError
from kitsune_mlir.runtime.cuda_executor import MAP_BYTES
from kitsune_mlir.runtime.driver import Device, call, driver, load
from kitsune_mlir.runtime.epoch import Epoch
from kitsune_mlir.runtime.epoch_manifest import EpochManifest
from kitsune_mlir.runtime.launch import Config, library
from kitsune_mlir.runtime.manifest import REPORT_BYTES, Parameter
from kitsune_mlir.runtime.tensormap import encode
from kitsune_mlir.runtime.torch_stream import torch_stream

__all__ = ["CudaEpochs", "PreparedEpoch"]

MOST_RESIDENT = 3
"""Blocks of a launch on each multiprocessor: more of them poll beside who works."""

KEPT_MAPS = 16384
"""Encoded tensor maps that are kept, of 128 bytes each."""


class PreparedEpoch:
    """An epoch whose words are on the device (or on their way there, on the stream it was prepared on): it may be run again and
    again there, also in a captured graph, for as long as this object lives.

    Attributes:
        blocks: of the launch.
    """

    def __init__(self, kernel: CudaEpochs, epoch: Epoch, stream: int, blocks: int | None):
        import torch

        manifest, self._kernel = kernel.manifest, kernel
        self.tickets, self.instances = epoch.tickets, len(epoch)
        self.blocks = max(manifest.least_blocks, min(kernel.most, epoch.tickets, blocks or kernel.resident))
        outer = torch_stream(stream, kernel.device.ordinal)
        reports = REPORT_BYTES * (1 + self.blocks) if manifest.debug else 0
        with torch.cuda.stream(outer):
            device = f"cuda:{kernel.device.ordinal}"

            def bytes_(count: int) -> Any:
                return torch.empty(max(1, count), dtype=torch.uint8, device=device)

            self._words, arena = bytes_(epoch.packed_bytes), bytes_(epoch.arena_bytes)
            self.counters = bytes_(epoch.counter_bytes + reports)
            partials, scratch = bytes_(epoch.partial_bytes), bytes_(self.blocks * manifest.scratch_bytes)
            packed = epoch.pack(self._words.data_ptr(), arena.data_ptr(), kernel.map)
            host = torch.empty(len(packed.data), dtype=torch.uint8, pin_memory=True)
            host.numpy()[:] = packed.data
            self._words.copy_(host, non_blocking=True)
        self._kept = host, arena, partials, scratch
        self._owners = [manifest.programs[instance.program] for instance in epoch.instances]
        self._cleared = [(self.counters.data_ptr(), self.counters.numel())]
        if epoch.partial_bytes:  # marks of an earlier run there would be taken for its own
            self._cleared.append((partials.data_ptr(), epoch.partial_bytes))
        self.report = self.counters.data_ptr() + epoch.counter_bytes
        first = self._words.data_ptr()
        self._values = (ctypes.c_uint64 * 8)(
            *(first + packed.tickets, first + packed.records, first + packed.upstream, self.counters.data_ptr()),
            *(partials.data_ptr(), scratch.data_ptr(), self.report, epoch.tickets),
        )
        start = ctypes.addressof(self._values)
        self._table = (ctypes.c_uint64 * 8)(*(start + 8 * number for number in range(8)))
        sizes = self.blocks, manifest.threads, manifest.shared_bytes
        self._config = Config(*sizes, stream, cooperative=manifest.least_blocks > 1)
        self._stream = stream

    def run(self) -> None:
        """Launch it, on the stream that it was prepared for, without waiting for anything.

        Raises:
            KitsuneError: the driver rejects the launch.
        """
        with self._kernel.device.current():
            for address, size in self._cleared:
                call("cuMemsetD8Async", address, 0, size, self._stream)
            status = library().launch(self._config.address, self._kernel.handle, ctypes.addressof(self._table), None)
        if status:
            name = driver().CUresult(status).name
            raise KitsuneError(f"launching kernel '{self._kernel.manifest.kernel}' with {self.blocks} blocks failed: {name}")

    def check(self) -> None:
        """Wait for the stream; of a debug build, raise if a wait gave up.

        Raises:
            KitsuneError: a wait was not satisfied: names the stage, the counter and both counts.
        """
        manifest = self._kernel.manifest
        report = np.zeros((1 + self.blocks, REPORT_BYTES // 4), dtype=np.int32)
        with self._kernel.device.current():
            call("cuStreamSynchronize", self._stream)
            if not manifest.debug:
                return
            call("cuMemcpyDtoH", report.ctypes.data, self.report, report.nbytes)
        waiting = [(*row[1:5], block) for block, row in enumerate(report[1:].tolist()) if row[0]]
        if waiting:
            task, slot, seen, wanted, block = min(waiting)
            steps = {step.step: step.name for program in manifest.programs for step in program.steps}
            what = f"stage '{steps[task]}'" if task >= 0 else "an instance, for the end of one before it"
            counter = self._counter(slot)
            raise KitsuneError(
                f"kernel '{manifest.kernel}': block {block} of {self.blocks} waits in {what}: {seen} posts seen of {wanted} "
                f"needed at {counter} ({len(waiting)} blocks were waiting)"
            )

    def _counter(self, slot: int) -> str:
        """In words, which counter it is."""
        first = 0
        for number, program in enumerate(self._owners):
            if slot < first + program.slots:
                stages = ", ".join(step.name for step in program.steps)
                return f"counter {slot - first} of instance {number} (stages {stages})"
            first += program.slots
        return f"counter {slot}, which is nobody's"


class CudaEpochs:
    """An epoch kernel, loaded on one device.

    Args:
        manifest: what the compiler says about the kernel.
        cubin: its code.
        device: index of the device.

    Attributes:
        most: blocks that can run at a time.
        resident: blocks of a launch, if nothing else is asked for.

    Raises:
        TargetError: the device cannot run the kernel.
    """

    def __init__(self, manifest: EpochManifest, cubin: bytes, device: int = 0):
        self.manifest = manifest
        self.device = Device.open(device)
        function = load(self.device, cubin, manifest.kernel, manifest.threads, manifest.shared_bytes)
        self._function = function
        self.handle = int(function.handle)
        self.most = function.resident * self.device.multiprocessors
        self.resident = max(manifest.least_blocks, min(self.most, MOST_RESIDENT * self.device.multiprocessors))
        if self.most < manifest.least_blocks:
            raise TargetError(
                f"kernel '{manifest.kernel}' needs {manifest.least_blocks} blocks at the same time; {self.most} can run"
            )
        self._encoded: dict[tuple[int, int], bytes] = {}
        self._numbers = {id(one): n for n, one in enumerate(m for program in manifest.programs for m in program.maps)}

    def prepare(self, epoch: Epoch, stream: int = 0, blocks: int | None = None) -> PreparedEpoch:
        """Bring an epoch's words to the device, on a stream.

        Args:
            blocks: that run it at most; None: `resident`.
        """
        return PreparedEpoch(self, epoch, stream, blocks)

    def map(self, parameter: Parameter, address: int) -> bytes:
        """The bytes of a tensor map of memory at an address."""
        key = self._numbers[id(parameter)], address
        found = self._encoded.get(key)
        if found is None:
            if len(self._encoded) >= KEPT_MAPS:
                self._encoded.clear()
            encoded = encode(parameter.map or {}, address)
            found = self._encoded[key] = ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)
        return found
