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
from kitsune_mlir.runtime.call_memory import Memory
from kitsune_mlir.runtime.compiled_call import CompiledCall
from kitsune_mlir.runtime.cuda_runner import CudaRunner
from kitsune_mlir.runtime.direct import COMPILED_AFTER, DirectCall
from kitsune_mlir.runtime.results import Overwritten
from kitsune_mlir.runtime.tensor_guards import guard_of
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


def compiled(device, x, cuts=(), made=((3, 4), (4, 1)), memory=None, weight=WEIGHT):
    """A call of one tensor behind a weight, with one result."""
    frames, arena = device.runner.calls(STREAM)
    cut = reinterpret if cuts else None
    given = (frames, arena, STREAM, guard_of((x,)), 1, [weight], None, [(*made, torch.float32)], EMPTY)
    return CompiledCall(*given, cut, cuts, None, memory or Memory())


def made(call, *args):
    """The results of a call."""
    return call.call(args)


def tensors(count, *size):
    """So many that begin at multiples of 16 bytes."""
    return [torch.randn(*size, 4)[..., 0].contiguous() for _ in range(count)]


def test_results_are_new_and_kernels_get_their_pointers(device):
    x, y = tensors(2, 5, 7)
    call = compiled(device, x)
    for given in (x, x):
        (result,) = made(call, given)
        assert result.shape == (3, 4) and result.stride() == (4, 1) and result.dtype == torch.float32
        for passed, maps in device.seen[-2:]:
            assert passed[:3] == [WEIGHT, given.data_ptr(), result.data_ptr()]
            assert maps[0] == given.data_ptr() + 256
    (result,) = made(call, y)
    assert [passed[1] for passed, _ in device.seen[-2:]] == [y.data_ptr()] * 2
    assert all(maps[0] == y.data_ptr() + 256 for _, maps in device.seen[-2:])
    (again,) = call.call((x,))
    assert again.data_ptr() != result.data_ptr() and device.seen[-1][1][0] == x.data_ptr() + 256
    assert len(device.seen) == 8


def test_a_result_lies_where_a_tensor_does(device):
    """Kernels get its pointer; what is written may share memory with nothing, a weight or another part of itself."""
    x, y = tensors(2, 5, 7)
    weight = torch.zeros(16)
    call = compiled(device, x, memory=Memory.of([weight], (x,), {0: 1}, ()), weight=weight.data_ptr())
    for given in (x, y, x):
        assert made(call, given) == [None]
        for passed, maps in device.seen[-2:]:
            assert passed[:3] == [weight.data_ptr(), given.data_ptr(), given.data_ptr()] and maps[0] == given.data_ptr() + 256
    call = compiled(device, x, memory=Memory.of([x[1:]], (x,), {0: 1}, ()), weight=x[1:].data_ptr() // 16 * 16)
    assert made(call, x) is None and call.may_fit() and len(device.seen) == 6
    assert made(call, y) == [None]
    assert made(call, x) is None, "it was apart meanwhile"
    assert made(call, y) == [None]
    weights = compiled(device, x, memory=Memory.of([weight], (x,), {0: 0}, ()), weight=weight.data_ptr())
    assert made(weights, x) == [None] and device.seen[-1][0][:3] == [weight.data_ptr(), x.data_ptr(), weight.data_ptr()]


@pytest.mark.parametrize("place", ["first", "later", "behind", "before"])
def test_what_is_read_beside_an_input_is_there(device, place):
    """Columns 4 to 10 of rows of 16: kernels get the pointer of the rows."""
    whole = torch.zeros(6, 16)
    part = lambda begin: whole.flatten()[begin:].as_strided((5, 7), (16, 1))  # noqa: E731
    x = part(4)
    call = compiled(device, x, memory=Memory.of([torch.zeros(16)], (x,), {}, [(0, 4, 16, 5 * 64)]))
    begin = {"first": 4, "later": 20, "behind": 24, "before": 0}[place]
    given = part(begin)
    assert (made(call, given) is None) == (place in ("behind", "before"))
    for passed, maps in device.seen:
        assert passed[1] == whole.data_ptr() + 4 * (begin - 4) and maps[0] == passed[1] + 256


def test_results_are_cut(device):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x, [((2, 3), (4, 1))])
    (result,) = made(call, x)
    assert result.shape == (2, 3) and result.stride() == (4, 1) and not result._is_view()
    assert device.seen[-1][0][2] == result.data_ptr()
    result.fill_(1)


@pytest.mark.parametrize("other", ["dtype", "size", "strides", "count", "list", "place"])
def test_other_arguments_are_left_to_other_ways(device, other):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x)
    made(call, x)
    device.seen.clear()
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
    assert made(call, given[0], *given[1:]) is None if isinstance(given, tuple) else call.call(given) is None
    assert not device.seen and call.may_fit()
    assert call.call((x,)) is not None


def test_a_captured_stream_and_another_arena_are_left_to_other_ways(device):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x)
    made(call, x)
    device.seen.clear()
    device.capturing = 1
    assert made(call, x) is None and call.may_fit() and not device.seen
    device.capturing = 0
    assert call.call((x,)) is not None
    device.arena.enter(1 << 22)
    assert made(call, x) is None and not call.may_fit()


def test_a_kernel_that_is_not_launched_is_an_error_or_left_to_other_ways(device):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x)
    made(call, x)
    device.status = 719  # of the second kernel
    assert made(call, x) is None
    with pytest.raises(KitsuneError, match="launching kernel 1 of a call failed: CUDA_ERROR_LAUNCH_FAILED"):
        call.may_fit()
    device.seen.append(None)  # now of the first
    assert made(call, x) is None and call.may_fit()


def test_a_call_waits_for_another_ones_launches(device):
    x = tensors(1, 5, 7)[0]
    call = compiled(device, x)
    made(call, x)
    device.seen.clear(), device.threads.clear()
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
    made(call, x)
    held = (None, True, 0, x, x.dtype, torch.Tensor.data_ptr)
    call.call((x,))
    place = compiled(device, x, memory=Memory.of([torch.zeros(16)], (x,), {0: 1}, [(0, 0, 16, 4 * 35)]))
    made(place, x)
    before = [sys.getrefcount(one) for one in held]
    for _ in range(1000):
        call.call((x,))
        call.call((x, x))
        place.call((x,))
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


@pytest.fixture
def current(device, monkeypatch):
    """The device, which is PyTorch's current one."""
    for name, value in {"_cuda_getDevice": lambda: 0, "_cuda_getCurrentRawStream": lambda index: STREAM}.items():
        monkeypatch.setattr(torch._C, name, value, raising=False)
    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", EMPTY, raising=False)
    return device


class Changed(Scaled):
    def forward(self, x):
        x.mul_(self.scale)


def test_later_calls_that_write_to_arguments_are_compiled(current):
    """They count changes where the caller does not, and are made in another way where memory is shared."""
    x, y = tensors(2, 5, 7)
    model, whole = Changed(), torch.randn(64)
    model.scale.data = whole[16:23]
    program = kitsune_mlir.compile(model, (x,))
    assert program.placed_weights[0].data_ptr() == whole[16:].data_ptr()
    overwritten = Overwritten(program.signature)
    direct = DirectCall(program.signature, program.placed_weights, Device(), current.runner, list, overwritten)
    for given in (x,) * COMPILED_AFTER + (x, y, x):
        version = given._version
        assert direct((given,)) is not None and given._version == version + 1
    places = [[one.data_ptr()] * 2 for one in (x, y, x) for _ in range(2)]
    assert [passed[1:3] for passed, _ in current.seen] == places
    direct.counts, version = False, x._version
    assert direct((x,)) is not None and x._version == version and len(current.seen) == 8
    over = torch.as_strided(whole, (5, 7), (7, 1))
    assert direct((over,)) is None and len(current.seen) == 8


def test_a_programs_later_calls_are_compiled(current):
    device = current
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
    wanted = [[weight, one.data_ptr()] for one in (x, y, x, y, x) for _ in range(2)]
    assert [passed[:2] for passed, _ in device.seen] == wanted
    launched = len(device.fake.launches)
    assert direct((x.double(),)) is None and len(device.fake.launches) == launched
    device.arena.enter(1 << 22)
    for _ in range(COMPILED_AFTER + 1):
        assert direct((x,))[0].shape == (5, 7)
    assert len(device.fake.launches) > launched
    direct((x,))
    assert direct((x,))[0].shape == (5, 7) and len(device.seen) >= 8
