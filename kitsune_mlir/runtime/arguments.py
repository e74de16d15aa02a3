"""What a caller gives to a program: as tensors of memory that the program can use, and in words for messages."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.plain import shown

__all__ = [
    "WithoutMemory",
    "address_of",
    "copied_uncounted",
    "dense_tensor",
    "fixed_text",
    "leaf_words",
    "overwrite",
    "overwrite_each",
    "tensor_of",
]


def tensor_of(value: Any, name: str, shared: bool = False) -> Any:
    """A tensor as it is, or a tensor of another library's array, in the same memory where it can be (must it be `shared`?).

    Raises:
        ArgumentError: it is neither, or the array has a dtype or a layout that tensors have not.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if not hasattr(value, "__dlpack__"):
        raise ArgumentError(f"{name} is {leaf_words(value, 'a ')}, a tensor was expected")
    if shared and not getattr(getattr(value, "flags", None), "writeable", True):
        raise ArgumentError(f"{name} is a {type(value).__name__} that cannot be written, and the model changes it")
    steps = getattr(value, "strides", None)
    if isinstance(steps, tuple) and any(step < 0 for step in steps):  # PyTorch ends the process on them
        if shared or not hasattr(value, "copy"):
            raise ArgumentError(f"{name} is a {type(value).__name__} with negative strides, which tensors have not")
        value = value.copy()
    try:
        return torch.from_dlpack(value)
    except (RuntimeError, TypeError, ValueError, BufferError) as error:
        raise ArgumentError(f"{name} is a {type(value).__name__} that cannot be taken as a tensor: {error}") from error


class WithoutMemory(ArgumentError):
    """A tensor has no memory of its own: PyTorch traces or maps the call, or it is of a class that holds other tensors."""


def address_of(tensor: Any, name: str) -> int:
    """Where a tensor's first element is.

    Raises:
        WithoutMemory: nowhere, as of the tensors with which PyTorch traces a function or maps it over a dimension.
    """
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:
        raise WithoutMemory(f"{name} has no memory: programs cannot be traced, mapped or differentiated") from error
    if not address and tensor.numel():
        raise WithoutMemory(f"{name} is a {type(tensor).__name__} and has no memory: programs cannot be traced")
    return address


def copied_uncounted(over: Any, value: Any) -> Any:
    """`over.copy_(value)`, which does not count as a change of `over`: the caller has counted it."""
    from torch.autograd.grad_mode import _unsafe_preserve_version_counter

    with _unsafe_preserve_version_counter(over):
        return over.copy_(value)


def overwrite(over: Any, value: Any, name: str, counted: bool) -> None:
    """Copy a result to the argument `name`, which the model changes in place.

    Args:
        counted: whether that counts as a change.

    Raises:
        ArgumentError: the argument's memory cannot be written so.
    """
    try:
        over.copy_(value) if counted else copied_uncounted(over, value)
    except RuntimeError as error:  # such as elements that share memory
        raise ArgumentError(f"'{name}', which the model changes, cannot be overwritten: {error}") from error


def overwrite_each(pairs: Sequence[tuple[Any, Any, str]], counted: bool) -> None:
    """`overwrite` of several, in order; on a GPU in one launch of each type where they lie apart: each by itself costs one."""
    import torch
    from torch.autograd.grad_mode import _unsafe_preserve_version_counter

    overs, values = tuple(over for over, _, _ in pairs), [value for _, value, _ in pairs]
    memory = [one.untyped_storage()._cdata for one in (*overs, *values)]
    alike = all(o.is_cuda and (o.dtype, o.shape, o.device) == (v.dtype, v.shape, v.device) for o, v, _ in pairs)
    if len(pairs) > 1 and alike and len(set(memory)) == len(memory):
        with contextlib.nullcontext() if counted else _unsafe_preserve_version_counter(overs), torch.no_grad():
            for kind in {over.dtype for over in overs}:  # PyTorch copies those of several types one by one
                some = [pair for pair in zip(overs, values, strict=True) if pair[0].dtype == kind]
                torch._foreach_copy_(*map(list, zip(*some, strict=True)))  # type: ignore[attr-defined]
        return
    for over, value, name in pairs:
        with torch.no_grad():
            overwrite(over, value, name, counted)


def dense_tensor(value: Any, name: str) -> Any:
    """A tensor that a caller gives as input `name`.

    Raises:
        ArgumentError: it is none, or is sparse or nested.
    """
    import torch

    tensor = value if isinstance(value, torch.Tensor) else tensor_of(value, f"input '{name}'")
    if tensor.layout != torch.strided or tensor.is_nested:
        what = "is nested" if tensor.is_nested else f"has layout {tensor.layout}"
        raise ArgumentError(f"input '{name}' {what}, a dense tensor was expected")
    return tensor


def fixed_text(value: Any) -> str:
    """A value that the code holds for, as Python writes it; one from a package may be that already."""
    return value["repr"] if isinstance(value, dict) and "repr" in value else repr(value)


def leaf_words(value: Any, article: str = "") -> str:
    """What a leaf of the arguments is, for messages: a plain value as it is, of others the type."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{article}tensor"
    plain = isinstance(value, bool | int | float | str | type(None) | torch.dtype)
    return shown(value) if plain else f"{article}{type(value).__name__}"
