"""`SizedProgram`: a compiled model that is called with tensors of many sizes."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.arguments import dense_tensor, tensor_of
from kitsune_mlir.runtime.call_structure import CallStructure
from kitsune_mlir.runtime.memory import Memory
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.results import in_order, into_leaves
from kitsune_mlir.runtime.signature import Access, torch_dtype
from kitsune_mlir.runtime.structure import structure_of
from kitsune_mlir.runtime.timeline import Timeline
from kitsune_mlir.sized.compiled import Compiled
from kitsune_mlir.sized.expressions import size_at
from kitsune_mlir.sized.signature import Range, SizedInput, SizedSignature
from kitsune_mlir.sized.write import write_sized

__all__ = ["SizedProgram"]

MOST_SHAPES = 4096
"""Sets of shapes of which it is held that they fit."""


class SizedProgram:
    """A compiled model whose arguments have sizes that change: call it with what the model takes.

    Attributes:
        target: the target's name.
        signature: what it takes.
        weights: the model's own tensors by name, shared with the model.
        seconds: compile time by phase, of what was compiled at once.
    """

    def __init__(
        self,
        target: str,
        signature: SizedSignature,
        weights: Mapping[str, Tensor],
        compiled: Compiled,
        device: torch.device,
        seconds: Mapping[str, float] | None = None,
        specs: tuple[Any, Any] | None = None,
    ):
        self.target, self.signature, self.weights, self.seconds = target, signature, dict(weights), dict(seconds or {})
        self.compiled, self._device = compiled, device
        in_spec, self._out_spec = specs or (structure_of(signature.in_spec), structure_of(signature.out_spec))
        self._structure = CallStructure(in_spec, signature.parameters, signature.fixed)
        self._held = [self._weight(weight) for weight in signature.weights]
        self._dtypes = [torch_dtype(one.dtype) for one in signature.inputs]
        self._fits: set[tuple[Any, ...]] = set()

    @property
    def programs(self) -> Sequence[Program]:
        """What was compiled, one for each range of sizes, or each size."""
        return [program for _, program in self.compiled.programs()]

    @property
    def device(self) -> str:
        """Where it runs and its arguments have to be: "cpu", or "cuda:0"."""
        return str(self._device)

    @property
    def summary(self) -> Mapping[str, Any]:
        """What `Program.summary` says of each program, by its sizes."""
        return {words: program.summary for words, program in self.compiled.programs()}

    @property
    def memory(self) -> Mapping[str, Memory]:
        """What a call of each program needs at most, by its sizes."""
        return {words: program.memory for words, program in self.compiled.programs()}

    @property
    def accesses(self) -> tuple[Access, ...]:
        """What a run reads and writes depends on its sizes.

        Raises:
            ArgumentError: always; `Program.accesses` of each of `programs` is what its own sizes need.
        """
        raise self._one_size("accesses")

    def timeline(self) -> Timeline:
        """A call is one of a program for its sizes.

        Raises:
            ArgumentError: always; `Program.timeline` of each of `programs` is that of its own last call.
        """
        raise self._one_size("timeline")

    def _one_size(self, what: str) -> ArgumentError:
        found = ", ".join(words for words, _ in self.compiled.programs()) or "none yet"
        return ArgumentError(f"a program for sizes that change has no {what} of its own; each of its programs has ({found})")

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels that `ir` has."""
        return self.programs[0].levels if self.programs else ()

    def ir(self, level: str) -> str:
        """The text of each program at a level, one behind the other; see `Program.ir`.

        Raises:
            ArgumentError: there is no such level.
        """
        return "\n".join(f"// {words}\n{program.ir(level)}" for words, program in self.compiled.programs())

    def explain(self) -> str:
        """The sizes that it is for, and of each program what `Program.explain` says."""
        return "\n\n".join([self._ranges_text(), *(f"{words}:\n{p.explain()}" for words, p in self.compiled.programs())])

    def _ranges_text(self) -> str:
        lines = [f"{r.name}: {r}" for r in self.signature.ranges]
        if self.compiled.why:
            lines.append(f"A program for each size, as rows are not independent: {self.compiled.why}")
        return "\n".join(lines)

    def with_weights(self, weights: Mapping[str, Tensor]) -> Self:
        """The same code with other weights, by name; those that are not given stay. This program stays as it is.

        Raises:
            ArgumentError: a weight has no such name, or another shape or type than was compiled for.
        """
        if unknown := weights.keys() - {weight.name for weight in self.signature.weights}:
            names = ", ".join(sorted(weight.name for weight in self.signature.weights))
            raise ArgumentError(f"the program has no weight '{min(unknown)}'; its weights are {names or 'none'}")
        other = copy.copy(self)
        other.weights = {**self.weights, **weights}
        other._held = [other._weight(weight) for weight in self.signature.weights]
        return other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on tensors of sizes that are in their ranges.

        Raises:
            ArgumentError: an argument does not fit; the message names it, its dimension, the range and the value.
            KitsuneError: a size that needs a program of its own cannot be compiled.
        """
        leaves = self._structure.leaves(args, kwargs)
        tensors = [leaves[one.position] for one in self.signature.inputs]
        try:
            key = tuple([(t.shape, t.dtype, t.device, t.layout) for t in tensors])
        except AttributeError:  # arrays of other libraries
            key = None
        if key is None or key not in self._fits:
            tensors = [dense_tensor(t, one.name) for t, one in zip(tensors, self.signature.inputs, strict=True)]
            self._check(tensors)
            if key is not None and len(self._fits) < MOST_SHAPES:
                self._fits.add(key)
        return pytree.tree_unflatten(self._outputs(tensors), self._out_spec)

    def _outputs(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The leaves of what a call returns, for inputs that fit."""
        results, given = self._results(self._held, tensors)
        return self._as_given(results, given, tensors)

    def _results(self, weights: Sequence[Tensor], tensors: Sequence[Tensor]) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """What the compiled code gives for weights and inputs, and the inputs as it took them; changes inputs as it says."""
        given, changed = [], []
        for tensor, one in zip(tensors, self.signature.inputs, strict=True):
            own = tensor.detach().resolve_conj().resolve_neg()
            ordered = in_order(own, one.order)
            if one.changes and ordered is not own and ordered.data_ptr() != own.data_ptr():
                changed.append((own, ordered))
            given.append(ordered)
        with torch.no_grad():
            results = self.compiled.run(*weights, *given)
            for own, ordered in changed:
                own.copy_(ordered)
        return results, given

    def run(self, *args: Any, into: Any = None, **kwargs: Any) -> Any:
        """As a call, with results written where the caller says.

        Args:
            into: a tensor for each tensor of the output, of its shape, dtype and device, nested as the output is; None where a
                new one is wanted. It is what is returned in its place.

        Raises:
            ArgumentError: a tensor does not fit, or as a call does.
        """
        output = self(*args, **kwargs)
        if into is None:
            return output
        leaves, places = pytree.tree_leaves(output), into_leaves(into, self._out_spec)
        taken = []
        for number, (value, place) in enumerate(zip(leaves, places, strict=True)):
            if place is not None:
                name = "into" if len(leaves) == 1 else f"into[{number}]"
                place = tensor_of(place, name, shared=True)
                if not isinstance(value, Tensor) or (place.shape, place.dtype, place.device) != (
                    *(value.shape, value.dtype),
                    value.device,
                ):
                    wanted = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
                    raise ArgumentError(f"{name} is {place.dtype} {list(place.shape)}, the result is {wanted}")
            taken.append(place)
        for value, place in zip(leaves, taken, strict=True):
            if place is not None:
                place.copy_(value)
        both = zip(leaves, taken, strict=True)
        return pytree.tree_unflatten([value if place is None else place for value, place in both], self._out_spec)

    def save(self, path: str | os.PathLike[str], *, weights: bool = True, ir: bool = True) -> None:
        """Write all programs that there are to one `.kit` file; `kitsune_mlir.load` reads it. As `Program.save`.

        Sizes of which each needs a program of its own, and that were not called, are errors of what is loaded.

        Raises:
            OSError: the file cannot be written.
            PackageError: the model has a structure or a weight that a file cannot hold.
        """
        stored = {w.name: self.weights[w.name] for w in self.signature.weights if weights or w.kind == "constant"}
        write_sized(path, self.target, self._device.type, self.signature, self.compiled, stored, ir)

    def _as_given(self, results: Sequence[Any], given: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Any]:
        """Results, in which the caller's own tensors, and the model's, are themselves."""
        names = [weight.name for weight in self.signature.weights]
        own = {id(held): self.weights[name] for held, name in zip(self._held, names, strict=True)}
        own |= {id(one): tensor for one, tensor in zip(given, tensors, strict=True)}
        return [own.get(id(value), value) for value in results]

    def _weight(self, weight: Any) -> Tensor:
        if weight.name not in self.weights:
            raise ArgumentError(f"the program needs a weight '{weight.name}', which it was not given")
        tensor = self.weights[weight.name]
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"weight '{weight.name}' is a {type(tensor).__name__}, a tensor was expected")
        if tuple(tensor.shape) != weight.shape or tensor.dtype != torch_dtype(weight.dtype):
            wanted = f"{weight.dtype} {list(weight.shape)}"
            raise ArgumentError(f"weight '{weight.name}' is {tensor.dtype} {list(tensor.shape)}, compiled for {wanted}")
        return tensor.detach().to(self._device)

    def _check(self, tensors: Sequence[Tensor]) -> None:
        """Dimensions, types and devices are those that the program is for."""
        signature = self.signature
        for tensor, one, dtype in zip(tensors, signature.inputs, self._dtypes, strict=True):
            if tensor.dim() != len(one.shape):
                raise ArgumentError(f"input '{one.name}' has {tensor.dim()} dimensions, compiled for {len(one.shape)}")
            if tensor.dtype != dtype:
                raise ArgumentError(f"input '{one.name}' is {tensor.dtype}, compiled for {dtype}")
            if tensor.device.type != self._device.type or self._device.index not in (None, tensor.device.index):
                raise ArgumentError(f"input '{one.name}' is on {tensor.device}, the program runs on {self._device}")
        count = len(signature.weights)
        known = self.compiled.known
        values = dict(zip(known.places, known.values([*self._held, *tensors]), strict=True))
        for each in signature.ranges:
            value = values[each.symbol]
            if value < each.least or (each.most is not None and value > each.most):
                n, dim, times = self.compiled.known.places[each.symbol]
                raise ArgumentError(_outside(signature.inputs[n - count], dim or 0, value * times, each, times))
        for tensor, one in zip(tensors, signature.inputs, strict=True):
            for dim, (size, wanted) in enumerate(zip(tensor.shape, one.shape, strict=True)):
                if size != (needed := size_at(wanted, values)):
                    raise ArgumentError(self._differs(one, dim, size, needed))

    def _differs(self, one: SizedInput, dim: int, size: int, needed: int) -> str:
        text = f"input '{one.name}' has {size} elements in dimension {dim}"
        if isinstance(one.shape[dim], int):
            return f"{text}, compiled for {needed}"
        ranges = {r.symbol: r for r in self.signature.ranges}
        names = sorted(ranges[s].name for s in _names(one.shape[dim]) if s in ranges)
        return f"{text}, and with {', '.join(names)} as other dimensions have it these are {needed}"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{r.name} {r}" for r in self.signature.ranges)
        return f"<kitsune_mlir.SizedProgram for {self.target}: {sizes}; {len(self.programs)} programs>"


def _outside(one: SizedInput, dim: int, size: int, each: Range, times: int) -> str:
    range_ = Range(each.symbol, each.name, each.least * times, each.most and each.most * times)
    return f"input '{one.name}' has {size} elements in dimension {dim} ('{each.name}'); the program is for {range_}"


def _names(size: Any) -> set[str]:
    if isinstance(size, str):
        return {size}
    return set().union(*map(_names, size[1:])) if isinstance(size, list | tuple) else set()
