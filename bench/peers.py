"""What a compiled program is compared with: PyTorch in five ways."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bench.timing import graphed

__all__ = ["PEERS", "SETS", "make_peers", "parse"]

PEERS = ("eager", "eager, graph", "compile", "compile, graph", "max-autotune, graph")
SETS = {"none": (), "graph": ("eager, graph", "compile, graph"), "quick": PEERS[:-1], "all": PEERS}
_MODES = {"compile": None, "max-autotune": "max-autotune-no-cudagraphs"}


def parse(text: str) -> tuple[str, ...]:
    """Peers from a name of `SETS`, or from names of `PEERS` between semicolons."""
    if text in SETS:
        return SETS[text]
    names = tuple(part.strip() for part in text.split(";"))
    unknown = [n for n in names if n not in PEERS]
    if unknown:
        raise ValueError(f"no peer '{unknown[0]}'; sets: {', '.join(SETS)}; peers: {'; '.join(PEERS)}")
    return names


def make_peers(
    model: nn.Module, args: tuple[Tensor, ...], wanted: Iterable[str]
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Calls by peer, compiled and captured; and why those that are missing are."""
    torch._dynamo.reset()  # else cases that share a forward function share its limit of recompilations
    made: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    compiled: dict[str, Callable[[], Any]] = {"eager": lambda: model(*args)}
    for name in wanted:
        kind = name.removesuffix(", graph")
        try:
            if kind not in compiled:
                compiled[kind] = _compiled(model, args, _MODES[kind])
            made[name] = graphed(compiled[kind]) if name.endswith("graph") else compiled[kind]
        except Exception as error:  # a peer that fails costs only itself
            missing[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            torch.cuda.synchronize()
    return made, missing


def _compiled(model: nn.Module, args: tuple[Tensor, ...], mode: str | None) -> Callable[[], Any]:
    function = torch.compile(model, mode=mode, dynamic=False)
    with torch.no_grad():
        function(*args)
    return lambda: function(*args)
