"""Calls of a program of many launches as graphs that are replayed: the host needs for a launch as long as for a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kitsune_mlir.runtime.program import Program

__all__ = ["Replay"]


class Replay:
    """A program's calls on one stream, recorded in a graph with memory of its own, to and from which arguments and outputs are
    copied.

    Args:
        program: it writes to no arguments or weights, and reads the latter where they lie (`Replay.of`).
        args: of a call.
        stream: a `torch.cuda.Stream`, on which calls are made one after the other.
    """

    def __init__(self, program: Program, args: Sequence[Any], stream: Any):
        import torch

        self._program, self._places = program, [one.clone() for one in args]
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            program(*self._places)  # what a first call makes is not to be part of the graph
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._output = program(*self._places)

    @staticmethod
    def of(program: Program, args: Sequence[Any], stream: Any) -> Replay | None:
        """None where the program's calls cannot be recorded."""
        direct = program.direct
        if direct is None or direct.writes or direct.strided or len(program.copies) or not direct.fits(args):
            return None
        try:
            return Replay(program, args, stream)
        except RuntimeError:  # something in a call cannot be captured
            return None

    def __call__(self, args: Sequence[Any]) -> Any:
        """The output of a call on the current stream, which is the recording's."""
        from torch.utils import _pytree as pytree

        direct = self._program.direct
        if direct is None or not direct.fits(args):
            return self._program(*args)  # it says what is wrong, or converts them
        for place, one in zip(self._places, args, strict=True):
            place.copy_(one)
        self._graph.replay()
        return pytree.tree_map(lambda one: one.clone() if hasattr(one, "clone") else one, self._output)
