"""What Dynamo knows of the function that it traces: which of its sizes change from call to call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo import exc, pgo
from torch._dynamo.symbolic_convert import InstructionTranslator

__all__ = ["size_changes"]


def size_changes(changing: Mapping[fx.Node, Sequence[int]], surely: Sequence[fx.Node]) -> None:
    """Tell Dynamo that sizes of inputs of the graph at hand change, and have it trace again.

    Args:
        changing: dimensions by placeholder.
        surely: where none of these has a size that was not known to change, nothing happens: Dynamo had a reason then.

    Raises:
        exc.TensorifyScalarRestartAnalysis: Dynamo is to trace again.
    """
    if not torch._dynamo.config.automatic_dynamic_shapes or not torch._dynamo.config.assume_static_by_default:
        return
    frame = InstructionTranslator.current_tx().output.root_tx
    if frame is None:
        return
    identity: Callable[..., Any] = pgo.CodeId.make
    taken = len(inspect.signature(identity).parameters)  # PyTorch 2.11 does not tell closures of one function apart
    sizes = pgo.get_code_state()[identity(*(frame.f_code, frame.closure)[:taken])].automatic_dynamic
    new = False
    for node, dims in changing.items():
        given = node.meta.get("grapharg")
        entry = sizes.get(given.source.name) if given is not None else None
        if entry is None or not isinstance(entry.size, tuple):
            continue
        told = tuple(pgo.auto_dynamic if dim in dims else size for dim, size in enumerate(entry.size))
        new |= node in surely and told != entry.size
        entry.size = told
    if new:
        raise exc.TensorifyScalarRestartAnalysis(restart_reason="kitsune: an input grows from call to call")
