"""What a `.kit` file with several programs says of them, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.signature import Weight, torch_dtype
from kitsune_mlir.runtime.structure import structure_of
from kitsune_mlir.sized.drawn import OPERATORS
from kitsune_mlir.sized.expressions import check_size
from kitsune_mlir.sized.padded import PaddedResult
from kitsune_mlir.sized.replay import check_replay
from kitsune_mlir.sized.signature import SizedSignature

__all__ = [
    "KINDS",
    "StoredBackward",
    "StoredCall",
    "StoredDraw",
    "StoredExact",
    "StoredInput",
    "StoredKnown",
    "StoredMade",
    "StoredPart",
    "StoredPlace",
    "StoredSizes",
    "StoredTangent",
    "StoredTensor",
    "check_sizes",
]

KINDS = {"target": str, "device": str, "sizes": dict, "members": dict}
"""Entries of the manifest, beside the format."""


@dataclasses.dataclass(frozen=True)
class StoredPlace:
    """`Place`, of a symbol."""

    symbol: str
    input: int
    dim: int | None
    times: int


@dataclasses.dataclass(frozen=True)
class StoredMade:
    """An output of a `Part`: its size and strides, and the order in which the program gives its dimensions."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class StoredPart:
    """`Part`, of program `number`."""

    words: str
    names: tuple[str, ...]
    weights: tuple[str, ...]
    orders: tuple[tuple[int, ...] | None, ...]
    made: tuple[StoredMade, ...]


@dataclasses.dataclass(frozen=True)
class StoredInput:
    """`PaddedInput`, of input `number`."""

    number: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class StoredCall:
    """`PaddedCall`; `run` and `rest` are replays."""

    sizes: tuple[int, ...]
    inputs: tuple[StoredInput, ...]
    taken: tuple[int, ...]
    results: tuple[PaddedResult, ...]
    numbers: tuple[Any, ...]
    counted: tuple[str, ...]
    run: Any
    rest: Any


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """What an argument is like."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class StoredExact:
    """A program for tensors like these only, and for numbers, by their places; `run` is a replay."""

    args: tuple[StoredTensor, ...]
    run: Any
    numbers: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class StoredTangent:
    """The gradient of output `number`."""

    number: int
    size: tuple[Any, ...]
    stride: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class StoredDraw:
    """`Draw`; `dtypes` are the arguments by name that are types, `named` the others."""

    operator: str
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    dtype: str
    others: tuple[Any, ...]
    named: dict[str, Any]
    dtypes: dict[str, str]
    which: int | None


@dataclasses.dataclass(frozen=True)
class StoredKnown:
    """`Known`, of a backward; `ranks` are dimensions of what it takes, None of a number."""

    ranks: tuple[int | None, ...]
    places: tuple[StoredPlace, ...]
    names: tuple[str, ...]
    padded: tuple[StoredCall, ...]
    exact: tuple[StoredExact, ...]


@dataclasses.dataclass(frozen=True)
class StoredBackward:
    """`Backward`; `run` is a replay of `kept` tensors and the tangents, None where sizes change: `known` has it then."""

    run: Any
    kept: int
    trained: tuple[int, ...]
    outputs: int
    plain: tuple[tuple[int, Any], ...]
    tangents: tuple[StoredTangent, ...]
    known: StoredKnown | None = None


@dataclasses.dataclass(frozen=True)
class StoredSizes:
    """Everything but programs and weights. With a backward of fixed sizes there is one program of `exact`, whatever its
    arguments."""

    signature: SizedSignature
    places: tuple[StoredPlace, ...]
    names: tuple[str, ...]
    why: str
    parts: tuple[StoredPart, ...]
    padded: tuple[StoredCall, ...]
    exact: tuple[StoredExact, ...]
    backward: StoredBackward | None = None
    draws: tuple[StoredDraw, ...] = ()


def check_sizes(held: StoredSizes) -> None:
    """ValueError where parts of it contradict each other."""
    try:
        for one in (*held.signature.weights, *held.signature.inputs):
            torch_dtype(one.dtype)
    except ArgumentError as error:
        raise ValueError(str(error)) from error
    signature, count = held.signature, len(held.signature.weights) + len(held.signature.inputs)
    symbols = [place.symbol for place in held.places]
    for weight in signature.weights:
        _checked_weight(weight)
    for one in signature.inputs:
        for size in one.shape:
            check_size(size, symbols)
        if one.order and sorted(one.order) != list(range(len(one.shape))):
            raise ValueError(f"the order {one.order} of input '{one.name}'")
    ranks = [len(w.shape) for w in signature.weights] + [len(one.shape) for one in signature.inputs]
    for draw in held.draws:
        _check_draw(draw, symbols)
    _check_known(held, [*ranks, *(len(draw.size) for draw in held.draws)], len(held.parts))
    if {r.symbol for r in signature.ranges} - {*symbols}:
        raise ValueError("it has ranges of sizes that no input has")
    spec = structure_of(signature.in_spec)
    for position in [one.position for one in signature.inputs] + [position for position, _ in signature.fixed]:
        if not 0 <= position < spec.num_leaves:
            raise ValueError(f"it has an input at position {position} of {spec.num_leaves}")
    if held.backward is not None:
        _check_backward(held.backward, held, count)


def _check_known(held: StoredSizes | StoredKnown, ranks: Sequence[int | None], parts: int) -> None:
    """ValueError where the programs of a graph that takes tensors of so many dimensions, or numbers, contradict each other."""
    count, symbols = len(ranks), [place.symbol for place in held.places]
    for place in held.places:
        rank = ranks[place.input] if 0 <= place.input < count else 0
        known = place.dim is None if rank is None else place.dim is not None and 0 <= place.dim < rank
        if not known or place.times <= 0:
            raise ValueError(f"'{place.symbol}' is at input {place.input}, dimension {place.dim}")
    if {*held.names} - {*symbols}:
        raise ValueError("it has names of sizes that no input has")
    for one in held.padded:
        if len(one.sizes) != len(symbols) or {*one.counted} - {*symbols}:
            raise ValueError(f"a program for the sizes {one.sizes} counts {one.counted}")
        numbers = [*one.taken, *(each.number for each in one.inputs)]
        if any(not 0 <= n < count for n in numbers):
            raise ValueError(f"a program takes inputs {numbers} of {count}")
        for size in (*one.numbers, *(s for r in one.results for axis in (*r.axes, r.size, r.stride) for s in axis)):
            check_size(size, symbols)
        _check_run(one.run, len(one.taken) + len(one.counted), parts)
        if one.rest is not None:
            check_replay(one.rest, count + len(one.numbers) + len(one.results), 0)
    for one in held.exact:
        _check_run(one.run, count, parts)
        if any(not 0 <= n < count or ranks[n] is not None for n, _ in one.numbers):
            raise ValueError(f"a program takes the numbers {one.numbers}")
        for tensor in one.args:
            if not isinstance(getattr(torch, tensor.dtype, None), torch.dtype):
                raise ValueError(f"there is no dtype {tensor.dtype[:60]}")


def _check_draw(draw: StoredDraw, symbols: Sequence[str]) -> None:
    for size in (*draw.size, *draw.stride):
        check_size(size, symbols)
    types = [getattr(torch, name, None) for name in (draw.dtype, *draw.dtypes.values())]
    plain = all(isinstance(value, bool | int | float | None) for value in (*draw.others, *draw.named.values()))
    if draw.operator not in OPERATORS or len(draw.size) != len(draw.stride) or not plain:
        raise ValueError(f"it draws by {draw.operator[:60]!r} of {draw.others!r:.60}")
    if not all(isinstance(one, torch.dtype) for one in types) or draw.which not in (None, 0, 1):
        raise ValueError(f"it draws numbers of {draw.dtype[:60]!r}")


def _check_backward(backward: StoredBackward, held: StoredSizes, count: int) -> None:
    if backward.known is None and (len(held.exact) != 1 or held.padded or held.signature.ranges):
        raise ValueError("with a backward of fixed sizes there is one forward, of fixed sizes")
    if backward.kept < 0 or backward.outputs < 0 or any(not 0 <= n < count for n in backward.trained):
        raise ValueError(f"a backward gives gradients of {backward.trained}, of {count} tensors")
    leaves = structure_of(held.signature.out_spec).num_leaves
    places = [place for place, _ in backward.plain]
    if len(places) + backward.outputs != leaves or places != sorted({*places}) or any(not 0 <= n < leaves for n in places):
        raise ValueError(f"it gives {backward.outputs} tensors and values at {places}, of {leaves} results")
    for one in backward.tangents:
        both = *one.size, *one.stride
        fixed = [n for n in both if isinstance(n, int | float)]
        if not 0 <= one.number < backward.outputs or len(one.size) != len(one.stride) or min((0, *fixed)) < 0:
            raise ValueError(f"the gradient of output {one.number}, with sizes {one.size} and strides {one.stride}")
        for size in both:
            check_size(size, [place.symbol for place in held.places])
    taken = backward.kept + len(backward.tangents)
    if backward.known is None:
        _check_run(backward.run, taken, len(held.parts))
    elif backward.run is not None or len(backward.known.ranks) != taken:
        raise ValueError(f"a backward of {taken} tensors and numbers takes {len(backward.known.ranks)}")
    else:
        _check_known(backward.known, backward.known.ranks, len(held.parts))


def _check_run(run: Any, inputs: int, parts: int) -> None:
    if type(run) is int and 0 <= run < parts:
        return
    check_replay(run, inputs, parts)


def _checked_weight(weight: Weight) -> None:
    if weight.recipe or weight.kind not in ("parameter", "buffer", "constant"):
        raise ValueError(f"weight '{weight.name}' is a {weight.kind}")
