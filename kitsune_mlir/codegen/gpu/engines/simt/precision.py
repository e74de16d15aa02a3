"""Which floating-point numbers of a task of the simt engine may be less exact than the program says."""

from __future__ import annotations

import dataclasses

from torch_mlir import ir

from kitsune_mlir.dialects.products import yield_of
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["Precision", "is_rounded", "made_before"]

_PLAIN = ("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf", "arith.select")


@dataclasses.dataclass(frozen=True)
class Precision:
    """What the code for a task may do with floating-point numbers.

    Attributes:
        approximate: all numbers come from memory and go there with 16 bits, but for single ones (a learning rate): functions
            need not be more exact than that. Not where `excess` is not allowed.
        excess: values may keep more bits than the program's intermediate types have. Not where comparisons or roundings to
            whole numbers would tell the difference.
        lowered: exponentials of what an element has less than its row's largest, as in a softmax: numbers from 0 to 1, so that
            a small absolute error is enough.
        short: other exponentials that need not be exact: of such differences that another map makes, or rounded to 16 bits
            before they leave their operation.
    """

    approximate: bool
    excess: bool
    lowered: frozenset[ir.Operation] = frozenset()
    short: frozenset[ir.Operation] = frozenset()


def made_before(op: ir.Operation) -> ir.Value:
    """What an operation of a body is applied to: where another map makes that, the value in the map's body."""
    value = op.operands[0]
    if isinstance(value.owner, ir.Block):
        maker = list(value.owner.owner.operands)[ir.BlockArgument(value).arg_number].owner
        if not isinstance(maker, ir.Block) and maker.name == "linalg.generic" and len(maker.results) == 1:
            return yield_of(maker.operation).operands[0]
    return value


def is_rounded(op: ir.Operation) -> bool:
    """Whether all that a body makes of an operation's result, by plain arithmetic, is rounded to 16 bits there."""
    users = [use.owner.operation for use in op.results[0].uses]
    return bool(users) and all(
        (user.name == "arith.truncf" and str(user.results[0].type) in HALF_TYPES) or (user.name in _PLAIN and is_rounded(user))
        for user in users
    )
