"""How a function's arguments and results lie in memory, where that is not row-major: attributes of the function."""

from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import CALLER_ORDER, KIND


def attributes_of(function: ir.Operation, argument: int) -> ir.DictAttr | dict:
    """The attributes of an argument."""
    if "arg_attrs" not in function.attributes:
        return {}
    return ir.DictAttr(ir.ArrayAttr(function.attributes["arg_attrs"])[argument])


def result_attributes(function: ir.Operation, result: int) -> dict[str, ir.Attribute]:
    """The attributes of a result."""
    if "res_attrs" not in function.attributes:
        return {}
    return {item.name: item.attr for item in ir.DictAttr(ir.ArrayAttr(function.attributes["res_attrs"])[result])}


def set_attribute(function: ir.Operation, argument: int, name: str, order) -> None:
    """Give an argument an order, or extents, as an attribute."""
    every = [ir.DictAttr(a) for a in ir.ArrayAttr(function.attributes["arg_attrs"])]
    changed = {item.name: item.attr for item in every[argument]} | {name: ir.DenseI64ArrayAttr.get(list(order))}
    every[argument] = ir.DictAttr.get(changed)
    function.attributes["arg_attrs"] = ir.ArrayAttr.get(every)


def given_in(function: ir.Operation, argument: int, order: Sequence[int]) -> bool:
    """Whether the caller has the argument in an order."""
    held = attributes_of(function, argument)
    return CALLER_ORDER in held and list(ir.DenseI64ArrayAttr(held[CALLER_ORDER])) == list(order)


def is_weight(function: ir.Operation, argument: int) -> bool:
    """Whether the model supplies the argument, once: it is placed before the first call."""
    kind = attributes_of(function, argument)
    return KIND in kind and ir.StringAttr(kind[KIND]).value != "input"


def settle_type(function: ir.Operation) -> None:
    """The function's type follows its arguments and what it returns."""
    block = function.regions[0].blocks[0]
    returned = list(block.operations)[-1].operation.operands
    type_ = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in returned])
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
