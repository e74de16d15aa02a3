"""Calls of a program for larger sizes than the caller's: inputs are padded, results are cut."""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.sized.expressions import Size, size_at
from kitsune_mlir.sized.first_elements import FirstElements
from kitsune_mlir.sized.padded_input import CopiedTogether, PaddedInput, copies_into
from kitsune_mlir.sized.prepared import PreparedCall, prepared
from kitsune_mlir.sized.restride import with_strides, without_views
from kitsune_mlir.sized.taker import taker

__all__ = ["PaddedCall", "PaddedResult", "Place", "reader", "values_of"]

MOST_CUTS = 4096
"""Sets of sizes of which it is held how results are cut, and by thread how calls are made."""
MOST_MISSES = 8
"""Calls of a set of sizes that could not be made as one before, from which on no more are prepared."""

Place = tuple[int, int | None, int]
"""Of a symbol: an input's number, its dimension or None for a number itself, and how often the symbol that size is."""


def values_of(places: Mapping[str, Place], args: Sequence[Any]) -> tuple[int, ...]:
    """The values of symbols in a call."""
    return tuple([(args[n] if dim is None else args[n].shape[dim]) // times for n, dim, times in places.values()])


def reader(places: Mapping[str, Place]) -> Callable[[Sequence[Any]], tuple[int, ...]]:
    """What `values_of` does, of the arguments of many calls, given as a tuple."""
    if all(dim is None and times == 1 for _, dim, times in places.values()):
        return taker([n for n, _, _ in places.values()])  # type: ignore[return-value]
    return functools.partial(values_of, places)


@dataclasses.dataclass(frozen=True)
class PaddedResult:
    """A result of which a caller wants a part.

    Attributes:
        axes: of each dimension, the sizes that it is a product of; valid elements are the first ones of each.
        size, stride: what the caller wants.
    """

    axes: tuple[tuple[Size, ...], ...]
    size: tuple[Size, ...]
    stride: tuple[Size, ...]

    def cutter(self, sizes: Mapping[str, int], values: Mapping[str, int]) -> Callable[[Tensor], Tensor]:
        """What takes the valid elements out of a result.

        Args:
            sizes: of the program.
            values: of a call.
        """
        now = [[size_at(factor, sizes) for factor in axis] or [1] for axis in self.axes]
        true = [[size_at(factor, values) for factor in axis] or [1] for axis in self.axes]
        size, stride = [size_at(n, values) for n in self.size], [size_at(n, values) for n in self.stride]
        # Factors of dimensions whose valid elements are the first ones need not be told apart.
        together = [one[1:] == other[1:] for one, other in zip(now, true, strict=True)]
        split = [n for one, dims in zip(together, now, strict=True) for n in ([math.prod(dims)] if one else dims)]
        keep = [n for one, dims in zip(together, true, strict=True) for n in ([math.prod(dims)] if one else dims)]
        if all(together):
            return FirstElements(keep, stride)

        def cut(value: Tensor) -> Tensor:
            with without_views():
                value = value.reshape(split)
                for dim, n in enumerate(keep):
                    if value.shape[dim] != n:
                        value = value.narrow(dim, 0, n)
                return with_strides(value.reshape(size), size, stride)

        return cut


class PaddedCall:
    """Calls one program for all sizes up to those that it is compiled for.

    Args:
        sizes: of all symbols, what it is compiled for.
        names: the symbols that have smaller values in a call, or the same.
        inputs: by number, those that are padded.
        taken: numbers of the inputs that the program takes; others are numbers, which it was compiled for.
        results: what the caller wants of each.
        numbers: sizes that `rest` takes.
        counted: the symbols whose values the program takes, behind its other inputs.
        run: the program.
        rest: of the inputs, these numbers and the results, gives what the caller gets; None where that is the results.
        device: where the program runs.

    Attributes:
        index: number of the GPU; None on the host.
        prepared: of each thread, by values of the symbols and stream, the quickest way through such a call, or None.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        names: Sequence[str],
        inputs: Mapping[int, PaddedInput],
        taken: Sequence[int],
        results: Sequence[PaddedResult],
        numbers: Sequence[Size],
        counted: Sequence[str],
        run: Callable[..., Any],
        rest: Callable[..., Any] | None,
        device: torch.device,
    ):
        self.sizes, self.names, self.inputs, self.results = dict(sizes), tuple(names), dict(inputs), tuple(results)
        self.taken, self._take = tuple(taken), taker(taken)
        self.numbers, self.counted, self.run, self.rest, self.device = tuple(numbers), tuple(counted), run, rest, device
        self._changed = list(self.inputs.items())
        self._together = CopiedTogether(self._changed) if device.type == "cuda" and self._changed else None
        self._counts: dict[int, Tensor] = {}
        self._cuts: dict[tuple[int, ...], Any] = {}
        self.index = device.index if device.type == "cuda" else None
        self.prepared = threading.local()  # of each thread, whose buffers are its own

    def __reduce__(self) -> tuple[Any, ...]:
        what = self.sizes, self.names, self.inputs, self.taken, self.results, self.numbers, self.counted
        return PaddedCall, (*what, self.run, self.rest, self.device)

    def compile(self, compile: Callable[[Any], Callable[..., Any]]) -> None:
        """Compile the graph without symbols, which PyTorch would run else."""
        self.run = compile(self.run)

    def serves(self, values: Mapping[str, int]) -> bool:
        """Whether it may be called for these values of all symbols."""
        return all(n == values[name] or (name in self.names and n > values[name]) for name, n in self.sizes.items())

    def __call__(self, values: tuple[int, ...], args: Sequence[Any]) -> Any:
        """The graph's outputs for values of all its symbols."""
        index = self.index
        stream = 0 if index is None else torch._C._cuda_getCurrentRawStream(index)
        kept: dict[Any, PreparedCall | None] = self.prepared.__dict__
        ready = kept.get((values, stream))
        if ready is not None and (index is None or torch._C._cuda_getDevice() == index):
            results = ready(args, stream)
            if results is not None:
                return results if self.rest is None else self.rest(*args, *ready.numbers, *results)
        cut = self._cuts.get(values)
        if cut is None:
            if len(self._cuts) >= MOST_CUTS:
                self._cuts.clear()
            cut = self._cuts[values] = self._cut(dict(zip(self.sizes, values, strict=True)))
        numbers, counts, outputs = cut
        given = list(args)
        if self._together is not None:
            self._together(values, given)
        else:
            for n, value in self._changed:
                given[n] = value(given[n])
        larger = given
        if len(given) != len(self.taken):
            given = [*self._take(given)]
        # Loops and no comprehensions: those are functions, slow to call while torch.compile's hook is there.
        for n in counts:
            count = self._counts.get(n)
            given.append(self._count(n) if count is None else count)
        results = []
        for value, how in zip(self.run(*given), outputs, strict=True):
            results.append(how(value))
        if (values, stream) not in kept or (ready is not None and ready.misses < MOST_MISSES):
            if len(kept) >= MOST_CUTS:
                kept.clear()
            kept[values, stream] = self._prepare(args, larger, cut, 0 if ready is None else ready.misses + 1)
        return results if self.rest is None else self.rest(*args, *numbers, *results)

    def _prepare(self, args: Sequence[Any], larger: Sequence[Any], cut: Any, misses: int) -> PreparedCall | None:
        """What makes calls like one that was just made quicker; None where there is nothing.

        Args:
            args: of the call. larger: with inputs that are padded in the place of these.
            cut: as `_cut` gave it.
        """
        numbers, counts, outputs = cut
        copy = copies_into(self._changed, args, larger)
        if copy is None or any(n not in self._counts for n in counts):
            return None
        kept = {at: larger[n] for at, n in enumerate(self.taken) if n in self.inputs}
        kept |= {len(self.taken) + at: self._counts[n] for at, n in enumerate(counts)}
        return prepared(self.run, self.taken, kept, copy, outputs, numbers, misses)

    def _cut(self, values: Mapping[str, int]) -> Any:
        """What a call with these values needs: numbers that the rest takes, counts, and what cuts each result."""
        numbers = [size_at(value, values) for value in self.numbers]
        counts = [values[name] for name in self.counted]
        return numbers, counts, [result.cutter(self.sizes, values) for result in self.results]

    def _count(self, value: int) -> Tensor:
        """A number where the program runs. It is kept for good: a captured graph may read it whenever it is replayed."""
        found = self._counts.get(value)
        if found is None:
            found = torch.full([], value, dtype=torch.int64, device=self.device)
            if len(self._counts) >= MOST_CUTS:
                return found
            if found.is_cuda:
                if torch.cuda.is_current_stream_capturing():  # it is written when the graph runs, and then only
                    return found
                torch.cuda.current_stream(found.device).synchronize()  # other streams may be the next to read it
            self._counts[value] = found
        return found
