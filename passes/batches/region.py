"""Rows that meet in sums alone: the ops that each row goes through by itself, and the sums over rows that these end in."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_mlir import ir

from kitsune_mlir.dialects.access import Along, access_of, is_tensor
from kitsune_mlir.dialects.iteration import root_of
from kitsune_mlir.dialects.products import constant_fill, defining_op, is_contraction
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.passes.reductions.associative import NEUTRAL, Reduction, reduction_of

__all__ = ["Body", "NeedsAllRows", "Region", "region_of"]


class NeedsAllRows(Exception):
    """Why rows cannot be done batch by batch: an op needs all of them at once."""

    def __init__(self, op: ir.Operation, why: str):
        self.op, self.why = op, why
        super().__init__(why)


class Body:
    """The ops of a function's body by number, and who reads what they make."""

    def __init__(self, function: ir.Operation):
        self.ops = [op.operation for op in function.regions[0].blocks[0].operations]
        self.numbers = {result: n for n, op in enumerate(self.ops) for result in op.results}
        self.users: dict[ir.Value, list[tuple[int, int | None]]] = {}  # op and operand, None where a body reads by index
        self.reads: list[set[int]] = []
        for n, op in enumerate(self.ops):
            uses = [(v, k) for k, v in enumerate(op.operands)] + [(v, None) for v in captures(op)]
            for value, k in uses:
                self.users.setdefault(value, []).append((n, k))
            self.reads.append({self.numbers[value] for value, _ in uses if value in self.numbers})

    def depending(self, first: set[int]) -> list[int]:
        """The ops that read what some ops make, or what such ops make, in order."""
        found: set[int] = set()
        for n, reads in enumerate(self.reads):
            if reads & (first | found):
                found.add(n)
        return sorted(found)


@dataclass
class Region:
    """Ops by number.

    Attributes:
        rows: how many there are.
        loops: of each op, the loop that walks the rows.
        sums: those that reduce them; the others make rows of rows.
    """

    rows: int
    loops: dict[int, int] = field(default_factory=dict)
    sums: dict[int, Reduction] = field(default_factory=dict)

    def stored(self, body: Body) -> int:
        """Bytes of rows that ops make and products add up: memory holds all of them until the sums are done.

        What other sums read is made where they read it.
        """
        products = [body.ops[n] for n in self.sums if is_contraction(body.ops[n])]
        read = {value for op in products for value in op.operands if body.numbers.get(value) in self.loops}
        return sum(tensor_bytes(value.type) for value in read if not _is_start(body.ops[body.numbers[value]]))


def region_of(body: Body, sum_: int, loop: int) -> Region:
    """The region of the rows that a sum, by its number, adds up by a loop.

    Raises:
        NeedsAllRows: there is none.
    """
    access = access_of(body.ops[sum_])
    assert access is not None
    region = Region(access.sizes[loop])
    pending = [(sum_, loop)]
    while pending:
        n, loop = pending.pop()
        if region.loops.setdefault(n, loop) != loop:
            raise NeedsAllRows(body.ops[n], "two of its loops walk the rows")
        nodes = _above(body, n, loop) + ([] if _is_start(body.ops[n]) else _below(body, n, loop, region.sums))
        pending += [node for node in nodes if region.loops.get(node[0]) != node[1]]
    for n in body.depending(set(region.sums)):
        if n in region.loops:
            raise NeedsAllRows(body.ops[n], "works on rows with what is summed over all of them")
    return region


def _makers(body: Body, value: ir.Value, dim: int) -> list[tuple[int, int]]:
    """The op that makes a value row by row, with the loop that does; none where it is an argument, or made whole."""
    number = body.numbers.get(value)
    access = access_of(body.ops[number]) if number is not None else None
    if number is None or access is None:
        return []
    along = access.results[ir.OpResult(value).result_number][dim]
    return [(number, along.loop)] if along.loop is not None and along.plain and access.parallel[along.loop] else []


def _above(body: Body, n: int, loop: int) -> list[tuple[int, int]]:
    """Who makes the rows that an op reads or writes over, one by one."""
    op, access = body.ops[n], access_of(body.ops[n])
    assert access is not None
    found: list[tuple[int, int]] = []
    for value, alongs in zip(op.operands, access.operands, strict=True):
        for dim, along in enumerate(alongs):
            if along.loop == loop:
                _check(op, along)
                found += _makers(body, value, dim)
    return found


def _below(body: Body, n: int, loop: int, sums: dict[int, Reduction]) -> list[tuple[int, int]]:
    """Who reads the rows that an op makes; one that reduces them is noted."""
    op, access = body.ops[n], access_of(body.ops[n])
    assert access is not None
    if not access.parallel[loop]:
        sums[n] = _sum(op)
        return []
    found: list[tuple[int, int]] = []
    for result, alongs in zip(op.results, access.results, strict=True):
        dims = [dim for dim, along in enumerate(alongs) if along.loop == loop and along.plain]
        if len(dims) != 1:
            raise NeedsAllRows(op, "a result does not have its rows once")
        for user, operand in body.users.get(result, ()):
            reader = body.ops[user]
            known = access_of(reader) if operand is not None else None
            if known is None or operand is None or not known.operands[operand]:
                raise NeedsAllRows(reader, "takes all rows")
            along = known.operands[operand][dims[0]]
            _check(reader, along)
            found.append((user, along.loop))  # type: ignore[arg-type]  # a plain one has a loop
    return found


def _check(op: ir.Operation, along: Along) -> None:
    if not along.plain:
        raise NeedsAllRows(op, "reads more than one row at a time")


def _sum(op: ir.Operation) -> Reduction:
    """The reduction that an op is, which may begin anew in each batch."""
    found = reduction_of(op)
    if not isinstance(found, Reduction):
        raise NeedsAllRows(op, f"reduces rows: {found}")
    for result, start, combiner in zip(op.results, list(op.operands)[found.inputs :], found.combiners, strict=True):
        element = ir.ShapedType(result.type).element_type
        if isinstance(element, ir.FloatType) and element.width < 32:
            raise NeedsAllRows(op, f"sums in {element}, which is too narrow for sums of sums")
        constant = constant_fill(defining_op(root_of(start))) if is_tensor(start) else None
        value = getattr(constant.attributes["value"], "value", None) if constant is not None else None
        if value != NEUTRAL[combiner]:
            raise NeedsAllRows(op, "does not begin with what changes nothing")
    return found


def _is_start(op: ir.Operation) -> bool:
    """Whether an op is only where others write: each batch has its own."""
    return op.name == "tensor.empty" or constant_fill(op) is not None
