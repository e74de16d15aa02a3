"""Arenas: memory for what is between the stages of a program, one for all programs that run on a stream.

Launches on a stream follow each other, so the intermediates of one program need not be kept while another one runs: a training
step's forward and backward program have one place for theirs, as large as the larger needs. What a call launches must not
alternate with another call's (`Arena.lock`).
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref

from kitsune_mlir.runtime.driver import Device, allocate, free
from kitsune_mlir.runtime.torch_stream import torch_stream

__all__ = ["Arena", "DeviceMemory", "arena_of"]


class DeviceMemory:
    """Device memory on a stream: from torch's caching allocator if torch is in use, else from the driver."""

    def __init__(self, size: int, device: Device, stream: int):
        torch = sys.modules.get("torch")
        self.own = torch is None or not torch.cuda.is_available()
        if torch is None or self.own:
            self.address = allocate(size)
        else:
            # Allocated for the stream it is used on: the allocator hands memory round within a stream without waiting.
            with torch.cuda.stream(torch_stream(stream, device.ordinal)):
                self.tensor = torch.empty(max(1, size), dtype=torch.uint8, device=f"cuda:{device.ordinal}")
            self.address = self.tensor.data_ptr()

    def release(self) -> None:
        """Give it back; torch takes it when nobody has it any more."""
        if self.own:
            free(self.address)


class Arena:
    """Memory that may be another one after each call: whoever uses it asks for its address under the lock.

    Attributes:
        address: of the memory; 0 before the first use.
        place: holds the address, for compiled code.
        lock: held while a call is launched.
    """

    def __init__(self, device: Device, stream: int):
        self.device, self.stream = device, stream
        self.address = self._size = self._users = 0
        self.place = ctypes.c_uint64()
        self.lock = threading.RLock()
        self._memory: DeviceMemory | None = None

    def enter(self, size: int) -> None:
        """One user more, who needs so many bytes. The device is the current one."""
        with self.lock:
            self._users += 1
            if size > self._size or self._memory is None:
                # The allocator hands the old memory round when what was launched before has run; the driver waits for that.
                before, self._memory = self._memory, DeviceMemory(size, self.device, self.stream)
                self.address, self._size = self._memory.address, size
                self.place.value = self.address
                if before is not None:
                    before.release()

    def leave(self) -> None:
        """One user less; the last one gives the memory back."""
        with self.lock:
            self._users -= 1
            if not self._users and self._memory is not None:
                self._memory.release()
                self._memory, self.address, self._size, self.place.value = None, 0, 0, 0


_ARENAS: weakref.WeakValueDictionary[tuple[int, int, int | None], Arena] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def arena_of(device: Device, stream: int, capture: int | None) -> Arena:
    """The arena of all programs on a stream of a device, or, while it is being captured, in that capture."""
    with _LOCK:
        key = (device.ordinal, stream, capture)
        found = _ARENAS.get(key)
        if found is None:
            found = _ARENAS[key] = Arena(device, stream)
        return found
