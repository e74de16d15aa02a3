"""The CUDA driver as this project uses it: modules, kernels, occupancy, memory. Errors name the call and what it says."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kitsune_mlir.errors import KitsuneError, TargetError

__all__ = [
    "Device",
    "Function",
    "allocate",
    "call",
    "capture_id",
    "cleared_apart",
    "driver",
    "free",
    "load",
    "loaded_apart",
    "resident_clusters",
    "written_apart",
]


def driver() -> Any:
    """The module `cuda.bindings.driver`; TargetError if it is not installed."""
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise TargetError("running on a GPU needs the package 'cuda-bindings' (in the extra 'gpu')") from error
    return bindings


def call(name: str, *arguments: Any) -> Any:
    """Call a driver function; its result, the tuple of its results, or None.

    Raises:
        KitsuneError: the driver reports an error.
    """
    cu = driver()
    status, *results = getattr(cu, name)(*arguments)
    if status != cu.CUresult.CUDA_SUCCESS:
        told, text = cu.cuGetErrorString(status)
        reason = text.decode() if told == cu.CUresult.CUDA_SUCCESS and text else "no description"
        raise KitsuneError(f"{name} failed: {status.name} ({reason})")
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU whose primary context is retained for as long as the process lives (torch uses the same one).

    Attributes:
        ordinal: index of the device.
        handle: the driver's device.
        context: its primary context.
        multiprocessors: how many it has.
        capability: (major, minor).
        shared_limit: bytes of shared memory that one block can have.
    """

    ordinal: int
    handle: Any
    context: Any
    multiprocessors: int
    capability: tuple[int, int]
    shared_limit: int

    @staticmethod
    def open(ordinal: int = 0) -> Device:
        """The device with this index.

        Raises:
            TargetError: there is no driver, no such device, or it has no cooperative launch.
        """
        cu = driver()
        try:
            call("cuInit", 0)
            handle = call("cuDeviceGet", ordinal)
            context = call("cuDevicePrimaryCtxRetain", handle)
        except (KitsuneError, RuntimeError) as error:
            raise TargetError(f"CUDA device {ordinal} cannot be used: {error}") from error
        prefix = "CU_DEVICE_ATTRIBUTE_"

        def attribute(name: str) -> int:
            return call("cuDeviceGetAttribute", getattr(cu.CUdevice_attribute, prefix + name), handle)

        if not attribute("COOPERATIVE_LAUNCH"):
            raise TargetError(f"CUDA device {ordinal} has no cooperative launch")
        return Device(
            ordinal,
            handle,
            context,
            attribute("MULTIPROCESSOR_COUNT"),
            (attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
            attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        )

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """The device's context is current in this thread; another device's is so again afterwards.

        A thread that has no context keeps this one.
        """
        before = int(call("cuCtxGetCurrent"))
        if before == int(self.context):
            yield
            return
        call("cuCtxSetCurrent", self.context)
        try:
            yield
        finally:
            if before:
                call("cuCtxSetCurrent", before)


@dataclasses.dataclass(frozen=True)
class Function:
    """A kernel that is loaded on one device.

    Attributes:
        handle: the driver's function.
        module: what holds it (kept loaded).
        resident: blocks of it that a multiprocessor can run at a time, with the threads and the shared memory it was loaded
            for.
    """

    handle: Any
    module: Any
    resident: int


def load(device: Device, cubin: bytes, name: str, threads: int, shared_bytes: int) -> Function:
    """Load a cubin on a device and prepare its kernel `name` for launches of `threads` threads and `shared_bytes` bytes.

    Raises:
        TargetError: the cubin is for another processor, or the kernel cannot be resident.
    """
    with device.current():
        return _load(device, cubin, name, threads, shared_bytes)


def resident_clusters(function: Function, cluster: int, threads: int, shared_bytes: int) -> int:
    """Clusters of `cluster` blocks that the device can run at a time: multiprocessors that no cluster fits stay idle."""
    cu = driver()
    shape = cu.CUlaunchAttribute()
    shape.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    shape.value.clusterDim.x, shape.value.clusterDim.y, shape.value.clusterDim.z = cluster, 1, 1
    config = cu.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = cluster, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    config.attrs, config.numAttrs = [shape], 1
    return call("cuOccupancyMaxActiveClusters", function.handle, config)


def _load(device: Device, cubin: bytes, name: str, threads: int, shared_bytes: int) -> Function:
    cu = driver()
    try:
        module = call("cuModuleLoadData", cubin)
    except KitsuneError as error:
        major, minor = device.capability
        raise TargetError(f"the kernel '{name}' does not load on this device (capability {major}.{minor}): {error}") from error
    handle = call("cuModuleGetFunction", module, name.encode())
    if shared_bytes > device.shared_limit:
        raise TargetError(f"kernel '{name}' needs {shared_bytes} bytes of shared memory; the device has {device.shared_limit}")
    attributes = cu.CUfunction_attribute
    call("cuFuncSetAttribute", handle, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
    resident = call("cuOccupancyMaxActiveBlocksPerMultiprocessor", handle, threads, shared_bytes)
    if resident < 1:
        raise TargetError(f"kernel '{name}' ({threads} threads, {shared_bytes} bytes of shared memory) fits no multiprocessor")
    return Function(handle, module, resident)


def capture_id(stream: int) -> int | None:
    """A number that names the graph capture under way on a stream; None if there is none."""
    cu = driver()
    if call("cuStreamIsCapturing", stream) == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        return None
    return int(call("cuStreamGetCaptureInfo", stream)[1])


def allocate(size: int) -> int:
    """Device memory of `size` bytes (at least one), aligned to 256; its address. It synchronises nothing."""
    return int(call("cuMemAlloc", max(1, size)))


@contextlib.contextmanager
def _apart() -> Iterator[Any]:
    """A stream for what must not become part of a capture that is under way; it is waited for."""
    cu = driver()
    before = call("cuThreadExchangeStreamCaptureMode", cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        stream = call("cuStreamCreate", cu.CUstream_flags.CU_STREAM_NON_BLOCKING)
        yield stream
        call("cuStreamSynchronize", stream)
        call("cuStreamDestroy", stream)
    finally:
        call("cuThreadExchangeStreamCaptureMode", before)


def cleared_apart(size: int) -> int:
    """Device memory of `size` zero bytes; its address. In a capture too: neither becomes part of the graph."""
    with _apart() as stream:
        address = allocate(size)
        call("cuMemsetD8Async", address, 0, max(1, size), stream)
    return address


def written_apart(size: int, data: Callable[[int], np.ndarray]) -> int:
    """Device memory of `size` bytes that begins with `data(address)`; its address. In a capture too, as `cleared_apart`."""
    with _apart() as stream:
        address = allocate(size)
        host = np.ascontiguousarray(data(address))
        call("cuMemcpyHtoDAsync", address, host.ctypes.data, host.nbytes, stream)
    return address


def loaded_apart(device: Device, code: bytes, name: str, threads: int) -> Function:
    """As `load`, of a kernel without shared memory. In a capture too, as `cleared_apart`."""
    with device.current(), _apart():
        return _load(device, code, name, threads, 0)


def free(address: int) -> None:
    """Give memory back that `allocate` gave."""
    call("cuMemFree", address)
