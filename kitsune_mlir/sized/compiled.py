"""What was compiled of a model, as a program for many sizes, or one with gradients, runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from kitsune_mlir.runtime.program import Program
from kitsune_mlir.sized.drawn import Draws
from kitsune_mlir.sized.expressions import Size
from kitsune_mlir.sized.known import Known

__all__ = ["Backward", "Compiled"]


@dataclasses.dataclass(frozen=True)
class Backward:
    """The backward of a model.

    Attributes:
        run: of what the forward gives behind the model's outputs, and gradients of outputs, gives gradients of weights and
            inputs, flat, None where there is none.
        kept: how many tensors, and numbers where sizes change, the forward gives for it.
        trained: numbers of the weights and inputs, flat, that it has gradients of.
        outputs: how many tensors the model returns.
        plain: other leaves of what it returns, by place.
        tangents: of the outputs that have gradients, their numbers, and sizes and strides of the gradients.
        known: all that there is of it, where sizes change.
        ranks: then how many dimensions each of what it takes has, None of a number.
    """

    run: Callable[..., Sequence[Any]]
    kept: int
    trained: tuple[int, ...]
    outputs: int
    plain: tuple[tuple[int, Any], ...]
    tangents: tuple[tuple[int, tuple[Size, ...], tuple[Size, ...]], ...]
    known: Known | None = None
    ranks: tuple[int | None, ...] = ()


@dataclasses.dataclass
class Compiled:
    """What there is of a model.

    Attributes:
        run: of weights and inputs, flat, gives the outputs, flat; where there is a backward also what that takes.
        known: all of it.
        programs: gives what there is now, with the sizes that each is for, in words.
        why: why sizes are not padded to larger ones; empty where they are.
        backward: of a program with gradients.
        draws: the random numbers that PyTorch draws at each call's sizes, behind the inputs of what `known` has.
    """

    run: Callable[..., Sequence[Any]]
    known: Known
    programs: Callable[[], Sequence[tuple[str, Program]]]
    why: str = ""
    backward: Backward | None = None
    draws: Draws | None = None
