"""A program as part of a graph, called with the tensors that the graph's caller gives, weights among them."""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.packed import packed, unpacked
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.results import inverse, strides
from kitsune_mlir.runtime.signature import Output
from kitsune_mlir.runtime.weights import WeightCopy
from kitsune_mlir.sized.restride import same_strides, with_strides, without_views
from kitsune_mlir.sized.taker import taker

__all__ = ["OtherStrides", "Part", "storage_uses"]

Made = tuple[Sequence[int], Sequence[int], Sequence[int] | None]

_POINTER = Tensor.data_ptr

storage_uses: Callable[[int], int] = torch._C._storage_Use_Count  # type: ignore[attr-defined]
"""How many tensors, and others, hold the storage at an address (`_cdata`)."""

MOST_WEIGHTS = 64
"""Models of one class whose weights are held as one program wants them; those of the model called longest ago are let go."""


class OtherStrides(ArgumentError):
    """Weights lie in other strides than those that a graph was compiled for, which results may have from them."""

    def __init__(self) -> None:
        super().__init__("weights lie in other strides than when they were compiled: call torch.compiler.reset()")


class Part(torch.nn.Module):
    """Runs a program, and hands out new tensors with the strides that the graph's have.

    Args:
        program: takes the inputs that are no weights; its weights are named after the other inputs.
        names: of all inputs, in order.
        weights: which of them are weights.
        orders: for each input that is none, the order in which the program takes its dimensions, or None.
        made: for each output its size and strides, and the order in which the program gives its dimensions, or None.
        threads: of the host's, workers of one call, for where it is loaded again.

    Attributes:
        inputs: numbers of the inputs that the program is called with.
        bound: where the weights of the last call lie, None before the first one, and the program with them.
    """

    def __init__(
        self,
        program: Program,
        names: Sequence[str],
        weights: Set[str],
        orders: Sequence[Any],
        made: Sequence[Made],
        threads: int | None = None,
    ):
        super().__init__()
        self.program = program
        self._given = (tuple(names), set(weights), tuple(orders), tuple(made), threads)
        own = [output for output in program.signature.outputs if output.mutates is None]
        self._made = [_maker(program, output, *how) for output, how in zip(own, made, strict=True)]
        self._as_is = not any(self._made)
        used = {weight.name for weight in program.signature.supplied}
        self._weights = [n for n, name in enumerate(names) if name in weights & used]
        self._names = [names[n] for n in self._weights]
        given = [n for n, name in enumerate(names) if name not in weights]
        self._take_weights, self._take_given = taker(self._weights), taker(given)
        self.inputs: Sequence[int] = given if self._weights else range(len(names))
        self._orders = [(n, order) for n, order in enumerate(orders) if order is not None]
        # Read and replaced as one, for calls of several threads; nothing is there yet.
        self.bound: tuple[list[int] | None, Program] = (None, program)
        self._known: OrderedDict[tuple[int, ...], _Bound] = OrderedDict()
        self._strides: list[tuple[int, ...]] | None = None  # of the weights in the first call
        self._lock = threading.Lock()

    def forward(self, *args: Tensor) -> Sequence[Tensor]:
        """The outputs."""
        program, given = self.program, args
        if self._weights:
            weights = self._take_weights(args)
            # Not whether they are the same objects: `parameter.data = other` changes what one is.
            pointers = list(map(_POINTER, weights))
            known, program = self.bound
            if pointers != known:
                program = self._bind(weights, pointers)
            given = self._take_given(args)
        if self._orders:
            given = self._ordered(given)
        results = program(*given)
        if self._as_is:
            return results
        with without_views():  # an output that autograd takes for a view may not be changed in place
            return [value if how is None else how(value) for value, how in zip(results, self._made, strict=True)]

    @property
    def is_plain(self) -> bool:
        """Whether it hands the program's results on, and inputs to the program, as they are."""
        return self._as_is and not self._orders

    @property
    def weights(self) -> Sequence[int]:
        """Numbers of the inputs that are weights which the program uses."""
        return self._weights

    @property
    def given(self) -> tuple[tuple[str, ...], set[str], tuple[Any, ...], tuple[Made, ...], int | None]:
        """What it was made of, beside the program."""
        return self._given

    def state(self, ir: bool = True) -> tuple[Any, ...]:
        """All of it as plain data, for `restored`; with the program's texts, or without."""
        return packed(self.program, ir), *self._given

    @staticmethod
    def restored(data: bytes, *given: Any, run: bool = True) -> Part:
        """The inverse of `state`.

        Args:
            run: whether the program's code is loaded; else `load` does that.
        """
        return Part(unpacked(data, given[-1], run), *given)

    def load(self) -> None:
        """Load the program's code, on the current device."""
        Part.__init__(self, unpacked(packed(self.program), self._given[-1]), *self._given)

    def __reduce__(self) -> tuple[Any, ...]:
        return Part.restored, self.state()

    def copies(self) -> Sequence[WeightCopy]:
        """Of the weights of the last call, those that are copied or derived."""
        return self.bound[1].copies

    def _ordered(self, args: Sequence[Tensor]) -> Sequence[Tensor]:
        given = list(args)
        for n, order in self._orders:
            given[n] = given[n].permute(order)
        return given

    def _bind(self, weights: Sequence[Tensor], pointers: list[int]) -> Program:
        """The program with other weights; those whose memory is nobody else's any more are let go.

        Raises:
            OtherStrides: they have others; Dynamo does not look at parameters' in all versions of PyTorch.
        """
        key, found = tuple(pointers), [weight.stride() for weight in weights]
        self._strides = self._strides or found
        pairs = zip(weights, self._strides, strict=True)
        if found != self._strides and not all(same_strides(w.shape, w.stride(), one) for w, one in pairs):
            raise OtherStrides
        with self._lock:
            if key not in self._known:
                for old in [k for k, bound in self._known.items() if bound.is_gone()]:
                    del self._known[old]
                self._known[key] = self._bound(weights)
                if len(self._known) > MOST_WEIGHTS:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            self.bound = pointers, self._known[key].program
            return self._known[key].program

    def _bound(self, weights: Sequence[Tensor]) -> _Bound:
        # No weak references to the caller's tensors: `torch.utils.swap_tensors` refuses those that have some.
        storages = [weight.untyped_storage()._cdata for weight in weights]  # makes PyTorch's own object of it, which holds it
        before = [storage_uses(one) - 1 for one in storages]
        program = self.program.with_weights({n: w.detach() for n, w in zip(self._names, weights, strict=True)})
        return _Bound(tuple((one, storage_uses(one) - uses) for one, uses in zip(storages, before, strict=True)), program)


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A program with weights, whose memory it holds, and of each one's storage how many of its tensors do."""

    storages: tuple[tuple[int, int], ...]
    program: Program

    def is_gone(self) -> bool:
        """Whether the memory of a weight is nobody else's any more."""
        return any(storage_uses(one) <= own for one, own in self.storages)


def _maker(
    program: Program, output: Output, size: Sequence[int], stride: Sequence[int], order: Sequence[int] | None
) -> Callable[[Tensor], Tensor] | None:
    """What makes an output of the program's; None if it is that already."""
    back = None if order is None else inverse(order)
    if output.kind == "alias":  # a tensor of its own, although it equals an input
        return lambda value: with_strides((value if back is None else value.permute(back)).clone(), size, stride)
    lies = strides(output.shape, program.signature.result_orders.get(output.index or 0, ()))
    if back is not None:
        as_is = same_strides(size, [lies[dim] for dim in back], stride)
        return (lambda value: value.permute(back)) if as_is else lambda value: with_strides(value.permute(back), size, stride)
    return None if same_strides(size, lies, stride) else lambda value: with_strides(value, size, stride)
