"""The generic engine's code, run thread by thread on the processor, against torch; and every program compiled to a cubin."""

import numpy as np
import pytest
import torch
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.generic.engine import GenericEngine, finish
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.emulators.arithmetic import DTYPES
from test.emulators.block import Race
from test.emulators.runner import Memory
from test.gpu import cases, cases_bodies
from test.gpu.run_programs import error_of, make_input
from test.gpu.tile_text import BOTH, ROW, Case, generic, program, store, task, whole, yielding
from test.gpu.tile_text import fill as fill_text

THREADS = 64

# Sizes that the processor gets through in a second or so.
SMALL = {
    "two_stages": lambda: cases.two_stages(20, 24, 11, 10),
    "softmax_f32": lambda: cases.softmax("f32", 21, 37, 8),
    "softmax_bf16": lambda: cases.softmax("bf16", 9, 65, 8),
    "softmax_few_rows": lambda: cases.softmax("f32", 3, 100, 2),
    "ladder": lambda: cases.ladder(3, 32, 8, 8),
    "layer_norm": lambda: cases.layer_norm(16, 40, 8),
    "gather_scatter": lambda: cases.gather_scatter(35, 12, 5, 16),
    "functions_f32": lambda: cases_bodies.functions("f32", (7, 5)),
    "functions_bf16": lambda: cases_bodies.functions("bf16", (7, 5)),
    "functions_f64": lambda: cases_bodies.functions("f64", (7, 5)),
    "integers": lambda: cases_bodies.integers(100),
    "convolution": cases_bodies.convolution,
    "sort_and_scan": lambda: cases_bodies.sort_and_scan(5, 9),
    "reductions": lambda: cases_bodies.reductions(30, 25),
    "control_flow": lambda: cases_bodies.control_flow((8, 10)),
    "big_temporaries": lambda: cases_bodies.big_temporaries(20, 48, 8),
    "everybody_waits": lambda: cases_bodies.everybody_waits(16, 4, 4, 3),
}


def fill(memory: Memory, inputs) -> None:
    for space, tensor in zip(memory.arguments, inputs, strict=False):
        data = (tensor if tensor.dtype != torch.bool else tensor.to(torch.uint8)).contiguous().view(torch.uint8)
        space.data[: data.numel()] = data.reshape(-1).numpy()


def read(memory: Memory, argument: int, shape, dtype: str) -> torch.Tensor:
    data = memory.arguments[argument].data[: int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize]
    found = data.view(DTYPES[dtype]).reshape(shape)
    return torch.from_numpy(found.astype(np.float64) if dtype in ("bf16", "f16") else found.copy())


def run_case(case, threads: int = THREADS, shared_limit: int = 73728):
    """(largest error, barriers passed) of a program, its tiles run one after the other."""
    inputs = [make_input(torch, torch.Generator().manual_seed(1), *spec) for spec in case.inputs]
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(case.text)
        program = ProgramView(module.body.operations[0].operation)
        memory = Memory(program, threads)
        fill(memory, inputs)
        for task in program.tasks:
            memory.run(task, shared_limit)
    errors = []
    for number, ((shape, dtype), want) in enumerate(zip(case.results, case.reference(torch, *inputs), strict=True)):
        errors.append(error_of(torch, read(memory, len(case.inputs) + number, shape, dtype), want))
    return max(errors), memory.block.barriers


@pytest.mark.parametrize("name", SMALL)
def test_program_is_right_and_free_of_races(name):
    case = SMALL[name]()
    error, _ = run_case(case)
    assert error <= case.tolerance


@pytest.mark.parametrize("threads", [32, 256])
def test_other_block_sizes(threads):
    for name in ("softmax_f32", "reductions"):
        case = SMALL[name]()
        assert run_case(case, threads)[0] <= case.tolerance


def test_temporaries_in_scratch_give_the_same():
    case = SMALL["softmax_f32"]()
    assert run_case(case, shared_limit=64)[0] <= case.tolerance
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(case.text)
        program = ProgramView(module.body.operations[0].operation)
        plan = GenericEngine().plan(program.tasks[0], KernelOptions(shared_bytes=64))
        assert plan.shared_bytes <= 64 and plan.scratch_bytes >= 4 * 8 * 37


def test_the_checker_sees_a_missing_barrier(monkeypatch):
    from kitsune_mlir.codegen.gpu.engines.generic import distribute

    monkeypatch.setattr(distribute.nvvm, "barrier", lambda: None)
    with pytest.raises(Race):
        run_case(SMALL["softmax_f32"]())


@pytest.mark.parametrize("dtype, add", [("f64", "addf"), ("i64", "addi"), ("f16", "addf"), ("i8", "addi")])
def test_lanes_share_sums_of_any_width(dtype, add):
    """Few rows: the lanes of a warp shuffle 64-bit and 16-bit parts."""
    shape, rows = (3, 40), (3,)
    inputs, results = ((shape, dtype, "small"),), ((rows, dtype),)
    text = whole("x", "x0", shape, dtype) + fill_text("z", "0.0" if "f" in dtype else "0", rows, dtype)
    lines = yielding(f"%r = arith.{add} %o, %a0 : {dtype}", dtype=dtype)
    operands = [("x", BOTH, shape, dtype)]
    text += generic("s", operands, (ROW, rows, dtype), lines, ("parallel", "reduction"), "z")
    body = task("sum", [1], text + store("s", "y0", rows, dtype))

    def reference(torch, x):
        return (x.double().sum(1) if x.is_floating_point() else x.sum(1).to(x.dtype),)

    case = Case("sums", program("sums", inputs, results, body), inputs, results, reference)
    assert run_case(case)[0] <= 1e-6
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(case.text)
        view = ProgramView(module.body.operations[0].operation)
        lowered = GenericEngine().plan(view.tasks[0], KernelOptions()).private
        finish(lowered, THREADS)
        assert "nvvm.shfl.sync" in str(lowered.body.module)


def test_elementwise_chains_need_no_barrier():
    assert run_case(SMALL["functions_f32"]())[1] == 0
