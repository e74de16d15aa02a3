"""Ways to run a program whose calls depend on values, for a list of inputs: each peer is prepared for them, then timed.

Those that know the path (`KNOWN`) are given the values that the program reads: they say what a runtime could reach at best. A
model may have peers of its own (`peer`), whose results are not compared where they are None.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import kitsune_mlir
from bench.requests.known_paths import Answers, Branches
from bench.timing import graphed
from kitsune_mlir.dynamo import kitsune

__all__ = ["DEFAULT", "KNOWN", "Call", "Peers"]

Call = Callable[[], list[Any]]
"""Runs all inputs; what it gives for each."""
DEFAULT = {
    "cpu": ("eager", "window", "trace tree"),
    "cuda": (
        "eager",
        "window",
        "trace tree",
        "window, synchronized",
        "segments",
        "compile",
        "compile, graph",
        "dense, compile, graph",
        "graph",
        "branched graph",
    ),
}
KNOWN = ("graph", "branched graph")
STREAMS = 16
RECOMPILES = 64


class Peers:
    """The peers of one model.

    Args:
        run: the program; by default the model is called.
        asked: `size`: entries of windows; `after`: when their segments are compiled.

    Attributes:
        captured: what the latest window took.
        missing: why a peer could not be made, by name.
    """

    def __init__(self, model: nn.Module, asked: argparse.Namespace, run: Callable[[Any], Any] | None = None):
        torch._dynamo.reset()  # else models that share a forward function share its limit of recompilations
        torch._dynamo.config.recompile_limit = RECOMPILES
        self.model, self._asked = model, asked
        self._run: Callable[[Any], Any] = run or model
        self._made: dict[str, Any] = {}
        self.captured: dict[str, Any] = {}
        self.missing: dict[str, str] = {}

    def prepare(self, name: str, given: Sequence[Any]) -> Call | None:
        """The call that runs these inputs; None where there is none, which `missing` tells why."""
        if name in self.missing:
            return None
        try:
            return self._prepare(name, given)
        except Exception as error:  # a peer that fails costs only itself
            self.missing[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
            return None

    def _prepare(self, name: str, given: Sequence[Any]) -> Call:
        kind, _, form = name.partition(", ")
        if kind == "eager":
            return lambda: [self._run(x) for x in given]
        if kind == "window":
            return lambda: self._window(name, form or "auto", given)
        if kind == "trace tree":
            if name not in self._made:
                self._made[name] = kitsune_mlir.trace_tree(self._run, after=self._asked.after)
            traced = self._made[name]
            return lambda: [traced(x) for x in given]
        if kind == "dense":
            return self._dense(given)
        if name in KNOWN:
            replays = [self._known(x, name) for x in given]
            return lambda: [replay() for replay in replays]
        if kind not in ("segments", "compile"):
            own = getattr(self.model, "peer", None)
            if own is None:
                raise NotImplementedError(f"{type(self.model).__name__} has no peer '{name}'")
            if name not in self._made:
                self._made[name] = own(name)
            return self._made[name](given)
        if name not in self._made:
            options: dict[str, Any] = {"backend": kitsune} if kind == "segments" else {}
            options |= {"mode": "reduce-overhead"} if form == "graph" else {}
            self._made[name] = torch.compile(self._run, **options)
            self._made[name](given[0])
        call = self._made[name]
        if form != "graph":
            return lambda: [call(x) for x in given]

        def stepped() -> list[Any]:
            found = []
            for x in given:
                torch.compiler.cudagraph_mark_step_begin()
                value, path = call(x)
                found.append((value.clone(), path))  # the next call may overwrite it
            return found

        return stepped

    @property
    def traced(self) -> str:
        """What became of the trace tree, in words."""
        return self._made["trace tree"].explain() if "trace tree" in self._made else ""

    def _window(self, name: str, back_end: str, given: Sequence[Any]) -> list[Any]:
        with kitsune_mlir.window(self._asked.size, back_end, after=self._asked.after) as captured:
            found = [self._run(x) for x in given]
        self.captured[name] = captured
        return found

    def _dense(self, given: Sequence[Any]) -> Call:
        dense = getattr(self.model, "dense", None)
        if dense is None:
            raise NotImplementedError(f"{type(self.model).__name__} has no form without branches")
        if "dense" not in self._made:
            place = torch.empty_like(given[0])
            compiled = torch.compile(dense, dynamic=False)
            self._made["dense"] = place, graphed(lambda: compiled(place)) if place.is_cuda else lambda: compiled(place)
        place, replay = self._made["dense"]

        def run() -> list[Any]:
            found = []
            for x in given:
                place.copy_(x)
                found.append((replay().clone(), None))
            return found

        return run

    def _known(self, x: Any, name: str) -> Callable[[], Any]:
        """The replay of a graph that was recorded for this very input."""
        answers = Answers()
        with answers.noted():
            self._run(x)

        def call() -> Any:
            with answers.given():
                if name == "graph":
                    return self._run(x)
                with Branches(STREAMS):
                    return self._run(x)

        return graphed(call)
