"""A straight-line segment of captured calls, while it grows and when it is cut off.

Captured tensors are real ones, whose memory is there and is not written yet. A value is known by where it lies and how (its
address, shape, strides, dtype); all storages of a segment are held while it grows, so no address is used twice. Views are made
at once, so aliasing is PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from kitsune_mlir.windows.operators import Kind, Meta

__all__ = ["Op", "Recording", "Segment", "function_of", "rebuilt", "template"]

_TENSOR, _LIST = "tensor of a window", "list of a window"
_NOWHERE = -1
"""The address of what has no elements."""


def template(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Arguments as something to compare and to hash, without their tensors, which are added to the list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _TENSOR
    kind = type(value)
    if kind is float:
        return kind, value.hex()  # nan is nan, and -0.0 is not 0.0
    if kind is int or kind is bool:
        return kind, value
    if isinstance(value, list | tuple):
        return (_LIST, *(template(one, tensors) for one in value))
    return value


def rebuilt(given: Any, tensors: Iterator[Any]) -> Any:
    """The arguments that a template was made of, with these tensors."""
    if isinstance(given, tuple):
        if given[0] == _LIST:
            return [rebuilt(one, tensors) for one in given[1:]]
        return float.fromhex(given[1]) if given[0] is float else given[1]
    return next(tensors) if given is _TENSOR else given


class Op(NamedTuple):
    """A call. `refs`: numbers of its tensors; `outs`: of its results (none of a call in place)."""

    kind: Kind
    func: Any
    args: Any
    kwargs: tuple[tuple[str, Any], ...]
    refs: tuple[int, ...]
    outs: tuple[int, ...]


class Segment(NamedTuple):
    """What is appended.

    Attributes:
        key: all that its code depends on.
        ops: in order; values are numbered inputs first, then results as they come.
        inputs: its tensors from outside.
        written: numbers of those that it changes.
        outs, results: numbers of the values that somebody still has, and where they are to be written.
        aliased: it changes an input that shares memory with another one.
    """

    key: tuple[Any, ...]
    ops: Sequence[Op]
    inputs: Sequence[torch.Tensor]
    written: Sequence[int]
    outs: Sequence[int]
    results: Sequence[torch.Tensor]
    aliased: bool


class _Root(NamedTuple):
    """A storage. `held`: the storage object of one that the segment made, and how often it is used by that alone."""

    number: int
    held: Any
    uses: int


class Recording:
    """Calls since the last cut."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.metas: list[Meta] = []
        self._values: dict[tuple[Any, ...], int] = {}
        self._roots: dict[int, _Root] = {}  # by address of the storage
        self._root_of: list[int] = []  # by value: address of its storage
        self._inputs: dict[int, torch.Tensor] = {}
        self._written: set[int] = set()

    def number_of(self, tensor: torch.Tensor) -> int:
        """The number of a value; a tensor that is not known is a new input, or a view that was made elsewhere."""
        shape, stride = tensor.shape, tensor.stride()
        place = (tensor.data_ptr(), shape, stride, tensor.dtype)
        number = self._values.get(place)
        if number is not None:
            return number
        base = tensor.untyped_storage().data_ptr()
        root = self._roots.get(base)
        number = self._new(tensor, place, base)
        if root is not None and root.held is not None and tensor.dtype == self.metas[root.number].dtype:
            made = tuple((int, n) for n in shape), tuple((int, n) for n in stride)
            args = (_LIST, _TENSOR, (_LIST, *made[0]), (_LIST, *made[1]), (int, tensor.storage_offset()))
            self.ops.append(Op(Kind.VIEW, torch.ops.aten.as_strided.default, args, (), (root.number,), (number,)))
            return number
        self._inputs[number] = tensor
        if root is None:
            self._roots[base] = _Root(number, None, 0)
        return number

    def view(self, op: Op, results: Sequence[torch.Tensor]) -> None:
        """Note a view that was made; of what is known already there is nothing to note."""
        outs = []
        for tensor in results:
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            known = self._values.get(place)
            if known is not None and len(results) == 1:
                return
            outs.append(self._new(tensor, place, tensor.untyped_storage().data_ptr()))
        self.ops.append(op._replace(outs=tuple(outs)))

    def function(self, op: Op, results: Sequence[torch.Tensor]) -> None:
        """Note a call with its results, whose memory was made for it. One without elements is no value that somebody can need:
        a batch normalization gives two beside its own (statistics that only training saves)."""
        outs = []
        for tensor in results:
            if not tensor.numel():
                outs.append(len(self.metas))
                self.metas.append(Meta(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device))
                self._root_of.append(_NOWHERE)
                continue
            storage = tensor.untyped_storage()
            base = storage.data_ptr()
            number = self._new(tensor, (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype), base)
            self._roots[base] = _Root(number, storage, torch._C._storage_Use_Count(storage._cdata) - 1)
            outs.append(number)
        self.ops.append(op._replace(outs=tuple(outs)))

    def in_place(self, op: Op) -> None:
        """Note a call that changes its first tensor."""
        self._written.add(self._root_of[op.refs[0]])
        self.ops.append(op)

    def touches(self, tensors: Sequence[torch.Tensor], writes: bool) -> bool:
        """Whether someone who reads (or writes) these tensors has to come after the segment."""
        for tensor in tensors:
            base = tensor.untyped_storage().data_ptr()
            root = self._roots.get(base)
            if root is not None and (writes or root.held is not None or base in self._written):
                return True
        return False

    def finish(self) -> Segment | None:
        """The segment that computes what somebody still has; None where that is nothing."""
        live = [
            (base, root)
            for base, root in self._roots.items()
            if root.held is not None and torch._C._storage_Use_Count(root.held._cdata) > root.uses
        ]
        outside = [base for base in self._written if self._roots[base].held is None]
        ops, values = self._needed({root.number for _, root in live}, {*outside, *(base for base, _ in live)})
        if not ops:
            return None
        inputs = [n for n in self._inputs if n in values]
        new = {n: place for place, n in enumerate(inputs)}
        for op in ops:
            for n in op.outs:
                new[n] = len(new)
        ops = [op._replace(refs=tuple(new[n] for n in op.refs), outs=tuple(new[n] for n in op.outs)) for op in ops]
        bases = [self._root_of[n] for n in inputs]
        written = [place for place, base in enumerate(bases) if base in self._written]
        aliased = any(bases.count(bases[place]) > 1 for place in written)
        outs = [new[root.number] for _, root in live]
        results = [self._alias(root) for _, root in live]
        key = tuple(op[1:] for op in ops), tuple(self.metas[n] for n in inputs), tuple(outs), aliased
        return Segment(key, ops, [self._inputs[n] for n in inputs], written, outs, results, aliased)

    def _needed(self, values: set[int], bases: set[int]) -> tuple[list[Op], set[int]]:
        """The calls that these values, and the last contents of these storages, depend on; and all values that they use."""
        kept = []
        for op in reversed(self.ops):
            if op.kind is Kind.IN_PLACE:
                wanted = self._root_of[op.refs[0]] in bases
            elif op.kind is Kind.VIEW:
                wanted = any(n in values for n in op.outs)
            else:
                wanted = any(n in values or self._root_of[n] in bases for n in op.outs)
            if wanted:
                kept.append(op)
                values.update(op.refs)
                bases.update(self._root_of[n] for n in op.refs)
        return kept[::-1], values

    def _alias(self, root: _Root) -> torch.Tensor:
        meta = self.metas[root.number]
        return torch.empty(0, dtype=meta.dtype, device=meta.device).set_(root.held, 0, meta.shape, meta.stride)

    def _new(self, tensor: torch.Tensor, place: tuple[Any, ...], base: int) -> int:
        number = self._values[place] = len(self.metas)
        self.metas.append(Meta(tuple(place[1]), place[2], place[3], tensor.device))
        self._root_of.append(base)
        return number


def function_of(inputs: int, ops: Sequence[Op], outs: Sequence[int]) -> Callable[..., tuple[Any, ...]]:
    """The calls of a segment as a function of its inputs, in code of their own: a line for each.

    Args:
        inputs, ops, outs: how many there are, and the others, as of `Segment`.
    """
    names: dict[str, Any] = {"leaves": _leaves}

    def text(given: Any, refs: Iterator[int]) -> str:
        if given is _TENSOR:
            return f"v{next(refs)}"
        if isinstance(given, tuple) and given[0] == _LIST:
            return f"[{', '.join(text(one, refs) for one in given[1:])}]"
        name = f"c{len(names)}"
        names[name] = rebuilt(given, iter(()))
        return name

    lines = [f"def run({', '.join(f'v{n}' for n in range(inputs))}):"]
    for number, op in enumerate(ops):
        refs = iter(op.refs)
        given = [text(one, refs) for one in op.args[1:]] + [f"{name}={text(one, refs)}" for name, one in op.kwargs]
        names[f"f{number}"] = op.func
        call = f"f{number}({', '.join(given)})"
        if op.outs and [str(one.type) for one in op.func._schema.returns] == ["Tensor"]:
            call = f"v{op.outs[0]} = {call}"
        elif op.outs:
            call = f"[{', '.join(f'v{n}' for n in op.outs)}] = leaves({call})"
        lines.append(f"    {call}")
    lines.append(f"    return ({''.join(f'v{n}, ' for n in outs)})")
    exec("\n".join(lines), names)
    return names["run"]


def _leaves(given: Any) -> Sequence[Any]:
    return given if all(isinstance(one, torch.Tensor) for one in given) else pytree.tree_leaves(given)
