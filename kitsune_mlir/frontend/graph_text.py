"""A model as text: equal for models that become the same program, whatever the values of their parameters."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from kitsune_mlir.frontend.imported import Argument, ImportedModel
from kitsune_mlir.frontend.importer import ExportedModel, is_channels_last
from kitsune_mlir.frontend.source import frames_of_node, target_name

__all__ = ["NAMESPACES", "described", "graph_text", "imported_text"]

NAMESPACES = ("aten", "prims", "higher_order", "kitsune")
"""Whose operators mean the same in every process; others may be decomposed by a user's code."""
_BUILTIN = ("_operator", "math", "torch")

_ADDRESS = " at 0x"


def graph_text(model: ExportedModel) -> str | None:
    """All that import and compiler read of an exported model.

    Lines of the source are in it, because remarks and warnings name them. The values of parameters and buffers are not: a
    program is called with them. Values of other constants count, as hashes.

    Returns:
        The text; None where something in the graph has no text that says what it does.
    """
    program = model.program
    lines = [*_graph_lines(program.graph_module), str(program.graph_signature), str(program.call_spec), repr(model.fixed)]
    lines += _weight_lines(model)
    lines.append(repr(sorted(model.strided.items())))
    lines += ["channels last" if isinstance(leaf, torch.Tensor) and is_channels_last(leaf) else "" for leaf in model.leaves]
    text = "\n".join(lines)
    return None if _ADDRESS in text or _UNKNOWN in lines else text


def imported_text(model: ImportedModel) -> str | None:
    """All that the compiler reads of an imported model, but for the values of its weights; None as of `graph_text`."""

    def described(argument: Argument) -> str:
        return repr(dataclasses.replace(argument, value=None))

    lines = [*map(described, (*model.arguments, *model.sources)), repr(model.results), repr(model.fixed_inputs)]
    lines += [str(model.in_spec), str(model.out_spec), repr(model.parameters)]
    if any(_ADDRESS in line for line in lines):
        return None
    return "\n".join([*lines, model.module.operation.get_asm(enable_debug_info=True)])


_UNKNOWN = "unknown"


def _graph_lines(module: fx.GraphModule) -> Iterator[str]:
    for name, part in module.named_modules():
        if not isinstance(part, fx.GraphModule):
            continue
        yield f"graph {name}"
        for node in part.graph.nodes:
            if node.op == "call_function" and not _is_known(node.target):
                yield _UNKNOWN
            value = tree_map(described, node.meta.get("val"))
            yield f"{node.op} {node.name} {target_name(node)} {node.args} {dict(node.kwargs)} {value} {frames_of_node(node)}"


def _is_known(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in NAMESPACES
    return isinstance(target, torch._ops.HigherOrderOperator) or getattr(target, "__module__", "") in _BUILTIN


def described(value: Any) -> str:
    """A value of a graph as text; of tensors type, sizes, strides and device."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}{list(value.stride())}{value.device}{value.layout}"
    return repr(value)


def _weight_lines(model: ExportedModel) -> Iterator[str]:
    """Each weight, and which one it shares its memory with; constants with a hash of their values."""
    program, first = model.program, {}
    for name, tensor in [*program.state_dict.items(), *program.constants.items()]:
        if not isinstance(tensor, torch.Tensor):
            yield _UNKNOWN
            continue
        place = (tensor.data_ptr(), tensor.device) if tensor.numel() and tensor.device.type != "meta" else name
        yield f"{name} {described(tensor)} as {first.setdefault((place, described(tensor)), name)}"
    buffers = set(program.graph_signature.buffers)
    for name, tensor in program.constants.items():
        if name not in buffers and tensor.device.type != "meta":
            data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            yield f"{name} {hashlib.sha256(data.numpy().tobytes()).hexdigest()}"
