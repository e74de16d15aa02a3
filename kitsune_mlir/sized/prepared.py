"""A call of a padded program like an earlier one: what was found out then is not asked again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from kitsune_mlir.runtime.direct import COMPILED_AFTER, DirectCall
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.taken import takers
from kitsune_mlir.sized.first_elements import FirstElements
from kitsune_mlir.sized.padded_input import CopiedOnce
from kitsune_mlir.sized.part import Part
from kitsune_mlir.sized.restride import reinterpret
from kitsune_mlir.sized.taker import taker

if TYPE_CHECKING:
    from kitsune_mlir.runtime.compiled_call import CompiledCall

__all__ = ["PreparedCall", "prepared"]

Cut = Callable[[Tensor], Tensor]

_POINTER = Tensor.data_ptr


class PreparedCall:
    """Calls a part whose inputs, beside weights, all lie in buffers that are kept.

    Args:
        part: the part.
        bound: where its weights lay, and its program with them. What is prepared does not hold it, so that weights which nobody
            has any more are let go.
        weights: takes them out of a caller's arguments.
        copy: puts a caller's arguments into the buffers; says whether it could.
        direct: the quick way through the program's calls. again: makes the call on a stream, with what it holds.
        held: that.
        cuts: make what a caller wants of the results.
        numbers: what the caller of this call wants to know beside.
        misses: how many calls its forerunners for the same sizes could not make.
    """

    def __init__(
        self,
        part: Part,
        bound: tuple[list[int] | None, Program],
        weights: Callable[[Sequence[Any]], Sequence[Any]],
        copy: Callable[[Sequence[Any]], bool],
        direct: DirectCall,
        again: Callable[[int], Sequence[Tensor]],
        held: Sequence[Any],
        cuts: Sequence[Cut],
        numbers: Sequence[int],
        misses: int,
    ):
        pointers, program = bound
        self.numbers, self.misses = numbers, misses
        self._part, self._program, self._has_copies = part, weakref.ref(program), len(program.copies) > 0
        self._weights, self._pointers, self._copy, self._again, self._cuts = weights, pointers or [], copy, again, cuts
        self._direct, self._held, self._calls = direct, held, 0
        self._take: Callable[[Sequence[Any]], Sequence[Any]] = copy.take if isinstance(copy, CopiedOnce) else tuple
        self._ready: CompiledCall | None = None

    def __call__(self, args: Sequence[Any], stream: int) -> list[Any] | None:
        """The results; None where weights or arguments lie in another way, or somebody takes this thread's calls."""
        # Loops and no comprehensions: those are functions, slow to call while torch.compile's hook is there.
        program = self._program()
        if takers or program is None or program is not self._part.bound[1]:
            return None
        if list(map(_POINTER, self._weights(args))) != self._pointers:
            return None
        if self._has_copies:
            program.copies.refresh()
        if self._ready is not None:
            results = self._ready.call(tuple(self._take(args)))
            if results is not None:
                return results
            if not self._ready.may_fit():
                self._ready = None
        if not self._copy(args):
            return None
        results = []
        for value, cut in zip(self._again(stream), self._cuts, strict=True):
            results.append(cut(value))
        self._calls += 1
        if self._calls % COMPILED_AFTER == 0:
            self._ready = self._compiled(args, stream)
        return results

    def _compiled(self, args: Sequence[Any], stream: int) -> CompiledCall | None:
        """What makes such calls quicker still, on a GPU."""
        copy, made = self._copy, self._direct.results
        if not isinstance(copy, CopiedOnce) or reinterpret is None:
            return None
        cuts = list[tuple[Sequence[int], Sequence[int]]]()
        for cut, (_, lies, _) in zip(self._cuts, made, strict=True):
            if not isinstance(cut, FirstElements) or not cut.need_no_copy(lies):
                return None
            cuts.append((cut.size, cut.stride))
        return self._direct.compiled(tuple(self._take(args)), stream, self._held, copy.copies, reinterpret, cuts)


def prepared(
    run: Any,
    taken: Sequence[int],
    kept: Mapping[int, Any],
    copy: Callable[[Sequence[Any]], bool],
    cuts: Sequence[Cut],
    numbers: Sequence[int],
    misses: int,
) -> PreparedCall | None:
    """For calls like one that was just made; None where there are none.

    Args:
        run: what was called.
        taken: numbers of the caller's arguments that it takes first.
        kept: by number of its arguments, buffers and numbers that stay where they are.
        copy, cuts, numbers, misses: as of `PreparedCall`.
    """
    part = getattr(run, "__self__", None)
    if not isinstance(part, Part) or getattr(run, "__func__", None) is not Part.forward or not part.is_plain:
        return None
    bound, weights = part.bound, part.weights  # read once: another thread may call it with other weights
    direct = bound[1].direct
    if direct is None or any(n >= len(taken) for n in weights):
        return None
    if any(n not in kept for n in part.inputs):
        return None
    held = [kept[n] for n in part.inputs]
    again = direct.again(held)
    if again is None:
        return None
    return PreparedCall(part, bound, taker([taken[n] for n in weights]), copy, direct, again, held, cuts, numbers, misses)
