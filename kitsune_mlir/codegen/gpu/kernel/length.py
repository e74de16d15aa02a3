"""How long a kernel's code may be, and between which tasks one that is longer is cut into launches.

LLVM and ptxas take time that grows faster than a kernel: a training step's 138 tasks took them 52 s as one kernel of 88,000
operations (48,000 lines of PTX), 18.5 s as two, 10.4 s as four, 8.2 s as eight and 7.5 s as sixteen (on one core). Eight
layers of Llama-3-8B for one token, 59,000 operations, take 10.5 s and stay one kernel: a launch more costs a few microseconds.
What is longer becomes kernels of at most half the limit, from which on time is about linear. A program of very many stages
has a lower limit: it has many kernels to assemble, and one launch more is a small part of its time. (The 44 kernels of
BERT-base's step of 766 stages: ptxas takes 145 s for those of 220 launches, 51 s for those of 353 of at most 16,000
operations, on one core.)

A kernel's parameters have a limit, too: a whole step of BERT-base has tensor maps of 87 KB, where 32 KB are possible.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Sequence, Set

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.errors import CompileError

__all__ = ["LongKernel", "check_parameters", "launches_within", "limited", "operations_by_place", "operations_of"]

MANY_STAGES, MOST_OF_MANY = 96, 16_000
"""A program of more stages has kernels of at most so many operations, where they could be several."""

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


def launches_within(runs: Sequence[tuple[int, int]], lengths: Sequence[int], most: int) -> list[int]:
    """The number of the launch of each run of tasks: as few launches as may be, the longest of them as short as may be.

    Args:
        runs: number of tasks and body of each run, in order. A launch holds a body once, however many of its runs it has.
        lengths: operations of each body.
        most: of a launch that has more than one run.
    """
    least = _numbered(runs, lengths, most)
    low, high = max(1, most // 2), most
    while low < high:
        middle = (low + high) // 2
        if _numbered(runs, lengths, middle)[-1] > least[-1]:
            low = middle + 1
        else:
            high = middle
    return _numbered(runs, lengths, high)


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


def _numbered(runs: Sequence[tuple[int, int]], lengths: Sequence[int], most: int) -> list[int]:
    """One number a task: a launch takes runs as long as there is room."""
    numbers: list[int] = []
    held: set[int] = set()
    launch = 0
    for tasks, body in runs:
        if held and sum(lengths[one] for one in held | {body}) > most:
            launch, held = launch + 1, set()
        held.add(body)
        numbers += [launch] * tasks
    return numbers
