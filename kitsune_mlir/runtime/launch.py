"""The driver's calls that every launch makes, straight from its library.

`cuda.bindings` makes objects of arguments and results, which costs more than the calls themselves. Here everything that does
not change from launch to launch lies ready in memory, and a launch passes four addresses.
"""

from __future__ import annotations

import collections
import ctypes
import functools
from collections.abc import Callable

from kitsune_mlir.errors import KitsuneError, TargetError

__all__ = ["Config", "ConfigLayout", "Library", "Mark", "Marks", "library", "wait_for"]

_COOPERATIVE = 2  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE of cuda.h
_NOT_READY = 600  # CUDA_ERROR_NOT_READY of cuda.h
_PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute of cuda.h: an id, and a value of 64 bytes."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint64 * 8)]


class ConfigLayout(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


class Config:
    """A launch of `blocks` × `threads` on a stream; a cooperative one runs all blocks at the same time.

    One that `follows` may start before the kernel before it has ended, and waits itself for that (`griddepcontrol.wait`).

    Attributes:
        address: of the CUlaunchConfig, for as long as this object lives.
    """

    def __init__(
        self, blocks: int, threads: int, shared_bytes: int, stream: int, cooperative: bool = True, follows: bool = False
    ):
        ids = [_COOPERATIVE] * cooperative + [_PROGRAMMATIC] * follows
        self._attributes = (_Attribute * max(1, len(ids)))()
        for attribute, number in zip(self._attributes, ids, strict=False):
            attribute.id, attribute.value[0] = number, 1
        ones = (1, 1)
        attributes = ctypes.cast(self._attributes, ctypes.POINTER(_Attribute)), len(ids)
        self._config = ConfigLayout((blocks, *ones), (threads, *ones), shared_bytes, stream, *attributes)
        self.address = ctypes.addressof(self._config)


class Library:
    """Functions of libcuda; each returns a CUresult (0: success).

    Attributes:
        launch: cuLaunchKernelEx(config, function, addresses of the parameters, extra).
        is_capturing: cuStreamIsCapturing(stream, address of an int that becomes the status; 0: no capture).
        synchronize: cuStreamSynchronize(stream).
        copy: cuMemcpyHtoDAsync(address on the device, address on the host, bytes, stream).
        record, passed: cuEventRecord(event, stream) and cuEventSynchronize(event).
        ready: cuEventQuery(event).

    What only asks or notes, and returns at once, keeps Python's interpreter: another thread that has something to do may have
    it for 5 ms else (`sys.setswitchinterval`).
    """

    def __init__(
        self,
        launch: Callable[[int, int, int, None], int],
        is_capturing: Callable[[int, int], int],
        synchronize: Callable[[int], int],
        copy: Callable[[int, int, int, int], int],
        record: Callable[[int, int], int],
        passed: Callable[[int], int],
        ready: Callable[[int], int],
    ):
        self.launch, self.is_capturing, self.synchronize = launch, is_capturing, synchronize
        self.copy, self.record, self.passed, self.ready = copy, record, passed, ready


@functools.cache
def library() -> Library:
    """The installed driver.

    Raises:
        TargetError: there is none.
    """
    try:
        cuda, asks = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")
    except OSError as error:
        raise TargetError(f"the CUDA driver cannot be loaded: {error}") from error
    pointer = ctypes.c_void_p
    cuda.cuLaunchKernelEx.argtypes = (pointer, pointer, pointer, pointer)
    asks.cuStreamIsCapturing.argtypes = (pointer, pointer)
    asks.cuEventQuery.argtypes = (pointer,)
    cuda.cuStreamSynchronize.argtypes = (pointer,)
    cuda.cuMemcpyHtoDAsync_v2.argtypes = (ctypes.c_uint64, pointer, ctypes.c_size_t, pointer)
    asks.cuEventRecord.argtypes = (pointer, pointer)
    cuda.cuEventSynchronize.argtypes = (pointer,)
    stream, events = (asks.cuStreamIsCapturing, cuda.cuStreamSynchronize), (asks.cuEventRecord, cuda.cuEventSynchronize)
    return Library(cuda.cuLaunchKernelEx, *stream, cuda.cuMemcpyHtoDAsync_v2, *events, asks.cuEventQuery)


def wait_for(stream: int) -> None:
    """Wait until what was launched on a stream is done; others have the interpreter meanwhile.

    Raises:
        KitsuneError: something on the device went wrong.
    """
    if status := library().synchronize(stream):
        raise KitsuneError(f"waiting for a stream failed: CUresult {status}")


class Mark:
    """A place in what was launched on a stream.

    Args:
        event: recorded there.
    """

    __slots__ = ("_event",)

    def __init__(self, event: int):
        self._event = event

    @property
    def passed(self) -> bool:
        """Whether all before it is done, or has failed."""
        return library().ready(self._event) != _NOT_READY

    def wait(self) -> None:
        """Until all before it is done; others have the interpreter meanwhile.

        Raises:
            KitsuneError: something on the device went wrong.
        """
        its = library()
        if its.ready(self._event) and (status := its.passed(self._event)):
            raise KitsuneError(f"waiting for a launch failed: CUresult {status}")


class Marks:
    """Marks in streams of the current device.

    Args:
        count: how many may be waited for at the same time.
    """

    def __init__(self, count: int):
        import torch

        self._events = collections.deque(torch.cuda.Event() for _ in range(count))
        for event in self._events:
            event.record()  # only now it is there

    def set(self, stream: int) -> Mark:
        """Mark what was launched on a stream of the current device.

        Raises:
            KitsuneError: something on the device went wrong.
        """
        self._events.rotate(-1)
        event = self._events[-1].cuda_event
        if status := library().record(event, stream):
            raise KitsuneError(f"marking a place in a stream failed: CUresult {status}")
        return Mark(event)
