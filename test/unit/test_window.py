"""Windows over programs (kitsune_mlir/windows): every order of issue gives what running one after the other gives."""

import random
import threading
import time
import weakref

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.windows import pool
from kitsune_mlir.windows.hazards import BOTH, READ, WRITE
from kitsune_mlir.windows.streams import Streams
from kitsune_mlir.windows.task import Call, Task, extent
from kitsune_mlir.windows.window import Window
from test.oracles.window_streams import run_stream


class Accumulate(torch.nn.Module):
    """Adds to a buffer in place, and gives the product with it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return torch.relu(x @ self.total)


@pytest.fixture(scope="module")
def program() -> kitsune_mlir.Program:
    return kitsune_mlir.compile(lambda x, y: torch.tanh(x @ y + x), (torch.randn(8, 8), torch.randn(8, 8)), target="host")


@pytest.mark.parametrize("threads", [0, 2])
def test_chains_and_fans(program: kitsune_mlir.Program, threads: int) -> None:
    draw = random.Random()
    values = [torch.randn(8, 8) for _ in range(4)]
    expected = [value.clone() for value in values]
    with kitsune_mlir.Window(size=8, threads=threads) as window:
        appended = []
        for _ in range(200):
            a, b = draw.randrange(len(values)), draw.randrange(len(values))
            appended.append(window.append(program, (values[a], values[b])))
            values.append(appended[-1].output)
            expected.append(program(expected[a], expected[b]))
            assert len(window) <= 8
        assert appended[17].result().equal(expected[21])
    assert len(window) == 0 and all(one.done for one in appended)
    assert all(value.equal(wanted) for value, wanted in zip(values, expected, strict=True))


@pytest.mark.parametrize("threads", [0, 2])
def test_changes_in_place_and_the_callers_memory(program: kitsune_mlir.Program, threads: int) -> None:
    model, same = Accumulate(), Accumulate()
    changing = kitsune_mlir.compile(model, (torch.randn(8, 8),), target="host")
    into, wanted = torch.zeros(8, 8), torch.zeros(8, 8)
    with kitsune_mlir.Window(threads=threads) as window:
        for _ in range(30):
            x = torch.randn(8, 8)
            y = window.append(changing, (x,))
            window.append(program, (y.output, x), into=into)  # overwrites what the last one reads
            product = same(x)
            wanted = torch.tanh(product @ x + product)
    torch.testing.assert_close(model.total, same.total)
    torch.testing.assert_close(into, wanted, rtol=1e-4, atol=1e-5)


def test_reading_runs_what_it_depends_on_and_no_more(program: kitsune_mlir.Program) -> None:
    window = Window(threads=0)
    x = torch.randn(8, 8)
    first, other = window.append(program, (x, x)), window.append(program, (x, x))
    second = window.append(program, (first, x))
    assert not first.done
    second.result()
    assert first.done and second.done and not other.done
    window.flush()
    assert other.done


def failing(*tensors: torch.Tensor, error: Exception | None = None) -> Call:
    """Work that reads all tensors but the last, and writes that one."""

    def run(stream: int) -> None:
        if error is not None:
            raise error
        tensors[-1].copy_(sum(tensors[:-1], torch.ones(())))

    ranges = [*(extent(t, READ) for t in tensors[:-1]), extent(tensors[-1], WRITE)]
    return Call(run, ranges, tensors[-1], tensors, tensors[-1:])


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("early", [True, False])
def test_errors_reach_those_who_read_and_nobody_else(threads: int, early: bool) -> None:
    window = Window(threads=threads)
    a, b, c, d = (torch.zeros(4) for _ in range(4))
    error = ValueError("no such row")
    broken = window.append_call(failing(a, b, error=error))
    if early:
        window.flush()
    reader = window.append_call(failing(b, c))
    apart = window.append_call(failing(a, d))
    over = window.append_call(failing(a, b))  # writes what the failed one was to write
    after = window.append_call(failing(b, c))
    window.wait(apart), window.wait(over), window.wait(after)
    assert c.tolist() == [2.0] * 4
    for task in (broken, reader):
        with pytest.raises(ValueError, match="no such row"):
            window.wait(task)
    window.append_call(failing(a, d, error=error))
    window.flush()
    with pytest.raises(ValueError, match="no such row"):
        window.wait_for([extent(d[1:2], READ)])
    place = d.data_ptr()
    window.wait_for([extent(a, READ), (place, place + 16, WRITE)])
    window.wait_for([extent(d, READ)])  # it was overwritten


def test_freed_memory_is_not_lost() -> None:
    window = Window(threads=0)
    memory = torch.zeros(8)
    window.append_call(failing(torch.zeros(4), memory[:4], error=ValueError("lost")))
    window.flush()
    low = memory.data_ptr()
    del memory
    window.wait_for([(low, low + 16, READ)])


@pytest.mark.parametrize("threads", [0, 3])
def test_random_streams(threads: int) -> None:
    """Views that overlap, in-place changes, unknown accesses: as one after the other, whichever values are read between."""
    draw = random.Random()
    for _ in range(15):
        window = Window(size=draw.choice((1, 3, 16)), threads=threads)
        run_stream(draw, window, lambda window, one, seen: window.wait(one))


def test_threads_end_by_themselves(program: kitsune_mlir.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_SECONDS", 0.01)
    before = threading.active_count()
    window = Window(threads=2)
    x = torch.randn(8, 8)
    for _ in range(3):
        window.append(program, (x, x))
    window.flush()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
    torch.testing.assert_close(window.append(program, (x, x)).result(), torch.tanh(x @ x + x), rtol=1e-4, atol=1e-5)


def test_many_threads_append(program: kitsune_mlir.Program) -> None:
    window, problems = Window(size=4, threads=1), []

    def work() -> None:
        x = torch.randn(8, 8)
        wanted = torch.tanh(x @ x + x)
        for _ in range(50):
            if not torch.allclose(window.append(program, (x, x)).result(), wanted, rtol=1e-4, atol=1e-5):
                problems.append(x)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not problems


def test_arguments_that_do_not_fit_are_the_readers_errors(program: kitsune_mlir.Program) -> None:
    window = Window(threads=0)
    wrong = window.append(program, (torch.randn(8, 9), torch.randn(8, 8)))
    strided = window.append(program, (torch.randn(8, 8).T, torch.randn(9, 8)[1:]))
    with pytest.raises(ArgumentError, match=r"input '.*' has shape \[8, 9\]"):
        wrong.result()
    assert strided.result().shape == (8, 8)
    with pytest.raises(ArgumentError):
        window.append(program, (torch.randn(8, 8),))
    with pytest.raises(ArgumentError, match="no back end 'queue'"):
        Window(back_end="queue")
    with pytest.raises(ArgumentError, match="no back end 'streams'"):
        Window(back_end="streams").append(program, (torch.randn(8, 8), torch.randn(8, 8)))


class Event:
    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


class Stream:
    """A stream whose work is done later, in any order that streams and events allow."""

    def __init__(self) -> None:
        self.work: list = []
        self.cuda_stream = id(self)

    def record_event(self) -> Event:
        event = Event()
        self.work.append(lambda: setattr(event, "passed", True) or True)
        return event

    def wait_event(self, event: Event) -> None:
        self.work.append(lambda: event.passed)


class Device:
    """Streams that are stepped at random."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.own = Stream()
        self.streams = [self.own]

    def make(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    def step(self) -> bool:
        """Try one step of some stream that has work; whether there is any left."""
        busy = [stream for stream in self.streams if stream.work]
        if busy and (stream := self.draw.choice(busy)).work[0]():
            stream.work.pop(0)
        return bool(busy)

    def until(self, stream: Stream) -> None:
        event = stream.record_event()
        for _ in range(1_000_000):
            if event.passed:
                return
            self.step()
        raise AssertionError("the streams hang")


class OnDevice:
    """A tensor that may be used on streams which it was noted for."""

    is_cuda = True

    def __init__(self) -> None:
        self.noted: set[int] = set()

    def record_stream(self, stream: Stream) -> None:
        self.noted.add(stream.cuda_stream)


def test_streams_and_events() -> None:
    """The back end of streams, on streams that run as late and in as odd an order as they may."""
    for _ in range(60):
        run_on_streams(random.Random(random.randrange(1 << 30)))


def run_on_streams(draw: random.Random) -> None:
    device = Device(draw)
    window = Window(size=draw.choice((1, 2, 5, 32)))
    back_end = window._back_end = Streams(window._hazards, window._ended, device.make, lambda: device.own, 3)
    memory, same, number = [0] * 12, [0] * 12, 0
    for step in range(60):
        low, high, place = draw.randrange(12), draw.randrange(1, 13), draw.randrange(12)
        tensor = OnDevice()

        def work(store: list[int], low=low, high=high, place=place, step=step) -> bool:
            store[place] = sum(store[low:high]) % 1009 + step
            return True

        def run(handle: int, work=work, tensor=tensor) -> None:
            assert handle in tensor.noted
            next(s for s in device.streams if s.cuda_stream == handle).work.append(lambda: work(memory))

        window.append_call(Call(run, [(low, high, READ), (place, place + 1, WRITE)], None, [tensor], []))
        work(same)
        for _ in range(draw.choice((0, 0, 0, 20))):
            device.step()
        if draw.random() < 0.1:
            number = draw.randrange(12)
            window.wait_for([(number, number + 1, READ)])
            device.until(device.own)
            assert memory[number] == same[number]
        if draw.random() < 0.1:  # the caller's own work, behind what it reads and overwrites
            number = draw.randrange(12)
            window.wait_for([(number, number + 1, BOTH)])
            device.own.work.append(lambda number=number: memory.__setitem__(number, 7) or True)
            same[number] = 7
    back_end.flush()
    device.until(device.own)
    assert memory == same


def test_the_papers_form_holds_tensors_until_its_stream_is_past_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller has let go is handed out again at once, on the caller's stream."""
    found = []

    class OneStream:
        cuda_stream = 1

        def wait_event(self, event: object) -> None: ...

        def synchronize(self) -> None:
            found.append(held() is not None)

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: OneStream())
    tensor = torch.zeros(3)
    held = weakref.ref(tensor)
    task = Task(Call(lambda stream: None, [extent(tensor, WRITE)], None, [tensor], [tensor]), 0, ())
    del tensor
    pool.synchronized_lane("cuda:0")(task)
    assert found == [True] and held() is None
