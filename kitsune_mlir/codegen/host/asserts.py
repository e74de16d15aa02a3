"""`cf.assert` becomes an error number in the run's control block and an early return, instead of a message and `abort`.

Upstream lowers `cf.assert %ok, "text"` to a branch to a block that calls `puts` and `abort`. Those two calls are replaced,
after the conversion to the LLVM dialect, by a store of the message's number and a return.
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects.verify import operations_named

__all__ = ["CONTROL_ERROR", "add_control_argument", "has_assert", "replace_aborts"]

CONTROL_ERROR = 16
"""Word of the control block (32-bit words) that holds the number of the first failed assertion, 0 for none."""


def has_assert(root: ir.Operation) -> bool:
    """Whether an operation holds a `cf.assert`."""
    return bool(operations_named(root, "cf.assert"))


def add_control_argument(operation: ir.Operation, words: int) -> None:
    """Append the control block (of `words` words) to the arguments of a body; it is always the last one."""
    entry = operation.regions[0].blocks[0]
    entry.add_argument(ir.MemRefType.get([words], ir.IntegerType.get_signless(32)), operation.location)
    operation.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([a.type for a in entry.arguments], []))
    if "arg_attrs" in operation.attributes:
        operation.attributes["arg_attrs"] = ir.ArrayAttr.get([*operation.attributes["arg_attrs"], ir.DictAttr.get({})])


def replace_aborts(module: ir.Operation) -> list[str]:
    """Rewrite the failing blocks of a module in the LLVM dialect; returns the messages, number 1 first.

    Functions with assertions must have the control block as their last argument and return nothing.
    """
    texts: dict[str, str] = {}
    top = [op.operation for op in module.regions[0].blocks[0].operations]
    for op in top:
        if op.name == "llvm.mlir.global" and ir.StringAttr(op.attributes["sym_name"]).value.startswith("assert_msg"):
            texts[ir.StringAttr(op.attributes["sym_name"]).value] = _text_of(op.attributes["value"])
    messages: dict[str, int] = {}
    # Collected first: an operation erased below must not be looked at again, not even for its name.
    calls = operations_named(module, "llvm.call") if texts else []
    aborts = [op for op in calls if "callee" in op.attributes and str(op.attributes["callee"]) == "@abort"]
    for op in aborts:
        block = op.block
        ops = [o.operation for o in block.operations]
        puts = next(o for o in ops if o.name == "llvm.call" and str(o.attributes["callee"]) == "@puts")
        place = puts.operands[0].owner.operation
        while place.name != "llvm.mlir.addressof":  # a getelementptr of it
            place = place.operands[0].owner.operation
        symbol = ir.FlatSymbolRefAttr(place.attributes["global_name"]).value
        number = messages.setdefault(texts[symbol], len(messages) + 1)
        function = op.parent
        while function.operation.name != "llvm.func":
            function = function.operation.parent
        control = list(function.operation.regions[0].blocks[0].arguments)[-1]
        for old in (puts, op, ops[-1]):  # ops[-1] is llvm.unreachable
            old.erase()
        with ir.InsertionPoint(block), function.operation.location:
            _store_and_return(control, number)
    for op in top:
        if op.name == "llvm.func" and str(op.attributes["sym_name"]).strip('"') in ("abort", "puts"):
            op.erase()
    return list(messages)


def _store_and_return(control: ir.Value, number: int) -> None:
    i32, pointer = ir.IntegerType.get_signless(32), ir.Type.parse("!llvm.ptr")
    value = ir.Operation.create("llvm.mlir.constant", [i32], [], {"value": ir.IntegerAttr.get(i32, number)}).results[0]
    place = ir.Operation.create(
        "llvm.getelementptr",
        [pointer],
        [control],
        {"rawConstantIndices": ir.DenseI32ArrayAttr.get([CONTROL_ERROR]), "elem_type": ir.TypeAttr.get(i32)},
    ).results[0]
    ir.Operation.create(
        "llvm.store",
        [],
        [value, place],
        {"ordering": ir.Attribute.parse("2 : i64"), "alignment": ir.Attribute.parse("4 : i64")},  # monotonic
    )
    ir.Operation.create("llvm.return", [], [])


def _text_of(value: ir.Attribute) -> str:
    if isinstance(value, ir.StringAttr):
        return value.value.rstrip("\0")
    return bytes(int(b) & 0xFF for b in ir.DenseIntElementsAttr(value)).rstrip(b"\0").decode(errors="replace")
