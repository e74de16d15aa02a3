"""From one function of linalg on tensors, however it was made, to an `ImportedModel`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch_mlir import ir

from kitsune_mlir.errors import DynamicShapeError, FrontendError
from kitsune_mlir.frontend.imported import Argument, ImportedModel, Result
from kitsune_mlir.frontend.importer import describe_arguments
from kitsune_mlir.frontend.loops import write_out_loops
from kitsune_mlir.frontend.settle import settle
from kitsune_mlir.frontend.source import origin_of_location
from kitsune_mlir.runtime.signature import torch_dtype

__all__ = ["check_shapes", "first_operation", "imported_function", "tensor_type", "torch_tensor"]

_BLOB = re.compile(r'([\w.]+|"[^"]*"): "0x([0-9A-Fa-f]*)"')
_ALL_BITS = re.compile(r'dense<"0x([0-9A-F]*)"')
_NUMBER = re.compile(r"0x[0-9A-F]+|-?\d[\d.]*(?:e[+-]\d+)?")
_RESOURCE = re.compile(r'dense_resource<([\w.]+|"[^"]*")>')

Types = Sequence[tuple[tuple[int, ...], str]]


def imported_function(
    module: ir.Module, arguments: Sequence[Argument], results: Types, seconds: dict[str, float]
) -> ImportedModel:
    """The model of a module whose only function takes `arguments` and returns tensors.

    A model with one result returns the tensor, one with several a tuple. Inputs are positional, and calls may name them. Tables
    of numbers in the function become weights ("constant"): code holds no data.

    Args:
        module: linalg on tensors with static shapes; changed in place.
        arguments: one for each of the function's; inputs have a position.
        results: shape and dtype of each result.
        seconds: how long each phase took.

    Raises:
        DynamicShapeError: a shape is not known.
        FrontendError: there are two functions, a loop that cannot be written out, or a constant of a type that torch has not.
    """
    functions = [op for op in module.body.operations if op.operation.name == "func.func"]
    if len(functions) != 1 or len(list(module.body.operations)) != 1:
        raise FrontendError(f"the module has {len(functions)} functions where one was expected")
    (main,) = functions
    with module.context:
        main.attributes["sym_name"] = ir.StringAttr.get("main")
        main.attributes["sym_visibility"] = ir.StringAttr.get("public")
        for name in [name for name in main.attributes if name.startswith("torch.")]:
            del main.attributes[name]
        for kind in ("arg_attrs", "res_attrs"):
            if kind in main.attributes:
                del main.attributes[kind]
    write_out_loops(module)
    check_shapes(module)
    blobs = _blobs(module)
    places = settle(module)
    constants = _constants_as_arguments(main, blobs, {argument.name for argument in arguments})
    order = _weights_first(main, [*arguments, *constants])
    describe_arguments(module, order, ())
    inputs = sorted((a for a in order if a.position is not None), key=lambda a: a.position or 0)
    in_spec = pytree.tree_structure(((0,) * len(inputs), {}))
    out_spec = pytree.tree_structure(0 if len(results) == 1 else (0,) * len(results))
    found, taken = [], set()
    for (shape, dtype), place in zip(results, places, strict=True):
        found.append(Result("tensor", shape, dtype, index=place, copied=place in taken))
        taken.add(place)
    return ImportedModel(
        *(module, tuple(order), (), tuple(found), (), in_spec, out_spec, seconds), tuple(a.name for a in inputs)
    )


def check_shapes(module: ir.Module) -> None:
    """Raises `DynamicShapeError` for the first value with an unknown extent."""

    op = first_operation(module, lambda op: any(map(_is_open, _types(op))))
    if op is None:
        return
    operator, location = origin_of_location(op.location)
    kind = next(filter(_is_open, _types(op)))
    raise DynamicShapeError(
        f"a value of type {kind} has a shape that is known only at run time; it comes from '{operator or op.name}'."
        " Shapes must be static",
        value=str(kind),
        operator=operator,
        location=location,
    )


def first_operation(module: ir.Module, wanted: Callable[[ir.Operation], bool]) -> ir.Operation | None:
    """The first operation of its kind, outer ones before those inside; None if there is none."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if wanted(op):
            found.append(op)
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[0] if found else None


def _types(op: ir.Operation) -> list[ir.Type]:
    """Of the results, and of the arguments of the blocks."""
    return [*(r.type for r in op.results), *(a.type for region in op.regions for block in region for a in block.arguments)]


def _is_open(kind: ir.Type) -> bool:
    return isinstance(kind, ir.ShapedType) and not (kind.has_rank and kind.has_static_shape)


def tensor_type(kind: ir.Type) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a ranked tensor's type, before signs are lost."""
    tensor = ir.RankedTensorType(kind)
    return tuple(tensor.shape), str(tensor.element_type)


def torch_tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    """The numbers in an array's memory, flat, in memory of their own; NumPy may have no name for their type (bf16)."""
    return torch.from_numpy(np.frombuffer(bytearray(array.tobytes()), np.uint8)).view(torch_dtype(dtype))


def _constants_as_arguments(main: ir.OpView, blobs: Mapping[str, bytes], names: set[str]) -> list[Argument]:
    """Tables of numbers at the function's top level become its last arguments."""
    block, found = main.regions[0].blocks[0], []
    for op in [o.operation for o in block.operations if o.operation.name == "arith.constant"]:
        attribute = op.attributes["value"]
        if not isinstance(op.result.type, ir.RankedTensorType) or getattr(attribute, "is_splat", False):
            continue
        shape, dtype = tensor_type(op.result.type)
        value = _value(attribute, blobs, shape, dtype)
        name = next(f"constant_{n}" for n in range(len(found), len(names) + len(found) + 1) if f"constant_{n}" not in names)
        op.result.replace_all_uses_with(block.add_argument(op.result.type, op.location))
        op.erase()
        found.append(Argument(name, "constant", shape, dtype, value))
    return found


def _blobs(module: ir.Module) -> dict[str, bytes]:
    """The data of the module's resources by name; the bindings give it in the module's text only."""
    text = str(module)
    _, _, resources = text.rpartition("{-#")
    return {n.strip('"'): bytes.fromhex(data)[4:] for n, data in _BLOB.findall(resources if resources != text else "")}


def _value(attribute: ir.Attribute, blobs: Mapping[str, bytes], shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """The numbers of a constant."""
    if named := _RESOURCE.match(str(attribute)):
        return torch_tensor(np.frombuffer(blobs[named[1].strip('"')], np.uint8), dtype).reshape(shape)
    if dtype == "bf16":  # neither NumPy nor the bindings know it
        return _written(str(attribute)).reshape(shape)
    try:
        return torch_tensor(np.array(attribute), dtype).reshape(shape)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FrontendError(f"a constant of {dtype} {list(shape)} cannot be read: {error}") from error


def _written(text: str) -> torch.Tensor:
    """The numbers of a bf16 constant, flat, from its text: all bits in one, or each by itself (hexadecimal ones are bits)."""
    numbers = text[: text.rindex("> : tensor<")]
    if bits := _ALL_BITS.match(numbers):
        return torch_tensor(np.frombuffer(bytes.fromhex(bits[1]), np.uint8), "bf16")
    words = _NUMBER.findall(numbers)
    found = torch.tensor([0.0 if one.startswith("0x") else float(one) for one in words]).bfloat16()
    for place, one in enumerate(words):
        if one.startswith("0x"):
            found[place] = torch.tensor(int(one, 16), dtype=torch.uint16).view(torch.bfloat16)
    return found


def _weights_first(main: ir.OpView, arguments: Sequence[Argument]) -> list[Argument]:
    """Put the function's arguments in order: weights that are used, then inputs by position."""
    block = main.regions[0].blocks[0]
    used = [bool(list(argument.uses)) for argument in block.arguments]
    weights = [n for n, a in enumerate(arguments) if a.position is None and used[n]]
    inputs = sorted((n for n, a in enumerate(arguments) if a.position is not None), key=lambda n: arguments[n].position or 0)
    order, old = [*weights, *inputs], list(block.arguments)
    for number in order:
        old[number].replace_all_uses_with(block.add_argument(old[number].type, old[number].location))
    for _ in old:
        block.erase_argument(0)
    with main.context:
        results = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
        kind = ir.FunctionType.get([argument.type for argument in block.arguments], results)
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
    return [arguments[number] for number in order]
