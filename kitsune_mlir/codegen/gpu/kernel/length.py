"""How long a kernel's code may be, and between which tasks one that is longer is cut into launches.

LLVM and ptxas take time that grows faster than a kernel: a training step's 138 tasks took them 52 s as one kernel of 88,000
operations (48,000 lines of PTX), 18.5 s as two, 10.4 s as four, 8.2 s as eight and 7.5 s as sixteen (on one core). Eight
layers of Llama-3-8B for one token, 59,000 operations, take 10.5 s and stay one kernel: a launch more costs a few microseconds.
What is longer becomes kernels of at most half the limit, from which on time is about linear.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.errors import CompileError

__all__ = ["LongKernel", "launches_within", "operations_by_place"]


class LongKernel(CompileError):
    """A kernel has too many operations: it had better be several.

    Attributes:
        launches: for each task of the program the number of the launch that should have it.
    """

    def __init__(self, name: str, operations: int, most: int, launches: Sequence[int]):
        self.launches = tuple(launches)
        super().__init__(f"kernel '{name}' has {operations} operations; option 'most_operations' allows {most}")


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
