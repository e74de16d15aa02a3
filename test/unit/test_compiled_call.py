"""Calls by compiled code, on tensors of the processor's: a driver in Python sees what is launched."""

import ctypes
import sys
import threading
import types

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime import compiled_call, cuda_sequence, tensormap
from kitsune_mlir.runtime.compiled_call import CompiledCall
from kitsune_mlir.runtime.cuda_runner import CudaRunner
from kitsune_mlir.runtime.direct import COMPILED_AFTER, DirectCall, guard_of
from kitsune_mlir.sized.restride import reinterpret
from test.unit.test_cuda_executor import MANIFEST, Result, fake  # noqa: F401  (a fixture)

STREAM, WEIGHT = 5, 1 << 12
EMPTY = torch._C._dynamo.guards._empty_strided_cpu


class Maps:
    """Encodes a tensor map as its address, sixteen times."""

    def __init__(self):
        self.memory = []

    def __call__(self, description):
        def encode(address):
            self.memory.append((ctypes.c_uint64 * 16)(*[address] * 16))
            return types.SimpleNamespace(getPtr=lambda kept=self.memory[-1]: ctypes.addressof(kept))

        return encode


@pytest.fixture
def device(fake, monkeypatch):  # noqa: F811
    """A device whose driver compiled code calls; `seen` are pointers and the words of tensor maps of each launch."""
    device = types.SimpleNamespace(seen=[], status=0, capturing=0, threads=[])

    def launch(config, function, table, extra):
        addresses = (ctypes.c_uint64 * 7).from_address(table)
        passed = [ctypes.c_uint64.from_address(a).value for a in addresses[:5]]
        device.seen.append((passed, [ctypes.c_uint64.from_address(a).value for a in addresses[5:]]))
        device.threads.append(threading.get_ident())
        return device.status if len(device.seen) % 2 == 0 else 0

    def is_capturing(stream, flag):
        ctypes.c_int.from_address(flag).value = device.capturing
        return 0

    kinds = [ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * count) for count in (4, 2)]
    library = types.SimpleNamespace(launch=kinds[0](launch), is_capturing=kinds[1](is_capturing))
    monkeypatch.setattr(compiled_call, "library", lambda: library)
    monkeypatch.setattr(tensormap, "encoder", Maps())
    sequence = cuda_sequence.CudaSequence([(MANIFEST, b""), (MANIFEST, b"")])
    memory = (ctypes.c_uint64 * 16)()
    monkeypatch.setattr(
        "kitsune_mlir.runtime.cuda_executor.encode", lambda *_: types.SimpleNamespace(getPtr=lambda: ctypes.addressof(memory))
    )
    sequence.run([WEIGHT, 0x2000, 0x3000], STREAM)  # with memory of the driver's
    monkeypatch.setitem(sys.modules, "torch", torch)
    device.runner = CudaRunner.__new__(CudaRunner)
    device.runner.executor, device.runner.run, device.runner.most_requests = sequence, sequence.run, 1
    device.arena, device.fake = sequence.executors[0].arena(STREAM), fake
    return device


def compiled(device, x, cuts=(), made=((3, 4), (4, 1))):
    """A call of one tensor behind a weight, with one result."""
    frames, arena = device.runner.calls(STREAM)
    cut = reinterpret if cuts else None
    given = (frames, arena, STREAM, guard_of((x,)), 1, [WEIGHT], None, [(*made, torch.float32)], EMPTY)
    return CompiledCall(*given, cut, cuts)


def tensors(count, *size):
    """So many that begin at multiples of 16 bytes."""
    return [torch.randn(*size, 4)[..., 0].contiguous() for _ in range(count)]


def test_results_are_new_and_kernels_get_their_pointers(device):
    x, y = tensors(2, 5, 7)
    call = compiled(device, x)
    assert call.call((x,)) is None and call.mend(), "a map of x is not known yet"
    for given in (x, x):
        (result,) = call.call((given,))
        assert result.shape == (3, 4) and result.stride() == (4, 1) and result.dtype == torch.float32
        for passed, maps in device.seen[-2:]:
            assert passed[:3] == [WEIGHT, given.data_ptr(), result.data_ptr()]
            assert maps[0] == given.data_ptr() + 256
    assert call.call((y,)) is None and call.mend()
    (result,) = call.call((y,))
    assert [passed[1] for passed, _ in device.seen[-2:]] == [y.data_ptr()] * 2
    assert all(maps[0] == y.data_ptr() + 256 for _, maps in device.seen[-2:])
    (again,) = call.call((x,))
    assert again.data_ptr() != result.data_ptr() and device.seen[-1][1][0] == x.data_ptr() + 256
    assert len(device.seen) == 8


def test_results_are_cut(device):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x, [((2, 3), (4, 1))])
    call.call((x,))
    call.mend()
    (result,) = call.call((x,))
    assert result.shape == (2, 3) and result.stride() == (4, 1) and not result._is_view()
    assert device.seen[-1][0][2] == result.data_ptr()
    result.fill_(1)


@pytest.mark.parametrize("other", ["dtype", "size", "strides", "count", "list", "place"])
def test_other_arguments_are_left_to_other_ways(device, other):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x)
    call.call((x,))
    call.mend()
    whole = torch.randn(64)
    apart = next(n for n in range(4) if whole[n:].data_ptr() % 16)
    given = {
        "dtype": (x.double(),),
        "size": (x[:4],),
        "strides": (torch.randn(7, 5).T,),
        "count": (x, x),
        "list": [x],
        "place": (whole[apart : apart + 35].view(5, 7),),
    }[other]
    assert call.call(given) is None and not device.seen
    assert call.mend()
    assert call.call((x,)) is not None


def test_a_captured_stream_and_another_arena_are_left_to_other_ways(device):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x)
    call.call((x,))
    call.mend()
    device.capturing = 1
    assert call.call((x,)) is None and call.mend() and not device.seen
    device.capturing = 0
    assert call.call((x,)) is not None
    device.arena.enter(1 << 22)
    assert call.call((x,)) is None and not call.mend()


def test_a_kernel_that_is_not_launched_is_an_error_or_left_to_other_ways(device):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x)
    call.call((x,))
    call.mend()
    device.status = 719  # of the second kernel
    assert call.call((x,)) is None
    with pytest.raises(KitsuneError, match="launching kernel 1 of a call failed: CUDA_ERROR_LAUNCH_FAILED"):
        call.mend()
    device.seen.append(None)  # now of the first
    assert call.call((x,)) is None and call.mend()


def test_a_call_waits_for_another_ones_launches(device):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x)
    call.call((x,))
    call.mend()
    done = threading.Event()
    with device.arena.lock:
        other = threading.Thread(target=lambda: (call.call((x,)), done.set()))
        other.start()
        assert not done.wait(0.05) and not device.seen
        assert call.call((x,)) is not None, "the lock is this thread's already"
    other.join(10)
    assert done.is_set() and device.threads == [threading.get_ident()] * 2 + [other.ident] * 2


def test_nothing_is_held_or_lost(device):
    """A thousand calls leave no objects, and take none away."""
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x, [((2, 3), (4, 1))])
    call.call((x,))
    call.mend()
    held = (None, True, 0, x, x.dtype, torch.Tensor.data_ptr)
    call.call((x,))
    before = [sys.getrefcount(one) for one in held]
    for _ in range(1000):
        call.call((x,))
        call.call((x, x))
        device.seen.clear(), device.threads.clear()
    assert all(abs(sys.getrefcount(one) - count) < 50 for one, count in zip(held, before, strict=True))


def test_copies_are_made_before(device):
    """Kernels then take what is held, and the copies the tensors' places."""
    x, y = tensors(2, 5, 7)
    words = (ctypes.c_uint64 * 7)()
    table = (ctypes.c_uint64 * 7)(*(ctypes.addressof(words) + 8 * n for n in range(7)))
    copies = types.SimpleNamespace(launch=(1, 2, ctypes.addressof(table)), place=lambda n: ctypes.addressof(words) + 8 * n)
    frames, arena = device.runner.calls(STREAM)
    made = [((3, 4), (4, 1), torch.float32)]
    call = CompiledCall(frames, arena, STREAM, guard_of((x, y)), 2, [WEIGHT, 0x2000], copies, made, EMPTY)
    for given in ((x, y), (y, x)):
        (result,) = call.call(given)
        (copied, _), *kernels = device.seen[-3:]
        assert copied[:2] == [one.data_ptr() for one in given]
        for passed, maps in kernels:
            assert passed[:3] == [WEIGHT, 0x2000, result.data_ptr()] and maps[0] == 0x2000 + 256
    assert call.call((x, x)) is None, "the guard is of two tensors"


class Device:
    """Of tensors of the processor's, which it calls a GPU."""

    type, index = "cuda", 0

    def __eq__(self, other):
        return True


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(7))

    def forward(self, x):
        return x * self.scale


def test_a_programs_later_calls_are_compiled(device, monkeypatch):
    for name, value in {"_cuda_getDevice": lambda: 0, "_cuda_getCurrentRawStream": lambda index: STREAM}.items():
        monkeypatch.setattr(torch._C, name, value, raising=False)
    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", EMPTY, raising=False)
    x, y = tensors(2, 5, 7)
    program = kitsune_mlir.compile(Scaled(), (x,))
    nothing = types.SimpleNamespace(pairs=())
    direct = DirectCall(program.signature, program.placed_weights, Device(), device.runner, tuple, nothing)
    weight = program.placed_weights[0].data_ptr()
    for _ in range(COMPILED_AFTER):
        direct((x,))
    assert not device.seen
    for given in (x, y, x, y, x):
        (result,) = direct((given,))
        assert result.shape == (5, 7)
    wanted = [[weight, one.data_ptr()] for one in (x, x, y, y, x, x)]
    assert [passed[:2] for passed, _ in device.seen] == wanted, "the first of each place were made in another way"
    launched = len(device.fake.launches)
    assert direct((x.double(),)) is None and len(device.fake.launches) == launched
    device.arena.enter(1 << 22)
    for _ in range(COMPILED_AFTER + 1):
        assert direct((x,))[0].shape == (5, 7)
    assert len(device.fake.launches) > launched
    direct((x,))
    assert direct((x,))[0].shape == (5, 7) and len(device.seen) >= 8
