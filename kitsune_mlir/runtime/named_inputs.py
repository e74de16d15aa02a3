"""A call of a program from tensors by the names of its inputs, as files and requests over a network hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.signature import Signature
from kitsune_mlir.runtime.structure import structure_of

__all__ = ["call_of"]


def call_of(signature: Signature, tensors: Mapping[str, Any], where: str = "the call") -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments of a call.

    Args:
        tensors: one for each input, by its name.
        where: they come from, for messages.

    Raises:
        ArgumentError: one is missing or not wanted, or an argument is a value that the program was compiled for and that
            cannot be made of text.
    """
    from torch.utils import _pytree as pytree

    wanted = [i.name for i in signature.inputs]
    if {*tensors} != {*wanted}:
        raise ArgumentError(f"{where} holds {', '.join(tensors) or 'nothing'}; the program's inputs are {', '.join(wanted)}")
    spec = structure_of(signature.in_spec)
    leaves: list[Any] = [None] * spec.num_leaves
    for item in signature.inputs:
        leaves[item.position] = tensors[item.name]
    for position, value in signature.fixed:
        if isinstance(value, dict):
            raise ArgumentError(f"argument {position} must be {value.get('repr')}, which cannot be made from a file")
        leaves[position] = value
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return list(args), dict(kwargs)
