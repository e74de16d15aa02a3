"""The launch runtime against a driver that only records: what is passed, what is allocated when, one state a stream."""

import ctypes
import dataclasses
import sys
import types
import weakref

import numpy as np
import pytest

from kitsune_mlir.errors import ArgumentError, KitsuneError, TargetError
from kitsune_mlir.runtime import arenas, cuda_executor, driver, launch
from kitsune_mlir.runtime.manifest import COUNTERS, REPORT_BYTES, REPORT_FIELDS, Manifest, Parameter

MAP = {"dtype": "bf16", "shape": [8, 64], "strides_bytes": [128], "box": [8, 64], "swizzle": 128, "fill": "zero"}
MANIFEST = Manifest(
    kernel="k",
    chip="sm_90a",
    parameters=(
        Parameter("input", 0),
        Parameter("input", 1),
        Parameter("result", 0),
        Parameter("arena"),
        Parameter("workspace"),
        Parameter("tensor_map", 1, "input", 256, MAP),
        Parameter("tensor_map", 0, "arena", 1024, MAP),
    ),
    threads=256,
    shared_bytes=4096,
    slots=3,
    scratch_bytes=512,
    arena_bytes=2048,
    input_bytes=(64, 2048),
    result_bytes=(64,),
    tiles=300,
    tasks=(("a", "simt", 100), ("b", "mma", 200)),
)


class Result:
    def __init__(self, name):
        self.name = name


SUCCESS, INVALID_CONTEXT, FAILED = 0, 201, 719


class Results:
    CUDA_SUCCESS = SUCCESS

    def __call__(self, status):
        return Result({INVALID_CONTEXT: "CUDA_ERROR_INVALID_CONTEXT", FAILED: "CUDA_ERROR_LAUNCH_FAILED"}[status])


class FakeDriver:
    """Records launches (grid, threads, shared bytes, stream, the pointers and maps passed), clearings and allocations."""

    CUresult = Results()
    CUdevice_attribute = types.SimpleNamespace(
        **{
            f"CU_DEVICE_ATTRIBUTE_{name}": name
            for name in (
                "COOPERATIVE_LAUNCH",
                "MULTIPROCESSOR_COUNT",
                "COMPUTE_CAPABILITY_MAJOR",
                "COMPUTE_CAPABILITY_MINOR",
                "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            )
        }
    )
    CUfunction_attribute = types.SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")
    CUstreamCaptureMode = types.SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
    CUstream_flags = types.SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureStatus = types.SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE="none")

    def __init__(self):
        self.attributes = {
            "COOPERATIVE_LAUNCH": 1,
            "MULTIPROCESSOR_COUNT": 132,
            "COMPUTE_CAPABILITY_MAJOR": 9,
            "COMPUTE_CAPABILITY_MINOR": 0,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
        }
        self.resident, self.next, self.capturing = 2, 1 << 20, {}
        self.launches, self.cleared, self.allocated, self.freed, self.status = [], [], [], [], SUCCESS
        self.memory, self.written = {}, []
        self.context, self.mode, self.streams = 7, "global", []

    def cuGetErrorString(self, status):
        return SUCCESS, b"it failed"

    def cuDeviceGetAttribute(self, name, device):
        return SUCCESS, self.attributes[name]

    def cuCtxGetCurrent(self):
        return SUCCESS, self.context

    def cuCtxSetCurrent(self, context):
        self.context = context
        return (SUCCESS,)

    def cuDevicePrimaryCtxRetain(self, device):
        return SUCCESS, 7

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, *_):
        return SUCCESS, self.resident

    def cuStreamIsCapturing(self, stream):
        return SUCCESS, "active" if stream in self.capturing else "none"

    def cuStreamGetCaptureInfo(self, stream):
        return SUCCESS, "active", self.capturing[stream]

    def cuThreadExchangeStreamCaptureMode(self, mode):
        self.mode, before = mode, self.mode
        return SUCCESS, before

    def cuStreamCreate(self, flags):
        self.streams.append(1000 + len(self.streams))
        return SUCCESS, self.streams[-1]

    def cuStreamSynchronize(self, stream):
        return (SUCCESS,)

    def cuStreamDestroy(self, stream):
        self.streams.remove(stream)
        return (SUCCESS,)

    def cuMemAlloc(self, size):
        assert not self.capturing or self.mode == "relaxed"
        self.allocated.append(size)
        self.next += 1 << 16
        return SUCCESS, self.next

    def cuMemFree(self, address):
        self.freed.append(address)
        return (SUCCESS,)

    def cuMemsetD8Async(self, address, value, size, stream):
        self.cleared.append((address, size, stream))
        return (SUCCESS,)

    def cuMemcpyDtoH(self, target, source, size):
        ctypes.memmove(target, self.memory[source].ctypes.data, size)
        return (SUCCESS,)

    def cuMemcpyHtoDAsync(self, address, source, size, stream):
        assert stream in self.streams
        self.written.append((address, ctypes.string_at(source, size)))
        return (SUCCESS,)

    def is_capturing(self, stream, answer):
        ctypes.c_int.from_address(answer).value = stream in self.capturing
        return SUCCESS

    def launch(self, address, function, table, extra):
        config = launch.ConfigLayout.from_address(address)
        attribute = config.attributes[0]
        assert (config.attribute_count, attribute.id, attribute.value[0]) == (1, 2, 1)  # a cooperative launch
        if self.context != 7:
            return INVALID_CONTEXT
        if self.status == SUCCESS:
            addresses = np.ctypeslib.as_array((ctypes.c_uint64 * 7).from_address(table)).copy()
            passed = [ctypes.c_uint64.from_address(int(a)).value for a in addresses[:5]]
            sizes = (tuple(config.grid), tuple(config.block), config.shared_bytes)
            self.launches.append((*sizes, config.stream or 0, passed, addresses[5:].tolist()))
        return self.status

    @property
    def library(self):
        """The driver's library; its functions fail where this thread has not the device's context."""

        def function(name):
            return lambda *given: getattr(self, name)(*given)[0] if self.context == 7 else INVALID_CONTEXT

        others = [function(f"cu{name}") for name in ("StreamSynchronize", "MemcpyHtoDAsync", "EventRecord")]
        others += [function("cuEventSynchronize")] * 2
        return launch.Library(self.launch, self.is_capturing, *others)

    def __getattr__(self, name):
        if name.startswith("cu"):
            return lambda *_: (SUCCESS, 1) if "Get" in name or "Load" in name else (SUCCESS,)
        raise AttributeError(name)


class Map:
    def __init__(self, address):
        self.address = address

    def getPtr(self):
        return self.address


@pytest.fixture
def fake(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(driver, "driver", lambda: fake)
    monkeypatch.setattr(cuda_executor, "driver", lambda: fake)
    monkeypatch.setattr(cuda_executor, "library", lambda: fake.library)
    monkeypatch.setattr(arenas, "_ARENAS", weakref.WeakValueDictionary())
    monkeypatch.setattr(cuda_executor, "encode", lambda description, address: fake.encoded.append(address) or Map(address))
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # memory then comes from the driver
    fake.encoded = []
    return fake


def test_what_a_launch_passes(fake):
    executor = cuda_executor.CudaExecutor(MANIFEST, b"")
    executor.run([0x1000, 0x2000, 0x3000], 5)
    grid, block, shared, stream, passed, maps = fake.launches[0]
    assert grid == (264, 1, 1) and block == (256, 1, 1) and (shared, stream) == (4096, 5)
    assert passed[:3] == [0x1000, 0x2000, 0x3000]
    arena, workspace = passed[3:]
    # The tensor maps are of memory at the argument plus the manifest's offset.
    assert maps == [0x2000 + 256, arena + 1024]
    assert fake.cleared == [(workspace, MANIFEST.cleared_bytes, 5)]
    assert fake.allocated == [MANIFEST.workspace_bytes(264), MANIFEST.arena_bytes]


def test_nothing_is_allocated_after_the_first_call_on_a_stream(fake):
    executor = cuda_executor.CudaExecutor(MANIFEST, b"")
    for pointer in (0x1000, 0x1000, 0x5000):
        executor.run([pointer, 0x2000, 0x3000], 5)
    assert len(fake.allocated) == 2 and len(fake.cleared) == 1 and len(fake.launches) == 3
    assert [launch[4][0] for launch in fake.launches] == [0x1000, 0x1000, 0x5000]
    assert len(fake.encoded) == 2  # neither mapped pointer changed
    executor.run([0x1000, 0x8000, 0x3000], 5)
    executor.run([0x1000, 0x2000, 0x3000], 5)
    assert len(fake.encoded) == 3 and fake.launches[-1][5][0] == 0x2000 + 256


def test_programs_on_a_stream_have_one_arena(fake):
    """As large as the larger needs; who has had the smaller one gets the new one's address, also in tensor maps."""
    small = cuda_executor.CudaExecutor(MANIFEST, b"")
    large = cuda_executor.CudaExecutor(dataclasses.replace(MANIFEST, arena_bytes=1 << 20), b"")
    nothing = cuda_executor.CudaExecutor(dataclasses.replace(MANIFEST, arena_bytes=0), b"")
    small.run([0x1000, 0x2000, 0x3000], 5)
    first = fake.launches[-1][4][3]
    for executor in (large, small, large, small):
        executor.run([0x1000, 0x2000, 0x3000], 5)
    arenas_seen = [launch[4][3] for launch in fake.launches]
    assert len(set(arenas_seen)) == 2 and arenas_seen[1:] == [arenas_seen[1]] * 4
    assert [launch[5][1] for launch in fake.launches] == [arena + 1024 for arena in arenas_seen]
    assert fake.freed == [first] and fake.allocated.count(1 << 20) == 1
    nothing.run([0x1000, 0x2000, 0x3000], 5)
    assert fake.launches[-1][4][3] not in arenas_seen
    small.run([0x1000, 0x2000, 0x3000], 6)
    assert fake.launches[-1][4][3] not in arenas_seen, "another stream's calls run at the same time"
    large.close()
    assert arenas_seen[1] not in fake.freed
    small.close()
    assert arenas_seen[1] in fake.freed


def test_streams_and_captures_have_memory_of_their_own(fake, monkeypatch):
    executor = cuda_executor.CudaExecutor(MANIFEST, b"")
    executor.run([1, 2, 3], 5)
    executor.run([1, 2, 3], 6)
    assert fake.launches[0][4][3:] != fake.launches[1][4][3:] and len(fake.allocated) == 4
    fake.capturing[6] = 99
    with pytest.raises(TargetError, match="import torch before capturing"):
        executor.run([1, 2, 3], 6)
    for module in (arenas, cuda_executor):
        monkeypatch.setattr(module, "DeviceMemory", lambda size, device, stream: types.SimpleNamespace(address=1 << 30))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: True)))
    for _ in range(2):
        executor.run([1, 2, 3], 6)
    # The workspace is cleared once, on another stream than the captured one: replays count on.
    arena, workspace = fake.launches[-1][4][3:]
    assert arena == 1 << 30 and fake.cleared[2:] == [(workspace, MANIFEST.workspace_bytes(264), 1000)]
    assert fake.mode == "global" and not fake.streams
    del fake.capturing[6]
    executor.run([1, 2, 3], 6)
    assert fake.launches[-1][4] == fake.launches[1][4]


def test_a_thread_without_a_context_gets_one(fake):
    executor = cuda_executor.CudaExecutor(MANIFEST, b"")
    executor.run([1, 2, 3], 5)
    fake.context = 0
    executor.run([1, 2, 3], 5)
    assert len(fake.launches) == 2 and fake.context == 7


def test_another_devices_context_stays_current(fake):
    executor = cuda_executor.CudaExecutor(MANIFEST, b"")
    fake.context = 9
    executor.run([1, 2, 3], 5)
    executor.run([1, 2, 3], 5)
    executor.check(5)
    assert len(fake.launches) == 2 and fake.context == 9


def test_maps_are_encoded_again_after_a_failure(fake, monkeypatch):
    executor = cuda_executor.CudaExecutor(MANIFEST, b"")
    executor.run([0x1000, 0x2000, 0x3000], 5)

    def refuse(description, address):
        raise ArgumentError("not aligned")

    with monkeypatch.context() as patched:
        patched.setattr(cuda_executor, "encode", refuse)
        with pytest.raises(ArgumentError, match="not aligned"):
            executor.run([0x1000, 0x2008, 0x3000], 5)
    executor.run([0x1000, 0x2000, 0x3000], 5)
    assert fake.launches[-1][5][0] == 0x2000 + 256


def test_no_more_blocks_than_tiles(fake):
    fake.resident = 8
    assert cuda_executor.CudaExecutor(MANIFEST, b"").blocks == 300


def test_errors_are_sentences(fake):
    executor = cuda_executor.CudaExecutor(MANIFEST, b"")
    with pytest.raises(ArgumentError, match="takes 3 pointers"):
        executor.run([1, 2])
    fake.status = FAILED
    with pytest.raises(KitsuneError, match="launching kernel 'k' with 264 blocks failed: CUDA_ERROR_LAUNCH_FAILED"):
        executor.run([1, 2, 3])
    fake.resident = 0
    with pytest.raises(TargetError, match="fits no multiprocessor"):
        cuda_executor.CudaExecutor(MANIFEST, b"")
    fake.attributes["COOPERATIVE_LAUNCH"] = 0
    with pytest.raises(TargetError, match="no cooperative launch"):
        cuda_executor.CudaExecutor(MANIFEST, b"")


def test_a_launch_has_the_blocks_that_wait_for_each_other(fake):
    """264 blocks are resident on the fake device; the pieces of a tile, a cluster or the ends of a ring may want more."""
    import dataclasses

    what = "the pieces of a tile of stage 'b', which wait for each other"
    wanted = dataclasses.replace(MANIFEST, least_blocks=264, together=what)
    assert cuda_executor.CudaExecutor(wanted, b"").blocks == 264
    with pytest.raises(TargetError, match=f"'k' needs 265 blocks at the same time for {what}; 264 can run on 132 multi"):
        cuda_executor.CudaExecutor(dataclasses.replace(wanted, least_blocks=265), b"")


def test_a_wait_that_gave_up_is_told(fake):
    import dataclasses

    names = ("tile (0) of stage 'a'", "tile (1) of stage 'a'", "4 tiles of stage 'a': (2), (3), (4), (5)")
    manifest = dataclasses.replace(MANIFEST, debug=True, counters=names)
    executor = cuda_executor.CudaExecutor(manifest, b"")
    executor.run([1, 2, 3])
    workspace = fake.launches[0][4][4]
    report = np.zeros((265, REPORT_BYTES // 4), dtype=np.uint32)
    report[0, 0] = 1
    report[1 + 3, :5] = 1, 1, 2, 0, 4  # blocks 3 and 17 wait in the second stage, block 9 in the first one
    report[1 + 17, :5] = 1, 1, 2, 0, 4
    report[1 + 9, :5] = 1, 0, 2, 3, 4
    assert REPORT_FIELDS == ("gave_up", "task", "slot", "seen", "wanted")
    fake.memory[workspace + manifest.debug_offset] = report
    told = (
        r"block 9 of 264, in stage 'a' \(simt, 100 tiles\), waits for 4 tiles of stage 'a': \(2\), \(3\), \(4\), \(5\): "
        r"3 posts seen of 4 needed at counter 2 \(3 blocks were waiting\)"
    )
    with pytest.raises(KitsuneError, match=told):
        executor.check()
    report[:] = 0
    executor.check()


def test_where_nothing_waits_every_tile_has_a_block(fake):
    streaming = dataclasses.replace(MANIFEST, slots=0, scratch_bytes=0, tiles=100_000, streaming=True)
    executor = cuda_executor.CudaExecutor(streaming, b"")
    assert executor.blocks == 100_000  # more than are resident, and than there are parity words for
    assert streaming.cleared_bytes == 0  # there are no counters
    assert streaming.workspace_bytes(executor.blocks) == 0  # nor anything else that parity words would be beside
    for needs in ({"slots": 1}, {"debug": True}, {"timestamps": True}, {"partial_bytes": 256}, {"scratch_bytes": 256}):
        assert dataclasses.replace(streaming, **needs).workspace_bytes(132) > COUNTERS
    assert launch.Config(executor.blocks, 256, 0, 0, cooperative=False)._config.attribute_count == 0
    assert launch.Config(executor.blocks, 256, 0, 0)._config.attribute_count == 1
