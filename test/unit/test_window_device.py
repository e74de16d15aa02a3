"""The back end on the device (`windows/device.py`), with a kernel that is played on the host: instances in any order that their
dependences allow."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.epoch import Epoch
from kitsune_mlir.runtime.epoch_check import check_epoch
from kitsune_mlir.runtime.epoch_manifest import EpochManifest, EpochProgram, EpochStep
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.windows.device import Epochs
from kitsune_mlir.windows.window import Window

BASE, ARENA = 1 << 40, 1 << 41


def add(x: Tensor, y: Tensor) -> Tensor:
    return x * 0.5 + y


def grow_(x: Tensor) -> None:
    x.mul_(1.5).add_(0.25)


def positive(x: Tensor) -> Tensor:
    return x.sum() > 4


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    x, y = torch.zeros(3, 5), torch.zeros(3, 5)
    made = {"add": (add, (x, y)), "grow": (grow_, (x,)), "positive": (positive, (x,))}
    return {name: kitsune_mlir.compile(Function(f), args, target="host") for name, (f, args) in made.items()}


class Stream:
    """A stream: all that is recorded is over."""

    cuda_stream = 0

    def record_event(self) -> Stream:
        return self

    def wait_event(self, event: object) -> None:
        assert event is not None


class Played:
    """A kernel whose launches run the instances at once, in a random order among those that their upstream allows."""

    def __init__(self, programs: list[Program], draw: random.Random, pieces: int = 1, loops: bool = False):
        self.programs, self.draw, self.broken, self.epochs = programs, draw, False, list[int]()
        steps, found, pointers = iter(range(len(programs))), [], 0
        for number, program in enumerate(programs):
            signature = program.signature
            inputs, results = len(signature.weights) + len(signature.inputs), len(signature.results)
            step = next(steps)
            sizes = (4,) * inputs, (4,) * results
            record = EpochProgram(
                *(f"{number}", pointers, 0, step, step * pieces, *sizes, 1, (), 1 + loops, 0, step, 1),
                steps=(EpochStep(step, "a", "b", pieces, True),),
            )
            found.append(record)
            pointers += record.arguments
        self.manifest = EpochManifest("epoch", "", 32, 0, 0, 1, tuple(found), loops=loops)

    def number_of(self, program: Program) -> int | None:
        return next((n for n, one in enumerate(self.programs) if one is program), None)

    def prepare(self, epoch: Epoch, stream: int) -> Played:
        check_epoch(epoch, epoch.pack(BASE, ARENA, lambda parameter, address: b""), BASE, ARENA)
        self.epoch = epoch
        return self

    def run(self) -> None:
        if self.broken:
            raise KitsuneError("no launch")
        self.epochs.append(len(self.epoch))
        left, done = set(range(len(self.epoch))), set[int]()
        while left:
            ready = [n for n in sorted(left) if done.issuperset(self.epoch.instances[n].upstream)]
            number = self.draw.choice(ready)
            instance = self.epoch.instances[number]
            if not instance.predicate or self._holds(instance.predicate, instance.predicate_bytes):
                direct = self.programs[instance.program].direct
                assert direct is not None
                direct.run(tuple(instance.pointers), 0)
            left.remove(number)
            done.add(number)

    def _holds(self, address: int, size: int) -> bool:
        import ctypes

        return any(ctypes.string_at(address, size))


def opened(kernel: Any, size: int, ready_first: bool = False) -> tuple[Window, Epochs]:
    window = Window(size=size, threads=0)
    stream = Stream()
    back_end = Epochs(window._hazards, window._ended, kernel, kernel, lambda: stream, lambda: 0, ready_first)
    window._back_end, window._device = back_end, "cpu"
    return window, back_end


def both(make: Callable[[], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    values = make()
    return values, [value.clone() for value in values]


@pytest.mark.parametrize("size", [1, 3, 64])
def test_random_windows_are_as_one_after_the_other(programs: dict[str, Program], size: int):
    for seed in range(10):
        draw = random.Random(seed)
        kernel = Played([programs["add"], programs["grow"]], draw)  # "positive" is run by itself
        window, back_end = opened(kernel, size, ready_first=seed % 2 == 1)
        torch.manual_seed(seed)
        values, same = both(lambda: [torch.randn(3, 5) for _ in range(4)])
        count = 0
        for _ in range(40):
            a, b = draw.sample(range(4), 2)
            kind = draw.choice(("add", "add", "grow", "when", "read"))
            if kind == "add":
                values[a], same[a] = window.append(programs["add"], (values[a], values[b])).output, add(same[a], same[b])
            elif kind == "grow":
                window.append(programs["grow"], (values[a],))
                grow_(same[a])
            elif kind == "when":
                window.append(programs["grow"], (values[a],), when=window.append(programs["positive"], (values[b],)))
                count += 1
                if positive(same[b]):
                    grow_(same[a])
            else:
                assert torch.equal(window.append(programs["add"], (values[a], values[b])).result(), add(same[a], same[b]))
        window.flush()
        assert all(torch.equal(value, twin) for value, twin in zip(values, same, strict=True))
        assert back_end.alone == count and max(kernel.epochs) <= size and len(window) == 0


def test_a_launch_that_fails_is_every_readers_error(programs: dict[str, Program]):
    kernel = Played([programs["add"]], random.Random(0))
    window, _ = opened(kernel, 8)
    x, y = torch.ones(3, 5), torch.ones(3, 5)
    kernel.broken = True
    first = window.append(programs["add"], (x, y))
    second = window.append(programs["add"], (first, y))
    with pytest.raises(KitsuneError, match="no launch"):
        second.result()
    kernel.broken = False
    with pytest.raises(KitsuneError, match="no launch"):
        window.append(programs["add"], (first, y)).result()
    assert torch.equal(window.append(programs["add"], (x, y)).result(), add(x, y))


def test_a_condition_is_one_number(programs: dict[str, Program]):
    window, _ = opened(Played([programs["grow"]], random.Random(0)), 8)
    for wrong in (torch.ones(2), torch.ones(1, dtype=torch.complex64), 1):
        with pytest.raises(kitsune_mlir.errors.ArgumentError, match="a tensor of one number"):
            window.append(programs["grow"], (torch.ones(3, 5),), when=wrong)
    x = torch.ones(3, 5)
    for flag in (
        torch.tensor(0.0),
        torch.tensor(-0.0),
        torch.tensor(0),
        torch.tensor(False),
        torch.tensor(0, dtype=torch.int16),
    ):
        window.append(programs["grow"], (x,), when=flag)
    window.flush()
    assert (x == 1).all()
    window.append(programs["grow"], (x,), when=torch.tensor(1 << 40))
    window.flush()
    assert (x == 1.75).all()


def zero_(flag: Tensor) -> None:
    flag.mul_(0)


def until_(x: Tensor, flag: Tensor) -> None:
    """Adds until the sum is large."""
    x.add_(1)
    flag.copy_((x.sum() < 40).int())


@pytest.mark.parametrize("pieces, loops", [(1, False), (3, False), (3, True)])
def test_all_pieces_of_an_entry_see_the_same_condition(programs: dict[str, Program], pieces: int, loops: bool):
    """A piece looks at it when it begins, unless the kernel decides once: nobody may have changed it meanwhile, neither a later
    entry nor another piece."""
    flag = torch.ones(1, dtype=torch.int32)
    zero = kitsune_mlir.compile(Function(zero_), (flag,), target="host")
    until = kitsune_mlir.compile(Function(until_), (torch.zeros(3, 5), flag), target="host")
    kernel = Played([programs["grow"], zero, until], random.Random(0), pieces, loops)
    window, back_end = opened(kernel, 64)
    x, y = torch.zeros(3, 5), torch.ones(3, 5)
    window.append(programs["grow"], (x,), when=flag)
    window.append(zero, (flag,))
    window.append(programs["grow"], (y,), when=flag)
    window.flush()
    assert (x == 0.25).all() and (y == 1).all() and kernel.epochs == ([1, 2] if pieces > 1 and not loops else [3])
    flag.fill_(1)
    for _ in range(6):
        window.append(until, (x, flag), when=flag)
    window.flush()
    assert (x == 3.25).all() and not flag and back_end.alone == (6 if pieces > 1 and not loops else 0)
