"""Which rows of a function's results callers want (`kitsune.valid_rows`)."""

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import ORDER, VALID_ROWS

__all__ = ["describe_valid_rows"]


def describe_valid_rows(program: ir.Operation, function: ir.Operation, results: Sequence[ir.Value]) -> None:
    """Say of a tile program what its function says of its results, which are those of the function's pipeline."""
    valid = [number for result in results for number in _valid_rows(function, result)]
    if max(valid, default=-1) >= 0:
        program.attributes[VALID_ROWS] = ir.DenseI64ArrayAttr.get(valid)


def _valid_rows(function: ir.Operation, result: ir.Value) -> tuple[int, int]:
    """The argument that says how many rows of a pipeline's result are valid, and how many it is long; -1 and -1 for none.

    None is also what is returned twice, or in another order of dimensions, in which rows need not be outermost.
    """
    uses = [(use.owner.operation, use.operand_number) for use in result.uses]
    if len(uses) != 1 or uses[0][0].name != "func.return" or "res_attrs" not in function.attributes:
        return -1, -1
    said = ir.DictAttr(ir.ArrayAttr(function.attributes["res_attrs"])[uses[0][1]])
    if VALID_ROWS not in said or (ORDER in said and ir.DenseI64ArrayAttr(said[ORDER])[0] != 0):
        return -1, -1
    argument, rows = ir.DenseI64ArrayAttr(said[VALID_ROWS])
    return argument, rows
