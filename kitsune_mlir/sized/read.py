"""Reading what `write_sized` wrote."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.archive import Archive, readable
from kitsune_mlir.runtime.package import WEIGHTS, manifest_of, members_of
from kitsune_mlir.runtime.packed import unpacked
from kitsune_mlir.runtime.plain import record
from kitsune_mlir.runtime.structure import structure_of
from kitsune_mlir.sized.compiled import Backward, Compiled
from kitsune_mlir.sized.drawn import Draw, Drawn, Draws
from kitsune_mlir.sized.gradient_program import GradientProgram
from kitsune_mlir.sized.known import Known, exact_key
from kitsune_mlir.sized.padded import PaddedCall
from kitsune_mlir.sized.padded_input import PaddedInput
from kitsune_mlir.sized.part import Part
from kitsune_mlir.sized.program import SizedProgram
from kitsune_mlir.sized.replay import Replay
from kitsune_mlir.sized.stored import KINDS, StoredDraw, StoredKnown, StoredSizes, check_sizes

__all__ = ["KnownCalls", "read_sized"]


class KnownCalls:
    """Calls what was compiled before, where there is no compiler."""

    def __init__(self, known: Known, names: Mapping[str, str]):
        self.known, self._names = known, names  # what the user calls sizes
        self._fits: dict[tuple[int, ...], PaddedCall] = {}

    def __call__(self, *args: Any) -> Any:
        """The outputs.

        Raises:
            ArgumentError: there is no program for such sizes.
        """
        values = self.known.values(args)
        run = self._fits.get(values)
        if run is None:
            run = self.known.serving(values)
            if run is None:
                exact = self.known.exact.get(exact_key(args))
                if exact is None:
                    sizes = zip(self.known.places, values, strict=True)
                    each = ", ".join(f"{self._names.get(symbol, symbol)} = {value}" for symbol, value in sizes)
                    raise ArgumentError(f"the package has no program for {each}; compile the model for it, and save")
                return exact(*args)
            self._fits[values] = run
        return run(values, args)


def read_sized(path: str | os.PathLike[str], weights: Mapping[str, Any]) -> SizedProgram:
    """Read a program.

    Args:
        weights: by name, used instead of stored ones.

    Raises:
        OSError, PackageError, ArgumentError: as `kitsune_mlir.load`.
    """
    with Archive(path) as archive:
        manifest = manifest_of(archive, path, KINDS)
        members = members_of(archive, manifest["members"], path)
    with readable(f"{path}: damaged package"):
        from safetensors.torch import load as load_tensors

        held: StoredSizes = record(StoredSizes, manifest["sizes"], "the manifest's sizes")
        check_sizes(held)
        if {*members} != (wanted := {WEIGHTS, *(f"programs/{n}.kit" for n in range(len(held.parts)))}):
            raise ValueError(f"it has the members {', '.join(sorted(members))}, and not {', '.join(sorted(wanted))}")
        stored = load_tensors(members[WEIGHTS])
        specs = structure_of(held.signature.in_spec), structure_of(held.signature.out_spec)
        device = torch.device(manifest["device"])
    packages = [unpacked(members[f"programs/{n}.kit"]) for n in range(len(held.parts))]
    parts = [
        Part(program, part.names, {*part.weights}, part.orders, [dataclasses.astuple(made) for made in part.made])
        for program, part in zip(packages, held.parts, strict=True)
    ]

    def run_of(data: Any) -> Callable[..., Any]:
        return parts[data].forward if isinstance(data, int) else Replay(data, [part.forward for part in parts])

    def known_of(held: StoredSizes | StoredKnown) -> Known:
        known = Known({p.symbol: (p.input, p.dim, p.times) for p in held.places}, held.names)
        for one in held.padded:
            sizes = dict(zip(known.places, one.sizes, strict=True))
            inputs = {each.number: PaddedInput(each.size, each.stride) for each in one.inputs}
            rest = None if one.rest is None else Replay(one.rest, ())
            what = sizes, known.names, inputs, one.taken, one.results, one.numbers, one.counted, run_of(one.run), rest, device
            known.larger[one.sizes] = PaddedCall(*what)
        for one in held.exact:
            key: list[Any] = [(t.shape, t.stride, getattr(torch, t.dtype)) for t in one.args]
            for place, value in one.numbers:
                key.insert(place, value)
            known.exact[tuple(key)] = run_of(one.run)
        return known

    known, ranges = known_of(held), {r.symbol: r.name for r in held.signature.ranges}
    programs = [(part.words, program) for part, program in zip(held.parts, packages, strict=True)]
    given = {w.name: weights[w.name] for w in held.signature.weights if w.name in weights}
    if held.backward is None:
        calls: Callable[..., Any] = KnownCalls(known, ranges)
        compiled = Compiled(calls, known, lambda: programs, held.why)
        return SizedProgram(manifest["target"], held.signature, {**stored, **given}, compiled, device, specs=specs)
    one = held.backward
    tangents = tuple((t.number, t.size, t.stride) for t in one.tangents)
    after = None if one.known is None else known_of(one.known)
    run = run_of(one.run) if after is None else KnownCalls(after, ranges)
    ranks = () if one.known is None else one.known.ranks
    backward = Backward(run, one.kept, one.trained, one.outputs, one.plain, tangents, after, ranks)
    forward = next(iter(known.exact.values())) if after is None else KnownCalls(known, ranges)
    draws = Draws(known.places, tuple(map(_draw, held.draws))) if held.draws else None
    compiled = Compiled(forward if draws is None else Drawn(forward, draws), known, lambda: programs, held.why, backward, draws)
    names = [weight.name for weight in held.signature.weights]
    trained = {names[n] for n in one.trained if n < len(names)}
    own = {name: tensor.to(device).requires_grad_(name in trained) for name, tensor in stored.items()}
    return GradientProgram(manifest["target"], held.signature, {**own, **given}, compiled, device, specs=specs)


def _draw(held: StoredDraw) -> Draw:
    named = {**held.named, **{name: getattr(torch, dtype) for name, dtype in held.dtypes.items()}}
    return Draw(held.operator, held.size, held.stride, getattr(torch, held.dtype), held.others, named, held.which)
