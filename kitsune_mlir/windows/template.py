"""How a program is appended: what of a call is known before its arguments are, and what one call touches."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.results import empty, into_leaves
from kitsune_mlir.runtime.signature import torch_dtype
from kitsune_mlir.windows.compiled_hazards import Placed, Places
from kitsune_mlir.windows.hazards import BOTH, READ, WRITE, Range, span
from kitsune_mlir.windows.task import Call, extent

__all__ = ["Template", "conditional", "in_order"]


_call = tuple.__new__  # which takes a third of what the named tuple's own takes


def conditional(call: Call, when: Any) -> Call:
    """A call that is made where a tensor's one value differs from zero when it is run; else nothing is written.

    Raises:
        ArgumentError: it has more than one value, or none, or is complex.
    """
    import torch

    if not isinstance(when, torch.Tensor) or when.numel() != 1 or when.is_complex():
        raise ArgumentError(f"a condition is a tensor of one number, not {when if not hasattr(when, 'shape') else when.shape}")
    size, run = when.element_size(), call.run

    def checked(stream: int) -> None:
        if stream:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, when.device)):
                wanted = bool(when)
        else:
            wanted = bool(when)
        if wanted:
            run(stream)

    ranges = None if call.ranges is None else in_order([*call.ranges, extent(when, READ)])
    plain = size in (1, 4, 8) and not when.is_floating_point()  # of which zero has more than one form
    entry = call.entry if plain else None
    return call._replace(
        run=checked, ranges=ranges, tensors=[*call.tensors, when], entry=entry, when=(when.data_ptr(), size) if plain else None
    )


def in_order(ranges: Sequence[Range]) -> list[Range]:
    """Ranges as `Hazards.append` wants them: reads first."""
    return sorted(ranges, key=lambda one: one[2])


class Template:
    """A program as windows append it.

    Args:
        program: it stays alive with this object.
    """

    def __init__(self, program: Program):
        signature = program.signature
        self._program = program
        self._names = [one.name for one in (*signature.weights, *signature.inputs)]
        numbers = {name: n for n, name in enumerate(self._names)}
        numbers |= {f"result {n}": len(self._names) + n for n in range(len(signature.results))}
        places = [(numbers[a.tensor], *span(0, a.offset, a.bytes, a.mode)) for a in signature.accesses]
        self._places = Places(sorted(places, key=lambda one: one[3]), len(numbers))
        self._weights = program.placed_weights
        written = sorted({number for number, _, _, mode in places if mode != READ})
        self._written = [number - len(self._weights) for number in written if number >= len(self._weights)]
        self._written_weights = [self._weights[number] for number in written if number < len(self._weights)]
        first = len(self._names) - len(self._weights)
        self._writes_results = not self._written_weights and self._written == [first + n for n in range(len(signature.results))]

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, into: Any = None) -> Call:
        """A call with these arguments; results are allocated, and not written.

        Args:
            args, kwargs: as the program is called.
            into: as of `Program.run`.

        Raises:
            ArgumentError: the output has another structure than `into`.
        """
        direct = self._program.direct
        if direct is not None and into is None and not kwargs:
            bound = direct.bound(args) or direct.bind(args)  # type: ignore[arg-type]
            if bound is not None:
                pointers, results = bound
                tensors = [*args, *results]
                written = results if self._writes_results else [*self._written_weights, *(tensors[n] for n in self._written)]
                run, ranges = functools.partial(direct.run, pointers), Placed(self._places, pointers)
                entry = self._program, pointers
                return _call(Call, (run, ranges, direct.assemble(results), tensors, written, entry, None))
        return self._general(args, kwargs or {}, into)

    def _general(self, args: Sequence[Any], kwargs: Mapping[str, Any], into: Any) -> Call:
        """A call whose arguments have to be converted, named or copied: that is done when it is run."""
        import torch
        from torch.utils import _pytree as pytree

        program, signature = self._program, self._program.signature
        leaves = program.leaves_of(args, kwargs)
        by_name = {one.name: leaves[one.position] for one in signature.inputs}
        for name, tensor in by_name.items():
            if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_nested:
                raise ArgumentError(f"input '{name}' is a {type(tensor).__name__}: a window takes dense torch tensors only")
        modes: dict[str, int] = {}
        for access in signature.accesses:
            mode = span(0, 0, 0, access.mode)[2]
            modes[access.tensor] = mode if modes.get(access.tensor, mode) == mode else BOTH
        modes |= {output.mutates: BOTH for output in signature.outputs if output.mutates is not None}
        ranges, written = [], []
        for name, tensor in (*by_name.items(), *program.weights.items()):
            mode = modes.get(name, READ)
            ranges.append(extent(tensor, mode))
            written += [tensor] * (mode != READ)
        for weight, placed in zip(signature.weights, self._weights, strict=True):
            ranges.append(extent(placed, modes.get(weight.name, READ)))
        for copy in program.copies:
            ranges += [extent(source, READ) for source in copy.sources] + [extent(copy.placed, BOTH)]
        places, output = self._places_for(into, {**program.weights, **by_name}, program.device)
        results = [place for place in places if place is not None]
        ranges += [extent(result, WRITE) for result in results]
        nested = pytree.tree_unflatten(places, program.out_spec)

        def run(stream: int) -> None:
            if stream:
                with torch.cuda.stream(torch.cuda.ExternalStream(stream, program.device)):
                    program.run(*args, into=nested, **kwargs)
            else:
                program.run(*args, into=nested, **kwargs)

        return Call(run, in_order(ranges), output, [*by_name.values(), *results], [*written, *results])

    def _places_for(self, into: Any, by_name: Mapping[str, Any], device: str) -> tuple[list[Any], Any]:
        """For each leaf of the output a tensor to write it into, or None; and the output."""
        from torch.utils import _pytree as pytree

        signature, spec = self._program.signature, self._program.out_spec
        new = [output for output in signature.outputs if output.mutates is None]
        places: list[Any] = []
        leaves: list[Any] = []
        made: dict[int, Any] = {}
        for output, own in zip(new, into_leaves(into, spec), strict=True):
            if output.kind != "tensor":
                places.append(own)  # which has to be None: the run says so
                alias = output.kind == "alias"
                leaves.append(output.view_of(by_name[output.argument or ""]) if alias else output.value)
                continue
            number = output.index or 0
            if own is None and not output.copied:
                own = made.get(number)
            if own is None:
                shape, dtype = signature.results[number]
                order = signature.result_orders.get(number, range(len(shape)))
                own = empty(shape, order, torch_dtype(dtype), device)
            made.setdefault(number, own)
            places.append(own)
            leaves.append(own)
        return places, pytree.tree_unflatten(leaves, spec)
