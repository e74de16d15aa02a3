"""Which arguments a program overwrites: a training step's weights and its optimizer's state."""

from torch_mlir import ir

from .attribute_table import MUTATES
from .iteration import root_of
from .unchanged import remembered

__all__ = ["is_overwritten"]


def is_overwritten(value: ir.Value) -> bool:
    """Whether a value, or what it is a reshape of, is a function's argument whose new value the function returns."""
    root = root_of(value)
    if not isinstance(root.owner, ir.Block):
        return False
    argument = ir.BlockArgument(root)
    function = argument.owner.owner.operation
    return function.name == "func.func" and argument.arg_number in _overwritten(function)


@remembered
def _overwritten(function: ir.Operation) -> frozenset[int]:
    if "res_attrs" not in function.attributes:
        return frozenset()
    said = [ir.DictAttr(one) for one in ir.ArrayAttr(function.attributes["res_attrs"])]
    return frozenset(ir.IntegerAttr(one[MUTATES]).value for one in said if MUTATES in one)
