"""Where the results of a call lie: in new tensors, in the caller's (`Program.run(into=...)`), or where changed arguments do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.arguments import address_of, tensor_of
from kitsune_mlir.runtime.signature import Signature, torch_dtype
from kitsune_mlir.runtime.strided import span_of
from kitsune_mlir.runtime.structure import words_of

__all__ = ["ALIGNMENT", "Overwritten", "changed", "check_into", "empty", "into_leaves", "in_order", "inverse", "strides"]

ALIGNMENT = 16
"""Bytes: vector loads and bulk copies want it of every pointer."""


def strides(shape: Sequence[int], order: Sequence[int] = ()) -> tuple[int, ...]:
    """Elements from one index to the next of each dimension, for dimensions that lie in memory in `order`, outermost first."""
    found, step = [0] * len(shape), 1
    for dim in reversed(order or range(len(shape))):
        found[dim] = step
        step *= max(1, shape[dim])
    return tuple(found)


def in_order(tensor: Any, order: Sequence[int]) -> Any:
    """The tensor with its dimensions in memory in this order (row-major if empty), without a copy where they are so."""
    if not order:
        return tensor.contiguous()
    return tensor.permute(*order).contiguous().permute(*inverse(order))


def empty(shape: Sequence[int], order: Sequence[int], dtype: Any, device: Any) -> Any:
    """A new tensor with its dimensions in memory in this order."""
    import torch

    return torch.empty_strided(shape, strides(shape, order), dtype=dtype, device=device)


def inverse(order: Sequence[int]) -> list[int]:
    """The order of dimensions that undoes another."""
    return [list(order).index(d) for d in range(len(order))]


def changed(tensors: list[Any]) -> None:
    """Count a change of tensors whose memory a program has written, as PyTorch's own operations do."""
    import torch

    torch.autograd.graph.increment_version(tensors)  # inference tensors, which have no count, are left out


class Overwritten:
    """The results that a program writes where arguments lie.

    Attributes:
        pairs: number of the result, and of the argument, weights first.
    """

    def __init__(self, signature: Signature):
        names = [argument.name for argument in (*signature.weights, *signature.inputs)]
        self.pairs = [(o.index or 0, names.index(o.mutates or "")) for o in signature.outputs if o.in_place]
        self._places = [place for _, place in self.pairs]
        self._last: tuple[tuple[int, ...], frozenset[int]] = ((), frozenset())

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def shared(self, arguments: Sequence[Any], addresses: Sequence[int]) -> frozenset[int]:
        """The numbers of those arguments that are written and share memory with another one: they need memory of their own.

        Args:
            arguments: tensors, weights first.
            addresses: where each begins.
        """
        known, answer = self._last
        if known == (places := tuple(addresses)):
            return answer
        spans = sorted((*span_of(tensor), number) for number, tensor in enumerate(arguments))
        found: set[int] = set()
        end, owner = 0, -1
        for low, high, number in spans:
            if low < end and low < high:
                found |= {number, owner}
            if high > end:
                end, owner = high, number
        answer = frozenset(found & {*self._places})
        self._last = places, answer
        return answer


def into_leaves(into: Any, spec: Any) -> list[Any]:
    """The caller's tensors, one for each leaf of an output of structure `spec`; None where there is none.

    Raises:
        ArgumentError: they are nested in another way than the output.
    """
    from torch.utils import _pytree as pytree

    if into is None:
        return [None] * spec.num_leaves
    try:
        return spec.flatten_up_to(into)
    except (ValueError, TypeError) as error:
        given = words_of(pytree.tree_structure(into))
        raise ArgumentError(f"into has the structure {given}; the output's is {words_of(spec)} (None: a new tensor)") from error


def check_into(
    signature: Signature, given: Sequence[Any], device: Any, names: Sequence[str], arguments: Sequence[Any]
) -> tuple[dict[int, Any], list[Any]]:
    """The tensors into which a call is to write: by number of the result; and by leaf of the output, None for new ones.

    Args:
        given: as `into_leaves` has them.
        device: where the program runs.
        names, arguments: its arguments in words, and where they lie: dense tensors.

    Raises:
        ArgumentError: a tensor has another shape, dtype, device or strides than the result, is not aligned, shares memory with
            an argument or another one, or is for what is no result; the message says which, what it is and what is wanted.
    """
    import torch

    outputs = [output for output in signature.outputs if output.mutates is None]
    results: dict[int, Any] = {}
    leaves: list[Any] = [None] * len(outputs)
    taken = [(*span_of(tensor), name) for name, tensor in zip(names, arguments, strict=True)]
    for number, (value, output) in enumerate(zip(given, outputs, strict=True)):
        if value is None:
            continue
        name = "into" if len(outputs) == 1 else f"into[{number}]"
        if output.kind != "tensor":
            what = f"is {output.value!r}"
            if output.kind == "alias":
                what = (
                    f"is a view of argument '{output.argument}'" if output.lies else f"is argument '{output.argument}' itself"
                )
            raise ArgumentError(f"{name} is given, and this output {what}: give None")
        tensor = tensor_of(value, name, shared=True)
        index = output.index or 0
        shape, dtype = signature.results[index]
        if tensor.layout != torch.strided or tensor.is_nested:
            raise ArgumentError(f"{name} has layout {tensor.layout}, a dense tensor was expected")
        if tuple(tensor.shape) != shape:
            raise ArgumentError(f"{name} has shape {list(tensor.shape)}, the result has {list(shape)}")
        if tensor.dtype != torch_dtype(dtype):
            raise ArgumentError(f"{name} is {tensor.dtype}, the result is {torch_dtype(dtype)}")
        if tensor.device.type != device.type or device.index not in (None, tensor.device.index):
            raise ArgumentError(f"{name} is on {tensor.device}, the program runs on {device}")
        wanted = strides(shape, signature.result_orders.get(index, ()))
        if 0 not in shape and any(n > 1 and a != b for n, a, b in zip(shape, tensor.stride(), wanted, strict=True)):
            raise ArgumentError(f"{name} has strides {tuple(tensor.stride())}, the result has {wanted}")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(f"{name} requires a gradient, which a program does not make; detach it")
        if tensor.is_conj() or tensor.is_neg():
            raise ArgumentError(f"{name} is a conjugated or negated view; results are written as they are")
        if address_of(tensor, name) % ALIGNMENT:
            place = address_of(tensor, name) % ALIGNMENT
            raise ArgumentError(f"{name} begins {place} bytes behind a multiple of {ALIGNMENT}; memory has to begin at one")
        if index in results and not output.copied:
            if results[index] is not tensor:
                raise ArgumentError(f"{name} and an output before it are one tensor; into has two for it")
            leaves[number] = value
            continue
        low, high = span_of(tensor)
        for other_low, other_high, other in taken:
            if low < other_high and other_low < high:
                raise ArgumentError(f"{name} shares memory with {other}")
        taken.append((low, high, name))
        leaves[number] = value
        if not output.copied:
            results[index] = tensor
    return results, leaves
