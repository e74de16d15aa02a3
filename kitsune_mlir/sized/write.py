"""`.kit` files with several programs: a zip of packages, and of how calls pad what they take and cut what they give.

    manifest.json           format, target, sizes, and bytes and SHA-256 of every other member
    manifest.sha256         SHA-256 of manifest.json
    programs/N.kit          packages, without weights
    weights.safetensors     the stored weights, which all programs share

It is checked as packages are (`runtime/package.py`), each program as a package of its own.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kitsune_mlir.errors import PackageError
from kitsune_mlir.runtime.archive import write_archive
from kitsune_mlir.runtime.package import WEIGHTS, sealed
from kitsune_mlir.runtime.weights import without_values
from kitsune_mlir.sized.compiled import Compiled
from kitsune_mlir.sized.drawn import Draw, Drawn
from kitsune_mlir.sized.known import Known
from kitsune_mlir.sized.part import Part
from kitsune_mlir.sized.replay import Replay, replay_of
from kitsune_mlir.sized.signature import SizedSignature
from kitsune_mlir.sized.stored import (
    StoredBackward,
    StoredCall,
    StoredDraw,
    StoredExact,
    StoredInput,
    StoredKnown,
    StoredMade,
    StoredPart,
    StoredPlace,
    StoredSizes,
    StoredTangent,
    StoredTensor,
)

__all__ = ["write_sized"]


def write_sized(
    path: str | os.PathLike[str],
    target: str,
    device: str,
    signature: SizedSignature,
    compiled: Compiled,
    stored: Mapping[str, Any],
    ir: bool,
) -> None:
    """Write a program for many sizes; see `SizedProgram.save`.

    Args:
        device: the kind of it.
        stored: the weights to be stored.
        ir: whether texts of levels are.
    """
    from safetensors.torch import save

    if (empty := without_values(stored)) is not None:
        raise PackageError(f"weight '{empty}' is on the meta device, without values: only weights=False can be saved")
    if not signature.in_spec or not signature.out_spec:
        raise PackageError("the model's arguments or output have a structure that a file cannot hold")
    known, words = compiled.known, {id(one): text for text, one in compiled.programs()}
    parts: list[StoredPart] = []
    members: dict[str, bytes] = {}

    def number_of(part: Any) -> int:
        if not isinstance(part, Part):
            raise PackageError(f"a package cannot hold a {type(part).__name__}")
        data, names, used, orders, made, _ = part.state(ir)
        members[f"programs/{len(parts)}.kit"] = data
        each = tuple(StoredMade(tuple(map(int, size)), tuple(map(int, step)), _order(order)) for size, step, order in made)
        text = words.get(id(part.program), "")
        parts.append(StoredPart(text, tuple(names), tuple(sorted(used)), tuple(map(_order, orders)), each))
        return len(parts) - 1

    def replay(run: Callable[..., Any]) -> Any:
        owner = run if isinstance(run, Replay) else getattr(run, "__self__", None)
        if isinstance(owner, Part):
            return number_of(owner)
        if isinstance(owner, Replay):
            numbers = [number_of(getattr(part, "__self__", part)) for part in owner.parts]
            steps = [[n, [numbers[a[0]], *a[1:]] if n == "part" else a] for n, a in owner.data["steps"]]
            return {"steps": steps, "outputs": owner.data["outputs"]}
        if owner is None or not hasattr(owner, "graph"):
            raise PackageError(f"a package cannot hold a {type(run).__name__}")
        return replay_of(owner.graph, lambda name: number_of(getattr(owner, name)))

    def stored_of(
        known: Known,
    ) -> tuple[tuple[StoredPlace, ...], tuple[str, ...], tuple[StoredCall, ...], tuple[StoredExact, ...]]:
        padded, exact = [], []
        for one in known.larger.values():
            inputs = tuple(StoredInput(n, tuple(how.size), tuple(how.stride)) for n, how in one.inputs.items())
            rest = None if one.rest is None else replay(one.rest)
            sizes = tuple(one.sizes.values())
            what = sizes, inputs, one.taken, one.results, one.numbers, one.counted, replay(one.run), rest
            padded.append(StoredCall(*what))
        for key, run in known.exact.items():
            tensors = [value for value in key if isinstance(value, tuple)]
            shapes = tuple(StoredTensor(shape, stride, str(dtype).removeprefix("torch.")) for shape, stride, dtype in tensors)
            numbers = tuple((n, value) for n, value in enumerate(key) if not isinstance(value, tuple))
            exact.append(StoredExact(shapes, replay(run), numbers))
        places = tuple(StoredPlace(symbol, *place) for symbol, place in known.places.items())
        return places, known.names, tuple(padded), tuple(exact)

    places, names, padded, exact = stored_of(known)
    backward = None
    if (one := compiled.backward) is not None:
        tangents = tuple(StoredTangent(*each) for each in one.tangents)
        if isinstance(one.run, Drawn):
            raise PackageError("a package cannot hold random numbers that a backward draws for sizes that change")
        taken = None if one.known is None else StoredKnown(one.ranks, *stored_of(one.known))
        run = replay(one.run) if taken is None else None
        backward = StoredBackward(run, one.kept, one.trained, one.outputs, one.plain, tangents, taken)
    draws = () if compiled.draws is None else tuple(map(_stored_draw, compiled.draws.each))
    given = places, names, compiled.why, tuple(parts), padded, exact, backward, draws
    held = StoredSizes(signature, *given)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in stored.items()}
    members[WEIGHTS] = save(tensors)
    manifest = {"target": target, "device": device, "sizes": dataclasses.asdict(held)}
    write_archive(path, sealed(manifest, members), stored="programs/")


def _stored_draw(draw: Draw) -> StoredDraw:
    types = {name: str(value).removeprefix("torch.") for name, value in draw.named.items() if isinstance(value, torch.dtype)}
    named = {name: value for name, value in draw.named.items() if name not in types}
    for value in (*draw.others, *named.values()):
        if not isinstance(value, bool | int | float | None):
            raise PackageError(f"a package cannot hold the argument {value!r} of the operator '{draw.operator}'")
    dtype = str(draw.dtype).removeprefix("torch.")
    return StoredDraw(draw.operator, draw.size, draw.stride, dtype, draw.others, named, types, draw.which)


def _order(order: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if order is None else tuple(map(int, order))
