"""A stage as a program of its own, so that it can be compiled and timed alone."""

from __future__ import annotations

from collections.abc import Iterable

from torch_mlir import ir
from torch_mlir.dialects import func

from kitsune_mlir.dialects.stage_graph import PipelineOp, YieldOp, pack, unpack
from kitsune_mlir.dialects.verify import captures, walk
from kitsune_mlir.runtime.timer import TensorType

__all__ = ["isolate", "tensor_types"]

NAME = "main"


def isolate(stage: ir.Operation) -> ir.Module | None:
    """A module whose function `main` takes what the stage uses from outside and returns its results.

    None where the stage uses something that is no tensor and no constant.
    """
    outside = captures(stage)
    tensors = [v for v in outside if isinstance(v.type, ir.RankedTensorType)]
    constants = [v for v in outside if v not in tensors]
    if any(isinstance(v.owner, ir.Block) or v.owner.name != "arith.constant" for v in constants):
        return None
    with stage.context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp(NAME, ([v.type for v in tensors], []))
        entry = function.add_entry_block()
        with ir.InsertionPoint(entry):
            new = dict(zip(tensors, entry.arguments, strict=True))
            new |= {v: v.owner.clone().results[0] for v in constants}
            pipeline = PipelineOp(ir.StringAttr.get(f"{NAME}_p0"), stage.results[0].type)
        body = pipeline.operation.regions[0].blocks.append()
        with ir.InsertionPoint(body):
            copy = stage.clone()
            for op in walk(copy):
                for n, operand in enumerate(op.operands):
                    if operand in new:
                        op.operands[n] = new[operand]
            YieldOp(value=pack(unpack(copy.results[0])))
        with ir.InsertionPoint(entry):
            results = unpack(pipeline.operation.results[0])
            func.ReturnOp(results)
            types = ir.FunctionType.get([v.type for v in tensors], [r.type for r in results])
            function.attributes["function_type"] = ir.TypeAttr.get(types)
        return module


def tensor_types(module: ir.Module) -> tuple[list[TensorType], list[TensorType]]:
    """What the function of an isolated stage takes and returns: shapes and element types."""
    (function,) = [op for op in module.body.operations if op.operation.name == "func.func"]
    type_ = ir.FunctionType(ir.TypeAttr(function.operation.attributes["function_type"]).value)

    def plain(types: Iterable[ir.Type]) -> list[TensorType]:
        tensors = map(ir.RankedTensorType, types)
        return [(list(t.shape), str(t.element_type)) for t in tensors]

    return plain(type_.inputs), plain(type_.results)
