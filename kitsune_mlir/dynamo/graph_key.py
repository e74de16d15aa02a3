"""A graph of Dynamo's as text, before AOTAutograd has seen it: equal for graphs that become the same program.

All that tracing reads is in it; where that cannot be said, there is no text, and the graph is traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.torch_state import function_name, global_state, static_kind
from kitsune_mlir.frontend.graph_text import NAMESPACES, described
from kitsune_mlir.frontend.source import frames_of_node

__all__ = ["key_text"]

_PLAIN = (int, float, bool, complex, str, type(None), type(...), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types whose `repr` says all."""

_MODULES = ("torch", "_operator", "operator", "math", "builtins")
"""Of functions that mean the same in every process; others may be a user's."""


class _Unknown(Exception):
    """Something that no text says all of."""


def key_text(gm: fx.GraphModule, inputs: Sequence[Any]) -> str | None:
    """All that tracing and compiling read of a graph, of its inputs and of PyTorch's settings.

    Lines of the source are in it, because remarks and warnings name them. Values of tensors are not, and the graph holds none.

    Args:
        inputs: that it is compiled with, one for each placeholder.

    Returns:
        The text; None where something has none: sizes that are symbols, tensors and graphs that the graph holds itself,
        operators of other libraries, a user's functions, tensors of subclasses.
    """
    try:
        state = global_state()
        if state is None or len(list(gm.modules())) > 1:
            return None
        lines = [*state, *_input_lines(gm, inputs), *map(_line, gm.graph.nodes)]
    except _Unknown:
        return None
    return "\n".join(lines)


def _input_lines(gm: fx.GraphModule, inputs: Sequence[Any]) -> Iterator[str]:
    """Each input, and which one it shares its memory with."""
    first: dict[int, int] = {}
    for n, (node, value) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)):
        kind = static_kind(node, value)
        if kind is None:
            raise _Unknown
        shares = first.setdefault(value.untyped_storage()._cdata, n)
        flags = value.requires_grad, value.is_inference(), value.is_conj(), value.is_neg()
        yield f"{_value(value)} from {value.storage_offset()} in {shares}: {kind} {flags}"


def _line(node: fx.Node) -> str:
    if node.op == "call_function":
        target = _function(node.target)
    elif node.op in ("placeholder", "call_method", "output"):
        target = str(node.target)
    else:
        raise _Unknown
    value = _value(node.meta.get("example_value", node.meta.get("val")))
    given = f"{_argument(node.args)} {_argument(node.kwargs)}"
    return f"{node.op} {node.name} {target} {given} {value} {frames_of_node(node)}"


def _function(target: Any) -> str:
    """The name under which every process has this function."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        overload = getattr(target, target.overloads()[0]) if isinstance(target, torch._ops.OpOverloadPacket) else target
        if overload.namespace not in NAMESPACES:
            raise _Unknown
        return str(target)
    if isinstance(target, torch._ops.OperatorBase):
        raise _Unknown
    name = function_name(target)
    if name is None or name.partition(".")[0] not in _MODULES:
        raise _Unknown
    return name


def _argument(value: Any) -> str:
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, slice):
        return f"slice({_argument(value.start)}, {_argument(value.stop)}, {_argument(value.step)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_argument(name)}: {_argument(one)}' for name, one in value.items())}}}"
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return f"{kind}({', '.join(map(_argument, value))})"
    if type(value) not in _PLAIN:
        raise _Unknown
    return repr(value)


def _value(value: Any) -> str:
    """What is known of a value; of tensors type, sizes, strides and device."""
    if isinstance(value, Tensor):
        if any(type(n) is not int for n in (*value.shape, *value.stride())):
            raise _Unknown
        return described(value)
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_value, value))})"
    return _argument(value)
