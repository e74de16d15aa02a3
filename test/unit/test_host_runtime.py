"""Running compiled host programs: threads, concurrent calls, errors, saved code."""

from __future__ import annotations

import dataclasses
import multiprocessing
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, CompileError, TargetError
from kitsune_mlir.runtime.host_code import HostCode
from kitsune_mlir.runtime.host_executor import HostExecutor
from test.programs.host import Rows, Stage, elementwise, run_code, tensor

ROWS, WIDTH, TILE = 96, 40, 8


@pytest.fixture(scope="module")
def code() -> HostCode:
    """y = ((2x + 1) * 3) ** 2 by three stages whose tiles wait for each other; the last waits for all of the second."""
    shape = ((ROWS, WIDTH), "f32")

    def stage(name: str, source: str, out: str, body: str, **options) -> Stage:
        operands = [(source, tensor((TILE, WIDTH)), "d0, d1")]
        return Stage(name, out, TILE, elementwise("r", (TILE, WIDTH), operands, body), tiled=(source,), **options)

    affine = (
        "%k = arith.constant 1.0 : f32\n%q = arith.addf %a0, %a0 : f32\n%s = arith.addf %q, %k : f32\nlinalg.yield %s : f32"
    )
    triple = "%k = arith.constant 3.0 : f32\n%q = arith.mulf %a0, %k : f32\nlinalg.yield %q : f32"
    square = "%q = arith.mulf %a0, %a0 : f32\nlinalg.yield %q : f32"
    stages = [
        stage("affine", "x", "h", affine),
        stage("triple", "h", "g", triple, after=("affine",)),
        stage("square", "g", "y", square, after=("triple",), wait_all=True),
    ]
    return Rows({"x": shape}, {"y": shape}, stages, {"h": shape, "g": shape}).compile()


def check(executor: HostExecutor, seed: int) -> None:
    x = np.random.default_rng(seed).integers(-50, 50, (ROWS, WIDTH)).astype(np.float32)
    y = np.full_like(x, np.nan)
    run_code(executor, [x], [y])
    assert (y == ((2 * x + 1) * 3) ** 2).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_any_number_of_threads(code, threads):
    executor = HostExecutor(code, threads=threads)
    for seed in range(50):
        check(executor, seed)


def test_concurrent_calls_have_memory_of_their_own(code):
    executor = HostExecutor(code, threads=2)
    failures = []

    def caller(number: int) -> None:
        try:
            for seed in range(40):
                check(executor, 1000 * number + seed)
        except BaseException as error:  # an assertion in a thread would go unseen
            failures.append(error)

    callers = [threading.Thread(target=caller, args=(i,)) for i in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not failures


def test_figures_are_checked(code):
    HostExecutor(code, code.semaphore_slots, code.arena_bytes, code.task_count, threads=1)
    with pytest.raises(ArgumentError, match="semaphore_slots"):
        HostExecutor(code, semaphore_slots=code.semaphore_slots + 1)
    with pytest.raises(ArgumentError, match="at least one thread"):
        HostExecutor(code, threads=0)
    with pytest.raises(ArgumentError, match="takes 2 pointers, got 1"):
        HostExecutor(code).run([0])


def test_code_for_another_processor_is_compiled_again(code):
    check(HostExecutor(dataclasses.replace(code, cpu="another", object_file=b"")), 5)
    with pytest.raises(TargetError, match="cannot be linked"):
        HostExecutor(dataclasses.replace(code, object_file=b"no object"))
    with pytest.raises(CompileError, match="cannot read the IR"):
        HostExecutor(dataclasses.replace(code, cpu="another", llvm_ir="define nonsense"))


def test_missing_functions_are_named(code):
    text = code.llvm_ir + "\ndeclare void @no_such_function()\n"
    with pytest.raises(CompileError, match="no_such_function"):
        HostExecutor(dataclasses.replace(code, cpu="another", llvm_ir=text))


def _in_child(code: HostCode, answers) -> None:
    try:
        check(HostExecutor(code, threads=2), 1)
        answers.put("right")
    except BaseException as error:
        answers.put(repr(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_its_own_threads(code):
    check(HostExecutor(code, threads=2), 0)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(code, answers))
    child.start()
    try:
        assert answers.get(timeout=60) == "right"
    finally:
        child.kill()
        child.join()


def test_memory_does_not_grow(code):
    import resource

    executor = HostExecutor(code, threads=2)
    x = np.zeros((ROWS, WIDTH), np.float32)
    y = np.zeros_like(x)
    for _ in range(200):
        run_code(executor, [x], [y])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3000):
        run_code(executor, [x], [y])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # kilobytes


NO_ROOM = """
import ctypes, torch, kitsune_mlir

GAP, PAGE, PRIVATE, AT = 3 << 30, 4096, 0x4022, ctypes.CDLL(None)  # private, anonymous, without swap
AT.mmap.restype, AT.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
AT.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
reserve = lambda size: AT.mmap(None, size, 0, PRIVATE, -1, 0)
whole = reserve(16 * GAP)
for size in (1 << 24, 1 << 20, 1 << 16, PAGE):  # what is free above is taken
    while (taken := reserve(size)) > whole:
        pass
    AT.munmap(taken, size)
for number in range(1, 15):
    AT.munmap(whole + number * GAP, 2 * PAGE)
x = torch.randn(5, 7)
assert torch.allclose(kitsune_mlir.load("packed.kit")(x), torch.softmax(x.sin() + (-x).exp(), -1), atol=1e-6)
"""
"""Loads a program where memory's free pages lie farther apart than code can reach."""


def test_code_is_linked_where_free_memory_lies_far_apart(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(x.sin() + (-x).exp(), -1)

    kitsune_mlir.compile(Model(), (torch.randn(5, 7),), target="host").save(tmp_path / "packed.kit")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NO_ROOM], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-800:]
