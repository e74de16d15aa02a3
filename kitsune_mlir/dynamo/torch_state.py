"""What PyTorch says, no public part of it, of what a graph of Dynamo's means: settings, functions' names, kinds of inputs."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

__all__ = ["function_name", "global_state", "static_kind"]


def global_state() -> list[str] | None:
    """What of PyTorch's state tracing may depend on, as text.

    Returns:
        The text; None where somebody watches what operators do, or the state is not known.
    """
    backends, cuda = torch.backends, torch.backends.cuda
    try:
        if torch._C._functorch.peek_interpreter_stack() is not None or torch._C._len_torch_function_stack():
            return None
        if any(not isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack()):
            return None
        flags = [
            torch.is_inference_mode_enabled(),
            backends.mkldnn.enabled,
            backends.cudnn.enabled,
            backends.cudnn.deterministic,
        ]
        flags += [cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled()]
        flags += [torch.get_float32_matmul_precision(), backends.opt_einsum.enabled, backends.opt_einsum.strategy]
        own = sorted(name for name in torch.library._impls if name.startswith(("aten/", "prims/")))  # in Python, a user's too
        guarded = torch._C._dynamo.guards.GlobalStateGuard().__getstate__()  # type: ignore[attr-defined]
        return [guarded, repr(flags), repr(own), torch._functorch.config.get_hash().hex()]  # type: ignore[attr-defined]
    except AttributeError:  # a PyTorch that says it in other words
        return None


def function_name(function: Any) -> str | None:
    """The name by which a function is found in the same place by every process; None if it is not."""
    try:
        name = torch.fx.node._get_qualified_name(function)
        module, _, rest = name.rpartition(".")
        held = functools.reduce(getattr, module.split(".")[1:], sys.modules[module.split(".")[0] or "builtins"])
        return name if getattr(held, rest) is function else None
    except (AttributeError, KeyError, RuntimeError):
        return None


def static_kind(node: fx.Node, value: Any) -> str | None:
    """Whether an input of Dynamo's graph is a parameter, and what Dynamo says of its address; None if it is no plain tensor."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) or value.layout != torch.strided:
        return None
    kept = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    return f"{isinstance(value, torch.nn.Parameter)} {kept}"
