"""The memory that a program's call needs at most, known before the first one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kitsune_mlir.runtime.explain import size
from kitsune_mlir.runtime.signature import Signature

__all__ = ["Memory", "bytes_of", "memory_of"]

_BITS = {"i1": 8, "complex<f32>": 64, "complex<f64>": 128}


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes, as tensors have them; allocators round up, and a kernel's counters (some kB) are not among them.

    Attributes:
        arguments: tensors that the caller gives, changed ones among them.
        weights: the model's own.
        copies: of weights that the program takes in another form, or derives from others; made once.
        results: new tensors that are given back.
        apart: new values of changed tensors that are not written where these lie, but copied there.
        arena: what is between stages.
    """

    arguments: int = 0
    weights: int = 0
    copies: int = 0
    results: int = 0
    apart: int = 0
    arena: int = 0

    @property
    def total(self) -> int:
        """All of it: the peak, since arena and results are there during the whole call."""
        return sum(dataclasses.astuple(self))

    def __str__(self) -> str:
        names = {
            "arguments": "arguments", "weights": "weights", "copies": "weights in another form", "results": "results",
            "apart": "values to be copied", "arena": "arena",
        }  # fmt: skip
        parts = [f"{size(value)} {names[name]}" for name, value in dataclasses.asdict(self).items() if value]
        return f"{size(self.total)}" + (f": {', '.join(parts)}" if len(parts) > 1 else "")


def bytes_of(shape: Sequence[int], dtype: str) -> int:
    """Of a dense tensor, its type spelled as MLIR does."""
    bits = _BITS.get(dtype) or int("".join(filter(str.isdigit, dtype)))
    return math.prod(shape) * max(8, bits) // 8


def memory_of(signature: Signature, arena: int) -> Memory:
    """What a call of a program needs.

    Args:
        signature: of the program.
        arena: bytes of its arena.
    """
    apart = [out for out in signature.outputs if out.mutates is not None and not out.in_place and out.kind == "tensor"]
    there = {out.index for out in signature.outputs if out.in_place}
    numbers = {out.index for out in signature.outputs if out.kind == "tensor" and out.mutates is None and not out.in_place}
    aliases = [out for out in signature.outputs if out.kind == "tensor" and out.copied]
    new = sum(bytes_of(*signature.results[n]) for n in numbers - there if n is not None)
    formed = [w for w in signature.weights if w.recipe or w.wide or w.order not in ((), tuple(range(len(w.shape))))]
    return Memory(
        arguments=sum(bytes_of(given.shape, given.dtype) for given in signature.inputs),
        weights=sum(bytes_of(weight.shape, weight.dtype) for weight in signature.supplied),
        copies=sum(bytes_of(weight.wide or weight.shape, weight.dtype) for weight in formed),
        results=new + sum(bytes_of(out.shape, out.dtype) for out in aliases),
        apart=sum(bytes_of(*signature.results[n]) for n in {out.index for out in apart} - numbers if n is not None),
        arena=arena,
    )
