"""How long a kernel's code may be, and between which tasks one that is longer is cut into launches.

LLVM and ptxas take time that grows faster than a kernel (`seconds_of`). Eight layers of Llama-3-8B for one token, 59,000
operations, take 10.5 s and stay one kernel: a launch more costs a few microseconds. What is longer becomes those launches that
together are predicted to take least, where each launch more counts as a second: a chain of many wide layers has one of its own.
A program of very many stages is cut from fewer operations on: it has many kernels to assemble, and one launch more is a small
part of its time. (The 44 kernels of BERT-base's step of 766 stages: ptxas takes 145 s for those of 220 launches, 51 s for those
of 353 of at most 8,000 operations, on one core.)

A kernel's parameters have a limit, too: a whole step of BERT-base has tensor maps of 87 KB, where 32 KB are possible.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Sequence, Set

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.errors import CompileError

__all__ = [
    "LongKernel",
    "check_parameters",
    "launches_within",
    "limited",
    "operations_by_place",
    "operations_of",
    "seconds_of",
]

MANY_STAGES, MOST_OF_MANY = 96, 16_000
"""A program of more stages has kernels cut that have more operations."""

EACH, GROWS_AT, GROWTH = 1 / 11_000, 25_000, 1.6
LAUNCH = 1.2
"""Seconds of compiling that a launch less is worth."""

TENSOR_MAP_BYTES = 128


class LongKernel(CompileError):
    """A kernel has too many operations or parameters: it had better be several.

    Attributes:
        launches: for each task of the program the number of the launch that should have it.
    """

    def __init__(self, name: str, problem: str, launches: Sequence[int]):
        self.launches = tuple(launches)
        super().__init__(f"kernel '{name}' {problem}")


def limited(options: KernelOptions, stages: int) -> KernelOptions:
    """Options for the kernels of a program of so many stages."""
    most = min(options.most_operations, MOST_OF_MANY) if stages > MANY_STAGES else options.most_operations
    return dataclasses.replace(options, most_operations=most)


def operations_of(module: ir.Operation) -> int:
    """How many operations there are, the module among them. (Places take far longer: each is written as text.)"""
    found, advance = 0, ir.WalkResult.ADVANCE

    def visit(_: ir.Operation) -> ir.WalkResult:
        nonlocal found
        found += 1
        return advance

    module.walk(visit)
    return found


def operations_by_place(module: ir.Operation) -> Counter[str]:
    """How many operations have each location, as text."""
    found: Counter[str] = Counter()

    def visit(op: ir.Operation) -> ir.WalkResult:
        found[str(op.location)] += 1
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return found


def seconds_of(operations: int) -> float:
    """What LLVM and ptxas take on one core for a kernel of so many operations, about.

    Of a training step of 138 tasks: 88,000 operations 52 s, halves of it 9.3 s each, quarters 2.6, eighths 1.0, sixteenths
    0.47. Of a radiance field's backward: a chain of ten layers (33,000) 6.5 s, 15 products (18,000) 2.0 s, both 19.5 s.
    """
    return operations * EACH * (1 + (operations / GROWS_AT) ** GROWTH)


def launches_within(runs: Sequence[tuple[int, int]], lengths: Sequence[int], most: int) -> list[int]:
    """The number of the launch of each task: launches that together take least time to compile (`seconds_of`), where each of
    them counts as `LAUNCH` seconds.

    Args:
        runs: number of tasks and body of each run, in order. A launch holds a body once, however many of its runs it has.
        lengths: operations of each body.
        most: of a launch that has more than one run.
    """
    best: list[tuple[float, int]] = [(0.0, 0)]  # of the first so many runs: seconds, and where their last launch begins
    for end in range(1, len(runs) + 1):
        held: set[int] = set()
        length, found = 0, (float("inf"), end - 1)
        for start in range(end - 1, -1, -1):
            body = runs[start][1]
            length += 0 if body in held else lengths[body]
            held.add(body)
            if length > most and start < end - 1:
                break
            found = min(found, (best[start][0] + seconds_of(length) + LAUNCH, start))
        best.append(found)
    starts: list[int] = []
    end = len(runs)
    while end:
        end = best[end][1]
        starts.append(end)
    numbers: list[int] = []
    for number, (first, last) in enumerate(zip(starts[::-1], [*starts[-2::-1], len(runs)], strict=True)):
        numbers += [number for tasks, _ in runs[first:last] for _ in range(tasks)]
    return numbers


def check_parameters(name: str, size: int, most: int, runs: Sequence[tuple[int, Set[Hashable]]]) -> None:
    """See that a kernel's parameters are not too many.

    Args:
        size: bytes of all parameters.
        most: that are possible. Tensor maps of a launch may take half of them; its pointers are those that its tasks use.
        runs: number of tasks and tensor maps of each run, in order.

    Raises:
        LongKernel: they are, and there are several runs.
    """
    if size <= most or len(runs) < 2:
        return
    room, half = most // 2 // TENSOR_MAP_BYTES, len(runs) // 2
    numbers: list[int] = []
    held: set[Hashable] = set()
    launch = 0
    for tasks, maps in runs:
        if numbers and len(held | maps) > room:
            launch, held = launch + 1, set()
        held |= maps
        numbers += [launch] * tasks
    if not launch:  # pointers are too many
        numbers = [int(n >= half) for n, (tasks, _) in enumerate(runs) for _ in range(tasks)]
    raise LongKernel(name, f"has parameters of {size} bytes; {most} are possible", numbers)
