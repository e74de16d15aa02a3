"""Kernels of epochs (`codegen/gpu/kernel/epochs.py`), run on the processor block by block."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_mlir import ir

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.codegen.gpu.epochs import emit_epochs
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.epochs import EpochExecutor
from kitsune_mlir.dialects import new_context
from kitsune_mlir.errors import ArgumentError, PackageError, UnsupportedError
from kitsune_mlir.runtime.epoch import Epoch, Instance
from kitsune_mlir.runtime.epoch_kernel import EpochKernel
from kitsune_mlir.runtime.epoch_manifest import EpochManifest
from kitsune_mlir.runtime.program import Program
from test.emulators.epochs import Tensors, run_epoch
from test.emulators.kernel import Machine
from test.gpu.unassembled import unassembled
from test.numerics.compare import problem
from test.programs.emulated import compiled

SHAPE = (9, 20)


def scaled(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x * y, -1)


def waits(x: Tensor) -> Tensor:
    """Three stages, each of which waits for the one before."""
    return torch.cumsum(torch.cumsum(torch.sort(x, -1)[0], -1).T.contiguous() * 0.1, -1).T.contiguous() * 0.1


def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x @ (y.T @ x) * 0.1)


def add_(x: Tensor, y: Tensor) -> None:
    x.mul_(0.5).add_(y)


FUNCTIONS: list[tuple[Callable[..., Tensor | None], int]] = [(scaled, 2), (waits, 1), (product, 2), (add_, 2)]


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    return [compiled(function, [torch.randn(SHAPE) for _ in range(count)]) for function, count in FUNCTIONS]


@pytest.fixture
def emitted(programs: list[Program]) -> Iterator[EpochExecutor]:
    with new_context(), ir.Location.unknown():
        yield emit_epochs([p.ir("tiles") for p in programs], [f"{n}" for n in range(4)], KernelOptions(workers=4))


class Memory:
    """Tensors that instances read and write, with what they hold after the same work one after the other; who touched them."""

    def __init__(self, machine: Machine):
        self.held = Tensors(machine)
        self.values: list[Tensor] = []
        self.addresses: list[int] = []
        self.writers: list[int | None] = []
        self.readers: list[set[int]] = []

    def add(self, value: Tensor, writer: int | None = None, place: Tensor | None = None) -> int:
        """A tensor; where an instance makes it, its memory holds something else before."""
        self.values.append(value)
        self.addresses.append(self.held.add((value if writer is None else torch.full_like(value, 7.0)).numpy()))
        self.writers.append(writer)
        self.readers.append(set())
        return self.addresses[-1]

    def check(self) -> None:
        for value, address in zip(self.values, self.addresses, strict=True):
            found = torch.from_numpy(self.held.read(address, value.numpy()))
            assert problem(found, value.double(), value) is None


def random_instances(memory: Memory, draw: random.Random, count: int) -> list[Instance]:
    made: list[Instance] = []
    for number in range(count):
        which = draw.randrange(len(FUNCTIONS))
        function, arity = FUNCTIONS[which]
        chosen = draw.sample(range(len(memory.values)), arity)
        given = [memory.values[n] for n in chosen]
        pointers = [memory.addresses[n] for n in chosen]
        upstream = {memory.writers[n] for n in chosen}
        if function is add_:
            first = chosen[0]
            upstream |= memory.readers[first]
            memory.values[first] = given[0].clone()
            add_(memory.values[first], given[1])
            pointers.append(pointers[0])
            memory.writers[first], memory.readers[first] = number, set()
            memory.readers[chosen[1]].add(number)
        else:
            for n in chosen:
                memory.readers[n].add(number)
            value = function(*given)
            assert value is not None
            pointers.append(memory.add(value, number))
        made.append(Instance(which, pointers, sorted(upstream - {None, number})))  # pyright: ignore
    return made


@pytest.mark.parametrize("seed, blocks, ready_first", [(0, 1, False), (1, 3, True)])
def test_an_epoch_does_what_its_instances_do_one_after_the_other(
    emitted: EpochExecutor, seed: int, blocks: int, ready_first: bool
):
    machine = Machine()
    memory, draw = Memory(machine), random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(3):
        memory.add(torch.randn(SHAPE))
    instances = random_instances(memory, draw, 7)
    order = run_epoch(machine, emitted.module.operation, emitted.manifest, instances, blocks, ready_first)
    memory.check()
    tickets = [ticket for _, ticket in order]
    assert tickets == list(range(len(tickets))) and {block for block, _ in order} == set(range(blocks))


@pytest.mark.parametrize("dtype, loops", [(torch.bool, True), (torch.int32, False), (torch.int64, True)])
def test_a_predicate_of_an_earlier_instance_is_looked_at_on_the_device(dtype: torch.dtype, loops: bool):
    """Whether a number was above 0 says whether the next instance adds to it; a skipped one is as good as ended."""
    positive = compiled(lambda x: (x.sum() > 0).to(dtype), (torch.ones(4),))
    grow = compiled(lambda x: (x.add_(1), None)[1], (torch.ones(4),))
    with new_context(), ir.Location.unknown():
        made = emit_epochs([positive.ir("tiles"), grow.ir("tiles")], ["a", "b"], KernelOptions(workers=2), loops)
        for start, wanted in ((1.0, 3.0), (-1.0, -1.0)):
            machine = Machine()
            held = Tensors(machine)
            x, flag = held.add(np.full(4, start, np.float32)), held.add(np.full(1, -1, np.int64))
            size = torch.empty(0, dtype=dtype).element_size()
            instances = [Instance(0, [x, flag])]
            for _ in range(2):
                instances.append(Instance(1, [x, x], [len(instances) - 1], flag, size))
            run_epoch(machine, made.module.operation, made.manifest, instances, 2)
            assert (held.read(x, np.zeros(4, np.float32)) == wanted).all()


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_loop_whose_body_changes_its_condition_ends_by_itself(blocks: int):
    """The flag falls in the second of six stages, before others of the same run begin; the runs behind it end at once."""

    def body(x: Tensor, flag: Tensor) -> None:
        y = torch.cumsum(torch.sort(x, -1)[0], -1)
        flag.copy_((torch.cumsum(x * 1.0, -1)[-1:, -1] < 9).int())
        x.copy_(torch.cumsum(torch.cumsum(y.T.contiguous(), -1).T, -1) * 0.2)

    x, flag, most = torch.rand(3, 7), torch.ones(1, dtype=torch.int32), 8
    program = compiled(body, (x, flag))
    with new_context(), ir.Location.unknown():
        made = emit_epochs([program.ir("tiles")], ["a"], KernelOptions(workers=2), loops=True)
        machine = Machine()
        held = Tensors(machine)
        places = [held.add(x.numpy()), held.add(flag.numpy())]
        instances = [Instance(0, [*places, *places], [n - 1] if n else [], places[1], 4) for n in range(most)]
        run_epoch(machine, made.module.operation, made.manifest, instances, blocks)
    assert len(made.manifest.programs[0].steps) > 3
    count = 0
    while flag and count < most:
        body(x, flag)
        count += 1
    assert 1 < count < most - 1  # it ended by itself, on the way
    assert not held.read(places[1], flag.numpy()).any()
    assert problem(torch.from_numpy(held.read(places[0], x.numpy())), x.double(), x) is None


def test_the_manifest_survives_its_text(emitted: EpochExecutor):
    assert EpochManifest.from_json(emitted.manifest.to_json()) == emitted.manifest
    steps = [step for program in emitted.manifest.programs for step in program.steps]
    assert [step.step for step in steps] == list(range(len(steps)))
    assert all(program.steps[0].root for program in emitted.manifest.programs)
    assert not emitted.manifest.programs[1].steps[-1].root


def test_whoever_reads_an_input_looks_for_what_its_run_depends_on():
    """The second task waits for the first, and some of its threads read y meanwhile."""

    def both(x: Tensor, y: Tensor) -> Tensor:
        return torch.cumsum(torch.cumsum(x, -1).T.contiguous(), -1) + y

    program = compiled(both, (torch.ones(9, 20), torch.ones(20, 9)))
    with new_context(), ir.Location.unknown():
        (made,) = emit_epochs([program.ir("tiles")], ["a"], KernelOptions()).manifest.programs
    assert len(made.steps) > 1 and made.steps[-1].root


def test_inputs_are_not_read_through_the_read_only_cache(programs: list[Program]):
    with new_context(), ir.Location.unknown():
        plain = emit_epochs([programs[0].ir("tiles")], ["a"], KernelOptions())
        text = str(plain.module)
    assert "ld.global.nc" not in text
    left = [line for line in text.splitlines() if "llvm.load" in line and "invariant" in line]
    assert left and all("i64" in line or "ptr<4>" in line for line in left)


def test_rings_are_declined():
    model = Function(lambda x, y: torch.softmax(torch.relu(x @ y), -1) @ y)
    args = torch.randn(512, 512), torch.randn(512, 512)
    with unassembled():
        program = kitsune_mlir.compile(model, args, target="sm_90a", options={"schedule": "spatial"})
    with new_context(), ir.Location.unknown(), pytest.raises(UnsupportedError, match="spatial"):
        emit_epochs([program.ir("tiles")], ["a"], KernelOptions())


def test_programs_of_one_kernel_are_for_one_gpu(programs: list[Program]):
    host = kitsune_mlir.compile(Function(torch.relu), (torch.randn(3),), target="host")
    for wrong in ([], [host], [programs[0], host]):
        with pytest.raises(ArgumentError):
            kitsune_mlir.epoch_kernel(wrong)


def test_a_kernel_is_saved_and_knows_its_programs(programs: list[Program], tmp_path: Path):
    with unassembled():
        kernel = kitsune_mlir.epoch_kernel(programs[:2])
    assert [kernel.number_of(program) for program in programs[:3]] == [0, 1, None]
    kernel.save(tmp_path / "kernel")
    found = EpochKernel.load(tmp_path / "kernel")
    assert found.manifest == kernel.manifest and found.ptx == kernel.ptx and found.number_of(programs[1]) == 1
    (tmp_path / "other").write_bytes(b"PK nothing")
    with pytest.raises(PackageError):
        EpochKernel.load(tmp_path / "other")


def test_what_an_epoch_is_given_is_checked(emitted: EpochExecutor):
    epoch = Epoch(emitted.manifest)
    for wrong in (
        Instance(0, [1, 2]),
        Instance(0, [1, 2, 3], [0]),
        Instance(0, [1, 2, 3], [], predicate=8, predicate_bytes=2),
    ):
        with pytest.raises(ArgumentError):
            epoch.append(wrong)
    assert len(epoch) == epoch.tickets == 0


def test_a_window_on_the_device_needs_a_kernel():
    for given in ({"back_end": "device"}, {"back_end": "threads", "kernel": object()}, {"in_order": True}):
        with pytest.raises(ArgumentError, match="kernel|in_order is of the back end 'device', not of 'auto'"):
            kitsune_mlir.Window(**given)


def test_a_warp_is_together_when_its_block_meets(programs: list[Program]):
    """Thread 0 alone stores the ticket; a block barrier that it meets apart from its warp is undefined."""
    with unassembled():
        text = kitsune_mlir.epoch_kernel(programs[:1]).ptx
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    stored = next(n for n, line in enumerate(lines) if line.startswith("st.shared.b32"))
    met = next(n for n, line in enumerate(lines[stored:], stored) if line.startswith(("bar.sync", "barrier.sync")))
    assert lines[met - 1].startswith("bar.warp.sync")
