"""What the runtime writes for a kernel of several requests: the table, against a driver and a torch that only record."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import struct
import sys
import types
from typing import Any

import numpy as np
import pytest

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime import arenas, cuda_executor, cuda_requests, tensormap
from kitsune_mlir.runtime.call_table import Calls
from kitsune_mlir.runtime.manifest import REQUEST_HEADER, Parameter
from kitsune_mlir.runtime.runner import WeightTable
from test.unit.test_cuda_executor import MANIFEST, MAP, SUCCESS, FakeDriver, Map, fake  # noqa: F401

SEVERAL = dataclasses.replace(MANIFEST, requests=4, slots=4 * MANIFEST.slots, arena_bytes=2000, tiles=1200)
ADDRESS = 1 << 40


class Tensor:
    """Page-locked bytes."""

    def __init__(self, size: int):
        self.data = np.full(size, 0xEE, np.uint8)

    def numpy(self) -> np.ndarray:
        return self.data

    def data_ptr(self) -> int:
        return self.data.ctypes.data


@pytest.fixture
def device(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """The table on the device; of each copy to it how many bytes it had and on which stream; events; parameters of launches."""
    seen = types.SimpleNamespace(table=None, copied=[], parameters=[], streams=[], events=[], driver=fake)

    def memory(size: int, device: Any, stream: int) -> Any:
        assert seen.table is None
        seen.table = np.full(size, 0xEE, np.uint8)
        return types.SimpleNamespace(address=ADDRESS)

    def empty(size: int, dtype: Any, pin_memory: bool) -> Tensor:
        assert pin_memory
        return Tensor(size)

    monkeypatch.setattr(cuda_requests, "DeviceMemory", memory)
    monkeypatch.setattr(cuda_requests, "library", lambda: fake.library)

    def copy(address: int, source: int, size: int, stream: int) -> Any:
        if address == ADDRESS:
            seen.table[:size] = np.frombuffer(ctypes.string_at(source, size), np.uint8)
            seen.copied.append(size)
            seen.streams.append(stream)
            return (SUCCESS,)
        return apart(address, source, size, stream)

    apart = fake.cuMemcpyHtoDAsync
    monkeypatch.setattr(fake, "cuMemcpyHtoDAsync", copy)
    numbers = iter(range(100))
    monkeypatch.setattr(fake, "cuEventCreate", lambda flags: (SUCCESS, next(numbers)), raising=False)
    for name in ("Synchronize", "Record"):
        called = lambda event, *stream, name=name: (seen.events.append((name, event, *stream)), (SUCCESS,))[1]  # noqa: E731
        monkeypatch.setattr(fake, f"cuEvent{name}", called, raising=False)
    cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda, empty=empty, uint8=None))

    def launch(config: int, function: int, table: int, extra: None) -> int:
        seen.parameters.append(ctypes.c_uint64.from_address(ctypes.c_uint64.from_address(table).value).value)
        return SUCCESS

    monkeypatch.setattr(fake, "launch", launch)
    kept: list[Any] = []

    def encode(description: dict, address: int) -> Map:
        kept.append(ctypes.create_string_buffer(struct.pack("<Q", address) * 16, 128))
        return Map(ctypes.addressof(kept[-1]))

    monkeypatch.setattr(tensormap, "encoder", lambda description: functools.partial(encode, description))
    seen.encoded = kept
    return seen


def words(device: Any) -> list[int]:
    return device.table[: len(device.table) // 8 * 8].view(np.uint64).tolist()


def test_the_table_has_a_row_and_maps_for_each_request(device):
    executor = cuda_requests.CudaRequests(SEVERAL, b"")
    rows = [[0x1000 * n + 0x100, 0x1000 * n + 0x200, 0x1000 * n + 0x300] for n in range(1, 4)]
    executor.run_requests(rows, 5)
    assert device.parameters == [ADDRESS]
    workspace, arena = (device.driver.next - (1 << 16), device.driver.next)
    assert device.driver.allocated == [SEVERAL.workspace_bytes(executor.blocks), 4 * SEVERAL.arena_stride]
    found, first = words(device), REQUEST_HEADER // 8
    assert found[:2] == [3, workspace] and (found[2] - ADDRESS) % 128 == 0
    arenas = [arena + n * 2048 for n in range(3)]
    assert found[first : first + 12] == [word for row, own in zip(rows, arenas, strict=True) for word in (*row, own)]
    maps = (found[2] - ADDRESS) // 8
    for row, own in zip(rows, arenas, strict=True):
        for address in (row[1] + 256, own + 1024):  # as the manifest has the tensor maps
            assert found[maps : maps + 16] == [address] * 16
            maps += 16
    assert device.copied == [8 * maps]


def test_the_table_is_written_only_where_it_changes(device):
    executor = cuda_requests.CudaRequests(SEVERAL, b"")
    rows = [[0x100, 0x200, 0x300], [0x400, 0x500, 0x600]]
    for _ in range(3):
        executor.run_requests(rows, 5)
    assert len(device.copied) == 1 and len(device.parameters) == 3
    executor.run_requests([rows[0], [0x400, 0x500, 0x700]], 5)
    assert len(device.copied) == 2 and len(device.encoded) == 4  # other results, the same maps
    executor.run([0x100, 0x200, 0x300], 5)
    assert words(device)[0] == 1 and len(device.driver.allocated) == 2
    executor.run_requests([], 5)
    assert len(device.parameters) == 5


@pytest.mark.parametrize("stream", [0, 5])
def test_a_table_waits_for_the_copy_of_what_lay_in_its_memory(device, stream):
    """Each copy is on the stream of its launch; a part of the host's memory is written again when its last copy is over."""
    executor = cuda_requests.CudaRequests(SEVERAL, b"")
    for n in range(2 * cuda_requests.PARTS):
        executor.run_requests([[0x100 * n, 0x200, 0x300]], stream)
        assert words(device)[REQUEST_HEADER // 8] == 0x100 * n
    assert {*device.streams} == {stream} and len(device.streams) == 2 * cuda_requests.PARTS
    events = [event for n in range(2 * cuda_requests.PARTS) for event in [n % cuda_requests.PARTS]]
    assert device.events == [one for event in events for one in (("Synchronize", event), ("Record", event, stream))]


def test_a_table_is_written_by_a_thread_without_a_context(device):
    executor = cuda_requests.CudaRequests(SEVERAL, b"")
    executor.run_requests([[0x100, 0x200, 0x300]], 5)
    device.driver.context = 0
    executor.run_requests([[0x110, 0x200, 0x300]], 5)
    assert words(device)[REQUEST_HEADER // 8] == 0x110 and len(device.copied) == 2 and device.driver.context == 7


def test_tables_of_a_capture_are_no_part_of_the_graph(device, monkeypatch):
    """Each launch has its own, which is written at once, on another stream than the captured one."""
    executor = cuda_requests.CudaRequests(SEVERAL, b"")
    executor.run_requests([[0x100, 0x200, 0x300]], 5)
    device.driver.capturing[5] = 99
    for module in (arenas, cuda_executor):
        monkeypatch.setattr(module, "DeviceMemory", lambda size, device, stream: types.SimpleNamespace(address=1 << 30))
    monkeypatch.setattr(sys.modules["torch"].cuda, "is_available", lambda: True)
    copied = len(device.copied)
    for input in (0x110, 0x110, 0x120):
        executor.run_requests([[input, 0x200, 0x300]], 5)
    assert len(device.copied) == copied and device.driver.mode == "global" and not device.driver.streams
    (first, one), (second, other) = device.driver.written
    assert device.parameters == [ADDRESS, first, first, second] and first != second
    for address, data, input in ((first, one, 0x110), (second, other, 0x120)):
        found, maps = np.frombuffer(data, np.uint64), (1 << 30) + 1024
        assert found[0] == 1 and found[2] - address == len(data) - 2 * 128
        assert found[REQUEST_HEADER // 8 :][:4].tolist() == [input, 0x200, 0x300, 1 << 30]
        assert set(found[-16:].tolist()) == {maps}
    del device.driver.capturing[5]
    executor.run_requests([[0x100, 0x200, 0x300]], 5)
    assert len(device.copied) == copied and device.parameters[-1] == ADDRESS


def test_too_many_requests_and_wrong_pointers(device):
    executor = cuda_requests.CudaRequests(SEVERAL, b"")
    with pytest.raises(ArgumentError, match="kernel 'k' takes at most 4 requests in a launch, got 5"):
        executor.run_requests([[1, 2, 3]] * 5)
    with pytest.raises(ArgumentError, match="takes 3 pointers .*, got 2"):
        executor.run_requests([[1, 2, 3], [1, 2]])
    assert not device.parameters


def test_a_launch_is_of_the_kernel_for_as_many_requests(device):
    many = dataclasses.replace(SEVERAL, least_requests=3)
    executor = cuda_requests.CudaRequestKernels([(SEVERAL, b""), (many, b"")])
    rows = [[0x1000 * n + 0x100, 0x1000 * n + 0x200, 0x1000 * n + 0x300] for n in range(1, 5)]
    for count, filled in ((1, [1, 0]), (2, [2, 0]), (3, [2, 3]), (4, [2, 4])):
        device.table = None if count == 3 else device.table  # a table a kernel
        executor.run_requests(rows[:count], 5)
        tables = [one._states[5].requests if 5 in one._states else None for one in executor.executors]
        assert [len(table.rows) if table else 0 for table in tables] == filled
    arenas = [size for size in device.driver.allocated if size == 4 * SEVERAL.arena_stride]
    assert len(arenas) == 1  # both kernels'
    executor.run(rows[3], 5)
    assert executor.executors[0]._states[5].requests.rows == [rows[3]]


class Given:
    """A tensor, as far as a table is concerned."""

    def __init__(self, pointer: int):
        self.pointer = pointer


def fills(executor: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What fills and launches; torch's method is one that gives a `Given`'s pointer."""
    tensor = types.SimpleNamespace(data_ptr=lambda one: one.pointer)
    monkeypatch.setattr(sys.modules["torch"], "Tensor", tensor, raising=False)
    weights, results = WeightTable(np.array([[0x1000], [0x2000], [0x3000]], np.uint64)), [(0x20000, 0x100)]
    models = {"a": 0, "b": 1, "c": 2}

    def run(calls: list[Any], check: Any = lambda _: True, first: int = 0) -> Any:
        return executor.run_calls(weights, Calls(models, check, calls, first, len(calls) - first), results, 5)

    return run


def test_compiled_code_fills_the_table_that_rows_make(device, monkeypatch):
    """Tensor maps of an input, of a result, of a weight and of the arena; those that are not known are encoded."""
    own = (("tensor_map", 0, "result", 64), ("tensor_map", 1, "input", 32), ("tensor_map", 0, "input", 0))
    parameters = (*SEVERAL.parameters, *(Parameter(*one, MAP) for one in own))
    executor = cuda_requests.CudaRequests(dataclasses.replace(SEVERAL, parameters=parameters), b"")
    run = fills(executor, device, monkeypatch)
    calls = [(name, (Given(0x10000 + 0x100 * n),)) for n, name in enumerate("cabb")]
    assert run(calls) is None and not device.parameters  # the stream has no memory yet
    rows = [[0x1000 * (1 + "abc".index(name)), one.pointer, 0x20000 + 0x100 * n] for n, (name, (one,)) in enumerate(calls)]
    executor.run_requests(rows, 5)
    wanted = device.table.copy()
    executor.run([1, 2, 3], 5)
    for first in (0, 0, 2):
        found = run([("c", ())] * first + calls, first=first)
        assert found.tolist() == [2, 0, 1, 1] and (device.table == wanted).all()
    assert len(device.parameters) == 5
    fresh = [("a", (Given(0x50000 + 0x100 * n),)) for n in range(4)]
    encoded = len(device.encoded)
    assert run(fresh).tolist() == [0] * 4 and len(device.encoded) == encoded + 8  # two maps of each input


def test_maps_of_weights_are_encoded_once_for_all_launches(device, monkeypatch):
    manifest = dataclasses.replace(SEVERAL, parameters=(*SEVERAL.parameters[:5], Parameter("tensor_map", 0, "input", 64, MAP)))
    executor = cuda_requests.CudaRequests(manifest, b"")
    executor.run([0x7000, 2, 3], 5)
    run, encoded = fills(executor, device, monkeypatch), len(device.encoded)
    for n in range(3):
        assert run([("b", (Given(0x100 * n),)), ("a", (Given(0x200),))]).tolist() == [1, 0]
        maps = (words(device)[2] - ADDRESS) // 8
        assert words(device)[maps : maps + 32] == [0x2040] * 16 + [0x1040] * 16
    assert len(device.encoded) == encoded + 3  # of each program's weights


def test_calls_are_launched_by_the_kernel_for_as_many(device, monkeypatch):
    many = dataclasses.replace(SEVERAL, least_requests=3)
    executor = cuda_requests.CudaRequestKernels([(SEVERAL, b""), (many, b"")])
    for one in executor.executors:
        device.table = None  # a table a kernel
        one.run([1, 2, 3], 5)
    run = fills(executor, device, monkeypatch)
    for count, written in ((2, [True, False]), (3, [True, True])):
        launched = len(device.parameters)
        assert run([("a", (Given(0x100),))] * count).tolist() == [0] * count and len(device.parameters) == launched + 1
        assert [not one._states[5].requests.rows for one in executor.executors] == written


def test_what_is_no_call_that_fits_is_launched_by_nobody(device, monkeypatch):
    executor = cuda_requests.CudaRequests(SEVERAL, b"")
    executor.run([0x1000, 0x2000, 0x3000], 5)
    run, right, seen = fills(executor, device, monkeypatch), ("a", (Given(0x100),)), list[Any]()
    wrong: list[Any] = [
        ("d", (Given(0x100),)), ("a", ()), ("a", (Given(0x100), Given(0x200))), ("a", [Given(0x100)]), ("a", (Given(0x108),)),
        ("a", (3,)), "ab", ("a",), (["a"], (Given(0x100),)), None,
    ]  # fmt: skip
    for one in wrong:
        assert run([right, one, right]) is None and len(device.parameters) == 1, one
    assert run([right], lambda tensor: seen.append(tensor)) is None and len(seen) == 1  # neither True nor an error
    assert run([right], lambda tensor: 1 / 0) is None
    assert run([right] * 4).tolist() == [0] * 4 and len(device.parameters) == 2
    before = sys.getrefcount(right[1][0])
    for _ in range(100):
        run([right, wrong[0], right])
        run([right] * 4)
    after = sys.getrefcount(right[1][0])
    assert after == before
    with pytest.raises(ArgumentError, match="takes at most 4 requests in a launch, got 5"):
        run([right] * 5)
