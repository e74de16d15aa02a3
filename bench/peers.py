"""What a compiled program is compared with: PyTorch in five ways, and convolutions also in channels-last memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bench.case import BenchCase
from bench.timing import graphed, peak_of

__all__ = ["CHANNELS_LAST", "COMPILED", "PEERS", "SETS", "make_peers", "parse", "peers_of"]

PEERS = ("eager", "eager, graph", "compile", "compile, graph", "max-autotune, graph")
CHANNELS_LAST = "channels last, graph"
"""Eager, with convolutions' weights and images brought into channels-last memory beforehand; only for models that have some."""
SETS = {
    "none": (),
    "graph": ("eager, graph", "compile, graph", CHANNELS_LAST),
    "quick": (*PEERS[:-1], CHANNELS_LAST),
    "all": (*PEERS, CHANNELS_LAST),
}
COMPILED = {"compile": None, "max-autotune": "max-autotune-no-cudagraphs"}
"""Peers that `torch.compile` makes, without or with a graph, and its mode."""


def parse(text: str) -> tuple[str, ...]:
    """Peers from a name of `SETS`, or from names of `PEERS` between semicolons."""
    if text in SETS:
        return SETS[text]
    names = tuple(part.strip() for part in text.split(";"))
    known = (*PEERS, CHANNELS_LAST)
    unknown = [n for n in names if n not in known]
    if unknown:
        raise ValueError(f"no peer '{unknown[0]}'; sets: {', '.join(SETS)}; peers: {'; '.join(known)}")
    return names


def peers_of(case: BenchCase, peers: tuple[str, ...]) -> tuple[str, ...]:
    """Those asked for, and max-autotune where a case is to be compared with it."""
    return tuple(dict.fromkeys((*peers, PEERS[-1]))) if case.autotuned and peers in SETS.values() and peers else peers


def make_peers(
    model: nn.Module, args: tuple[Tensor, ...], wanted: Iterable[str], peaks: dict[str, int] | None = None
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Calls by peer, compiled and captured; and why those that are missing are.

    Args:
        peaks: gets the bytes that a call without a graph allocates at most, by "eager", "compile", ...
    """
    torch._dynamo.reset()  # else cases that share a forward function share its limit of recompilations
    made: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    compiled: dict[str, Callable[[], Any]] = {"eager": lambda: model(*args)}
    for name in wanted:
        kind = name.removesuffix(", graph")
        if name == CHANNELS_LAST and not _takes_images(model, args):
            continue
        try:
            if kind not in compiled:
                last = name == CHANNELS_LAST
                compiled[kind] = _in_channels_last(model, args) if last else _compiled(model, args, COMPILED[kind])
            if peaks is not None and kind not in peaks:
                peaks[kind] = peak_of(compiled[kind])
            made[name] = graphed(compiled[kind]) if name.endswith("graph") else compiled[kind]
        except Exception as error:  # a peer that fails costs only itself
            missing[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            torch.cuda.synchronize()
    return made, missing


def _takes_images(model: nn.Module, args: tuple[Tensor, ...]) -> bool:
    """Whether there are convolutions of images, and an image in the usual order."""
    images = [a for a in args if a.dim() == 4 and not a.is_contiguous(memory_format=torch.channels_last)]
    return bool(images) and any(isinstance(part, nn.Conv2d) for part in model.modules())


def _in_channels_last(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[[], Any]:
    convert: Any = copy.deepcopy(model).to
    moved = convert(memory_format=torch.channels_last)
    given = tuple(a.contiguous(memory_format=torch.channels_last) if a.dim() == 4 else a for a in args)
    return lambda: moved(*given)


def _compiled(model: nn.Module, args: tuple[Tensor, ...], mode: str | None) -> Callable[[], Any]:
    function = torch.compile(model, mode=mode, dynamic=False)
    with torch.no_grad():
        function(*args)
    return lambda: function(*args)
