"""What a window does with a call of an operator, and what the call will give."""

from __future__ import annotations

import contextlib
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

__all__ = ["Kind", "Meta", "Results", "kind_of", "refusal", "results_of"]


class Kind(enum.Enum):
    """How calls of an operator are taken."""

    FUNCTION = "new tensors"
    VIEW = "views"
    IN_PLACE = "its first argument, changed"
    EAGER = "PyTorch runs it"


class Meta(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Results(NamedTuple):
    """What a call gives: metas of its tensors, and their structure."""

    metas: Sequence[Meta]
    spec: Any


@functools.cache
def kind_of(func: Any) -> tuple[Kind, str]:
    """How calls of an operator are taken; if by PyTorch, why."""
    schema, tags = func._schema, func.tags
    if func.namespace != "aten":
        return Kind.EAGER, "an operator of another library"
    if torch.Tag.nondeterministic_seeded in tags:
        return Kind.EAGER, "random numbers, in the order of the calls"
    if torch.Tag.data_dependent_output in tags:
        return Kind.EAGER, "a value is read"
    if torch.Tag.dynamic_output_shape in tags and func is not torch.ops.aten.index.Tensor:
        return Kind.EAGER, "a shape depends on values"
    if torch.Tag.inplace_view in tags:
        return Kind.EAGER, "a tensor gets another shape in place"
    if any(not _tensors(result.type) for result in schema.returns) or not schema.returns:
        return Kind.EAGER, "it gives no tensors"
    if schema.is_mutable:
        written = [n for n, one in enumerate(schema.arguments) if one.alias_info is not None and one.alias_info.is_write]
        returned = schema.returns[0].alias_info
        if (
            written == [0]
            and len(schema.returns) == 1
            and returned is not None
            and schema.arguments[0].type.kind() == "TensorType"
        ):
            return Kind.IN_PLACE, ""
        return Kind.EAGER, "it writes to an argument that is not its first one"
    return (Kind.VIEW if any(one.alias_info is not None for one in schema.returns) else Kind.FUNCTION), ""


def _tensors(kind: Any) -> bool:
    return str(kind) in ("Tensor", "List[Tensor]")


def refusal(func: Any, tensors: Sequence[torch.Tensor], args: Sequence[Any]) -> str:
    """Why a call with these arguments is left to PyTorch although its operator is not; empty where it is not.

    Args:
        tensors: all tensors among the arguments.
    """
    device = tensors[0].device
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return f"an argument is a {type(tensor).__name__} of layout {tensor.layout}"
        if tensor.dtype.is_complex or tensor.is_quantized:
            return f"an argument is {tensor.dtype}"
        if tensor.device != device and tensor.dim():
            return "arguments are on several devices"
        if not tensor.numel():
            return "an argument has no elements"
    if func is torch.ops.aten.index.Tensor and any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:]):
        return "a shape depends on values"
    if func in _NORMS and args[5]:
        return "it changes running statistics"
    return ""


def _is_meta(value: Any) -> bool:
    return isinstance(value, Meta)


_NORMS = (torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default)


def results_of(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Results | str:
    """What a call gives, found without running it; or why it cannot be found.

    Args:
        args, kwargs: with a `Meta` in the place of each tensor.
    """
    given = [one for one in pytree.tree_leaves((args, kwargs), _is_meta) if _is_meta(one)]
    device = given[0].device
    # Sizes and strides of element-wise operators depend on no device: the "meta" device gives them in a fraction of the time.
    plain = torch.Tag.pointwise in func.tags and all(one.device == device for one in given)
    fake = contextlib.nullcontext() if plain else FakeTensorMode()
    with torch.utils._python_dispatch._disable_current_modes(), fake, torch.no_grad():

        def made(value: Any) -> Any:
            if isinstance(value, Meta):
                where = "meta" if plain else value.device
                return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=where)
            return value

        args, kwargs = pytree.tree_map(made, (args, kwargs), is_leaf=_is_meta)
        try:
            given = func(*args, **kwargs)
        except Exception as error:  # an operator without a rule for shapes, or a call that is wrong: eager says so
            return f"its result is not known before it runs ({type(error).__name__})"
        leaves, spec = pytree.tree_flatten(given)
        if any(not isinstance(leaf, torch.Tensor) or leaf.dtype.is_complex for leaf in leaves):
            return "it gives no plain tensors"
        metas = [Meta(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, device if plain else leaf.device) for leaf in leaves]
    if all(0 in meta.shape for meta in metas):
        return "its result has no elements"
    if any(meta.device != device for meta in metas):  # also what Tensor.tolist copies before it reads
        return "it copies to another device"
    return Results(metas, spec)
