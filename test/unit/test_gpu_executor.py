"""The executor: what it reads of a program, how it hands out tiles, waits and posts, and what a launch passes."""

import numpy as np
import pytest
import torch
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.to_llvm import finalize, to_assembly, to_text
from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.engines.generic.engine import GenericEngine
from kitsune_mlir.codegen.gpu.engines.registry import choose
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.codegen.gpu.lower import replace_program
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView, program_functions
from kitsune_mlir.errors import CompileError, TargetError, UnsupportedError
from kitsune_mlir.runtime.manifest import COUNTERS
from kitsune_mlir.runtime.manifest_check import read_manifest
from test.emulators.arithmetic import DTYPES
from test.emulators.block import Space
from test.emulators.kernel import Machine, launch
from test.gpu import cases, cases_bodies, cases_layers
from test.gpu.run_programs import error_of, make_input
from test.gpu.tile_text import buffer, offset, program, rows, semaphore, store_rows, task, wait_one
from test.rotation import in_turn

ONE = ((((8, 4), "f32", "normal"),), (((8, 4), "f32"),))


class Emulated:
    """A program's kernel with its memory, as the runtime sets it up."""

    def __init__(self, case, blocks: int, debug: bool = False):
        self.case, self.blocks = case, blocks
        self.context = new_context()
        with self.context, ir.Location.unknown():
            self.module = ir.Module.parse(case.text)
            emitted = replace_program(program_functions(self.module.operation)[0], KernelOptions(debug=debug))
            self.module.operation.verify()
        self.op, self.manifest = emitted.op, emitted.manifest
        self.inputs = [make_input(torch, torch.Generator().manual_seed(1), *spec) for spec in case.inputs]
        self.machine = Machine()
        sizes = [*self.manifest.input_bytes, *self.manifest.result_bytes, self.manifest.arena_bytes]
        spaces = [Space(size, checked=False) for size in sizes]
        for space, tensor in zip(spaces, self.inputs, strict=False):
            data = (tensor if tensor.dtype != torch.bool else tensor.to(torch.uint8)).contiguous().view(torch.uint8)
            space.data[: data.numel()] = data.reshape(-1).numpy()
        self.workspace = Space(self.manifest.workspace_bytes(blocks), checked=False)
        self.workspace.data[: self.manifest.cleared_bytes] = 0
        self.results = spaces[len(self.inputs) : -1]
        self.pointers = [self.machine.add(space) for space in (*spaces, self.workspace)]

    def error(self) -> float:
        """Launch, and compare the results; they are poisoned before."""
        for space in self.results:
            space.data[:] = 0xFF
        launch(self.machine, self.op, self.manifest, self.pointers, self.blocks)
        errors = []
        for space, (shape, dtype), want in zip(
            self.results, self.case.results, self.case.reference(torch, *self.inputs), strict=True
        ):
            data = space.data[: int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize].view(DTYPES[dtype]).reshape(shape)
            errors.append(error_of(torch, torch.from_numpy(data.astype(np.float64) if dtype == "bf16" else data.copy()), want))
        return max(errors)


@pytest.mark.rotated(6)
@pytest.mark.parametrize("blocks", [1, 3, 8])
@pytest.mark.parametrize(
    "make",
    [
        lambda: cases.two_stages(20, 8, 5, 4),
        lambda: cases.ladder(3, 64, 4, 8),
        lambda: cases_bodies.everybody_waits(16, 4, 4, 3),
        lambda: cases.gather_scatter(35, 6, 3, 16),
        lambda: cases_layers.layers(11, 16, 8, 4),
    ],
    ids=["two_stages", "ladder", "everybody_waits", "gather_scatter", "layers"],
)
def test_kernel_on_any_number_of_blocks_and_again(make, blocks):
    """Right on the first launch and on later ones, with no clearing in between."""
    emulated = Emulated(make(), blocks)
    for launched in range(3):
        assert emulated.error() <= emulated.case.tolerance
        words = emulated.workspace.data.view(np.int32)
        assert (words[:blocks] == (launched + 1) % 2).all()
        # The array that the next run counts in is clear.
        start = (COUNTERS + (launched + 1) % 2 * emulated.manifest.counter_bytes) // 4
        assert not words[start : start + emulated.manifest.counter_bytes // 4].any()


def test_a_wait_without_a_post_is_found_by_the_emulator(monkeypatch):
    from test.emulators import kernel as kernel_emulator

    monkeypatch.setattr(kernel_emulator, "SECONDS", 0.2)
    case = cases.two_stages(20, 8, 5, 4)
    text = "\n".join(line for line in case.text.splitlines() if "kitsune.post" not in line)
    with pytest.raises(TimeoutError):
        Emulated(cases.Case(case.name, text, case.inputs, case.results, case.reference), 2).error()


def parsed(text: str) -> ir.Module:
    return ir.Module.parse(text)


def copying(extra: str = "", engine: str = "generic") -> str:
    """A program of one task that copies rows through the arena and back in a second."""
    body = buffer("t", 256, (8, 4), "f32", 512) + semaphore("a", 3) + semaphore("s", 2) + extra
    load = offset(4) + rows("x", "x0", (8, 4), 4, "f32")
    body += task(
        "first",
        [2],
        load + store_rows("x", "t", (8, 4), 4, "f32") + '    "kitsune.post"(%s, %i) : (!kitsune.semaphore, index) -> ()\n',
        engine,
    )
    load = offset(4) + wait_one("s") + rows("x", "t", (8, 4), 4, "f32")
    body += task("second", [2], load + store_rows("x", "y0", (8, 4), 4, "f32"))
    return program("copying", *ONE, body, 512)


def test_a_program_is_read():
    with new_context(), ir.Location.unknown():
        module = parsed(copying())
        view = ProgramView(module.body.operations[0].operation)
        assert (view.name, view.inputs, view.results, view.slots) == ("copying", 1, 1, 5)
        first, second = view.tasks
        assert (first.name, first.grid, first.tiles, first.number, first.requested_engine) == ("first", (2,), 2, 0, "generic")
        (load,), (store,) = first.loads, first.stores
        assert (load.buffer.role, load.buffer.argument, load.sizes, load.whole) == ("input", 0, (4, 4), False)
        assert load.offsets[1] == 0 and isinstance(load.offsets[0], ir.Value)
        assert (store.buffer.role, store.buffer.offset, store.buffer.bytes) == ("arena", 256, 128)
        assert store.buffer.strides == (4, 1) and store.buffer.memory == (2, 256)
        assert store.tensor == load.tensor and first.load_of(load.tensor) is load
        assert [op.name for op in first.body] == ["arith.constant", "arith.muli", "arith.constant", "arith.addi"]
        assert first.work() == []
        (wait,), (post,) = second.waits, first.posts
        assert wait.semaphore is post.semaphore and (wait.semaphore.first, wait.semaphore.slots, wait.count) == (3, 2, 1)
        assert [b.role for b in second.buffers] == ["arena", "result"]


def test_what_the_contract_does_not_have_is_named():
    with new_context(), ir.Location.unknown():
        module = parsed(copying("  %alloc = memref.alloc() : memref<4xf32>\n"))
        with pytest.raises(UnsupportedError, match=r"'memref.alloc'.*views, constants, semaphores and tasks"):
            ProgramView(module.body.operations[0].operation)


def test_manifest_is_written_and_read():
    with new_context(), ir.Location.unknown():
        module = parsed(copying())
        manifest = build(ProgramView(module.body.operations[0].operation), "copying").manifest
    assert read_manifest(manifest.to_json()) == manifest
    assert [p.kind for p in manifest.parameters] == ["input", "result", "arena", "workspace"]
    assert (manifest.input_bytes, manifest.result_bytes, manifest.arena_bytes) == ((128,), (128,), 512)
    assert (manifest.tiles, manifest.slots, manifest.counter_bytes) == (4, 5, 256)
    assert manifest.workspace_bytes(7) == manifest.cleared_bytes + 7 * manifest.scratch_bytes
    for text in ("[]", '{"format": 1}', manifest.to_json().replace('"format": 1', '"format": 99')):
        with pytest.raises(ValueError):
            read_manifest(text)


class Greedy(Engine):
    """Asks for whatever it is told to."""

    name = "greedy"

    def __init__(self, **wanted):
        self.wanted = wanted

    def plan(self, task, limits):
        return Plan(self.name, task, **self.wanted)

    def emit_tile(self, plan, tile):
        tile.wait()
        tile.finish()


class Modest(Engine):
    name = "modest"

    def plan(self, task, limits):
        return Decline(self.name, "it is too big")


def test_engines_are_tried_in_order_and_reasons_kept():
    with new_context(), ir.Location.unknown():
        module = parsed(copying(engine="modest"))
        view = ProgramView(module.body.operations[0].operation)
        engines = {"modest": Modest(), "generic": GenericEngine()}
        plan, declined = choose(view.tasks[0], KernelOptions(), engines)
        assert plan.engine == "generic" and declined == (Decline("modest", "it is too big"),)
        with pytest.raises(CompileError, match="no engine takes task 'first'.*modest: it is too big"):
            choose(view.tasks[0], KernelOptions(), {"modest": Modest()})


@pytest.mark.parametrize(
    "wanted, message",
    [
        ({"threads": 100}, "multiple of 32"),
        ({"threads": 2048}, "at most 1024"),
        ({"shared_bytes": 300000}, "300000 bytes of shared memory"),
        ({"barriers": (1,) * 600}, "wants 600 mbarriers"),
    ],
)
def test_plans_that_do_not_fit_are_errors(wanted, message):
    with new_context(), ir.Location.unknown():
        module = parsed(copying(engine="greedy").replace('engine = "generic"', 'engine = "greedy"'))
        with pytest.raises(CompileError, match=message):
            build(ProgramView(module.body.operations[0].operation), "k", KernelOptions(), {"greedy": Greedy(**wanted)})


def test_the_hungriest_plan_shapes_the_kernel():
    with new_context(), ir.Location.unknown():
        module = parsed(copying(engine="greedy"))
        engines = {
            "greedy": Greedy(threads=384, registers=168, shared_bytes=5000, barriers=(1, 128)),
            "generic": GenericEngine(),
        }
        executor = build(ProgramView(module.body.operations[0].operation), "k", KernelOptions(), engines)
        text = str(executor.module)
        assert "nvvm.reqntid = array<i32: 384, 1, 1>" in text and "nvvm.minctasm = 1 : i32" in text
        assert text.count("nvvm.mbarrier.init") == 2
        assert (executor.manifest.threads, executor.manifest.shared_bytes) == (384, 1024 + 5000)
        assert [d.plan.engine for d in executor.decisions] == ["greedy", "generic"]


@pytest.mark.parametrize(
    "split, least, what",
    [
        (Split(12, 4096, 8, 8, spread=True), 12, "the pieces of a tile of stage 'first' (they wait for each other)"),
        (Split(12, 4096, 8, 8), 1, "a launch"),  # only the last piece waits, for earlier ones
    ],
)
def test_the_manifest_says_how_many_blocks_wait_for_each_other(split, least, what):
    with new_context(), ir.Location.unknown():
        module = parsed(copying(engine="greedy"))
        engines = {"greedy": Greedy(split=split), "generic": GenericEngine()}
        manifest = build(ProgramView(module.body.operations[0].operation), "k", KernelOptions(), engines).manifest
        assert (manifest.least_blocks, manifest.together) == (least, what)


@pytest.mark.parametrize("whole, tiles", [(0, (0, 0, 1, 1)), (1, (1, 1, 1, 1))])
def test_a_debug_build_names_the_tile_whose_pieces_a_counter_counts(whole, tiles):
    """Four counters for two tiles, or for the second one where the first is one block's."""
    with new_context(), ir.Location.unknown():
        module = parsed(copying(engine="greedy"))
        engines = {"greedy": Greedy(split=Split(12, 4096, 4, 8, whole, spread=True)), "generic": GenericEngine()}
        view = ProgramView(module.body.operations[0].operation)
        names = build(view, "k", KernelOptions(debug=True), engines).manifest.counters
        pieces = [f"the 12 pieces of tile {tile} of stage 'first'" for tile in tiles]
        assert names[view.slots :] == (*pieces, "partial results of stage 'first' to be read")


class Wide(Modest):
    """Takes as many threads as there may be."""

    name = "generic"

    def plan(self, task, limits):
        return Plan(self.name, task, threads=limits.threads)

    emit_tile = Greedy.emit_tile


def test_a_plan_of_many_registers_limits_the_threads_of_others():
    with new_context(), ir.Location.unknown():
        module = parsed(copying(engine="greedy"))
        view = ProgramView(module.body.operations[0].operation)
        alone = build(view, "k", KernelOptions(), {"greedy": Wide(), "generic": Wide()})
        assert alone.manifest.threads == 1024
        mixed = build(view, "k", KernelOptions(), {"greedy": Greedy(threads=384, registers=168), "generic": Wide()})
        assert mixed.manifest.threads == 384


@pytest.mark.parametrize("make", in_turn(cases.CASES, 4), ids=lambda make: make().name)
def test_cases_become_cubins(make):
    """No spills, nothing unresolved, and the program itself is left alone."""
    case = make()
    with new_context(), ir.Location.unknown():
        module = parsed(case.text)
        before = str(module)
        code = compile_gpu(module, case.name)
        assert str(module) == before
    assert code.cubin[:4] == b"\x7fELF" and ".extern .func" not in code.ptx
    assert not code.resources.spills and not code.warnings
    assert len(code.engines) == len(code.manifest.tasks) and all(choice.engine for choice in code.engines)


def test_debug_builds_name_what_a_counter_counts():
    emulated = Emulated(cases_bodies.everybody_waits(16, 4, 4, 3), 3, debug=True)
    assert len(emulated.manifest.counters) == emulated.manifest.slots
    two = Emulated(cases.two_stages(20, 8, 5, 4), 3, debug=True).manifest
    assert two.counters == tuple(f"tile ({n}) of stage 'relu'" for n in range(5))
    assert read_manifest(two.to_json()) == two
    assert not Emulated(cases.two_stages(20, 8, 5, 4), 3).manifest.counters


def test_debug_builds_bound_their_waits():
    case = cases.two_stages(20, 8, 5, 4)
    with new_context(), ir.Location.unknown():
        module = parsed(case.text)
        replace_program(program_functions(module.operation)[0], KernelOptions(debug=True))
        finalize(module.operation)
        ptx = to_assembly(to_text(module.body.operations[0].operation))
    assert "SPIN" not in ptx and "ld.acquire.gpu.global.b32" in ptx.replace("u32", "b32")


def test_errors_of_compile_gpu():
    with new_context(), ir.Location.unknown():
        module = parsed(copying())
        with pytest.raises(CompileError, match="no tile program 'other'"):
            compile_gpu(module, "other")
        with pytest.raises(TargetError, match="no target machine for 'sm_1'"):
            compile_gpu(module, "copying", KernelOptions(chip="sm_1"))
