"""ONNX models, by the importer that torch-mlir has. Needs the package `onnx`."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect

from kitsune_mlir.errors import ArgumentError, DynamicShapeError, FrontendError
from kitsune_mlir.frontend.imported import Argument, ImportedModel, dtype_name
from kitsune_mlir.frontend.linalg_function import imported_function, torch_tensor
from kitsune_mlir.frontend.lower import TO_LINALG, run_reporting
from kitsune_mlir.runtime.plain import shown

__all__ = ["import_onnx"]

_TO_TORCH = "builtin.module(torch-onnx-to-torch-backend-pipeline)"

_SETTINGS = {
    **dict.fromkeys(("Resize", "Upsample", "Clip", "Pad", "Dropout", "QuantizeLinear", "DequantizeLinear"), 1),
    **dict.fromkeys(("OneHot", "Range", "QLinearConv", "QLinearMatMul", "RoiAlign", "NonMaxSuppression"), 0),
}
"""Operators that are lowered for numbers known when compiling: from which operand on these are settings and no data."""


def import_onnx(
    path: str | os.PathLike[str],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    context: ir.Context | None = None,
) -> ImportedModel:
    """Imports an ONNX file, with the data that lies beside it.

    Floating-point initializers of more than one number are weights under their names; all others are compiled in. Inputs are
    positional, in the file's order, and calls may name them.

    Args:
        args, kwargs: example inputs, for files that leave dimensions open. Without any, dimensions are the file's.

    Raises:
        ArgumentError: an example is none of the file's inputs or does not fit.
        DynamicShapeError: a dimension is open; names the input.
        FrontendError: there is no package `onnx`, the file is no valid ONNX model, or an operator has no lowering; names it.
        OSError: the file cannot be opened.
    """
    start = time.perf_counter()
    onnx, importer = _packages()
    with open(path, "rb"):  # what the system says of it
        pass
    try:
        model = onnx.load(path)
        onnx.checker.check_model(os.fspath(path))
    except Exception as error:  # protobuf, the checker and readers of data beside the file have errors of their own
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise FrontendError(f"{path}: not a valid ONNX model ({reason[:300]})") from None
    weights = _weights_as_inputs(onnx, model)
    _fix_shapes(onnx, model, [i for i in model.graph.input if i.name not in weights], args, kwargs or {})
    _name_nodes(model)
    try:
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        module = _imported(importer, model, context or ir.Context())
    except Exception as error:  # the importer's are many: its own, KeyError, NotImplementedError, MLIR's
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise FrontendError(f"{path}: the ONNX model cannot be imported: {reason[:300]}") from None
    arguments, results = [], []
    for value in model.graph.input:
        shape, dtype = _tensor(onnx, value)
        if value.name in weights:
            arguments.append(Argument(value.name, "parameter", shape, dtype, weights[value.name]))
        else:
            position = sum(argument.position is not None for argument in arguments)
            arguments.append(Argument(value.name, "input", shape, dtype, position=position))
    for pipeline in (_TO_TORCH, TO_LINALG):
        run_reporting(pipeline, module)
    function = ir.FunctionType(ir.TypeAttr(module.body.operations[0].attributes["function_type"]).value)
    for value, kind in zip(model.graph.output, function.results, strict=True):
        results.append((tuple(ir.RankedTensorType(kind).shape), _tensor(onnx, value)[1]))
    return imported_function(module, arguments, results, {"import": time.perf_counter() - start})


def _packages() -> tuple[Any, Any]:
    """The package `onnx`, and the importer."""
    try:
        onnx, *_ = (importlib.import_module(f"onnx{part}") for part in ("", ".checker", ".numpy_helper", ".shape_inference"))
        from torch_mlir.extras import onnx_importer
    except ImportError as error:
        raise FrontendError("ONNX models need the package onnx: pip install 'kitsune-mlir[onnx]'") from error
    return onnx, onnx_importer


def _weights_as_inputs(onnx: Any, model: Any) -> dict[str, torch.Tensor]:
    """Take the initializers that are weights out of the graph's initializers and into its inputs; gives them by name."""
    graph = model.graph
    settings = {
        name for node in graph.node for name in (node.input[_SETTINGS[node.op_type] :] if node.op_type in _SETTINGS else ())
    }
    found: dict[str, torch.Tensor] = {}
    declared, kept = {value.name: value for value in graph.input}, []
    for initializer in graph.initializer:
        array = onnx.numpy_helper.to_array(initializer)
        dtype = _dtype(onnx, initializer.data_type, initializer.name)
        if initializer.name in settings or array.size < 2 or not _floating(dtype):
            kept.append(initializer)
            continue
        found[initializer.name] = torch_tensor(array, dtype).reshape(array.shape)
        if initializer.name not in declared:
            kind = onnx.helper.make_tensor_value_info(initializer.name, initializer.data_type, list(initializer.dims))
            graph.input.append(kind)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    fixed = {initializer.name for initializer in kept}
    inputs = [value for value in graph.input if value.name not in fixed]  # old files declare initializers as inputs too
    del graph.input[:]
    graph.input.extend(inputs)
    return found


def _fix_shapes(onnx: Any, model: Any, inputs: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Open dimensions of inputs become those of the examples.

    Raises:
        ArgumentError, DynamicShapeError: as `import_onnx`.
    """
    names = [value.name for value in inputs]
    unknown = [*(f"number {n}" for n in range(len(names), len(args))), *(n for n in kwargs if n not in names[len(args) :])]
    if unknown:
        raise ArgumentError(f"an example is given for input {unknown[0]}; the model's inputs are {', '.join(names)}")
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
            raise FrontendError(f"input '{value.name}' is no tensor of known rank")
        shape = [dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or "?") for dim in dims]
        example = given.get(value.name)
        if example is not None:
            fits = isinstance(example, torch.Tensor) and len(example.shape) == len(shape)
            fits = fits and all(isinstance(one, str) or one == n for one, n in zip(shape, example.shape, strict=True))
            dtype = _tensor(onnx, value)[1]
            if not fits or dtype_name(example.dtype) != dtype:
                tensor = isinstance(example, torch.Tensor)
                found = f"{dtype_name(example.dtype)} {list(example.shape)}" if tensor else shown(example)
                raise ArgumentError(f"input '{value.name}' is {dtype} {shape}, and the example {found}")
            for dim, extent in zip(dims, example.shape, strict=True):
                dim.dim_value = extent
        elif any(isinstance(one, str) for one in shape):
            raise DynamicShapeError(
                f"input '{value.name}' has the shape [{', '.join(map(str, shape))}]: pass examples of the inputs, whose shapes"
                " the program is compiled for",
                value=value.name,
            )
    del model.graph.value_info[:]  # what was inferred for open dimensions
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                value.type.tensor_type.ClearField("shape")
                break


def _name_nodes(model: Any) -> None:
    """Locations of operations are the names of their nodes: messages begin with these."""
    for node in model.graph.node:
        node.name = f"{node.domain or 'onnx'}.{node.op_type}" + (f" {node.name}" if node.name else "")


def _imported(importer: Any, model: Any, context: ir.Context) -> ir.Module:
    torch_dialect.register_dialect(context)
    info = importer.ModelInfo(model)
    module = info.create_module(context=context)
    importer.NodeImporter.define_function(info.main_graph, module.operation).import_all()
    return module


def _tensor(onnx: Any, value: Any) -> tuple[tuple[int, ...], str]:
    tensor = value.type.tensor_type
    return tuple(dim.dim_value for dim in tensor.shape.dim), _dtype(onnx, tensor.elem_type, value.name)


def _dtype(onnx: Any, kind: int, name: str) -> str:
    """An ONNX element type as MLIR spells it."""
    names = {
        **{"DOUBLE": "f64", "FLOAT": "f32", "FLOAT16": "f16", "BFLOAT16": "bf16", "BOOL": "i1", "UINT8": "ui8"},
        **{"INT64": "i64", "INT32": "i32", "INT16": "i16", "INT8": "i8"},
    }
    spelled = onnx.TensorProto.DataType.Name(kind)
    if spelled not in names:
        raise FrontendError(f"'{name}' is a tensor of {spelled.lower()}, which programs have not")
    return names[spelled]


def _floating(dtype: str) -> bool:
    return dtype in ("f64", "f32", "f16", "bf16")
