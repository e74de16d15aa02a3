"""Compiled graphs as bytes: what `torch.compile(...).aot_compile` and `save_compiled_function` want of a backend.

A program travels as a package; a graph with islands as the graph that calls them, which PyTorch pickles.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from kitsune_mlir.dynamo.sharing import SharingGuard
from kitsune_mlir.dynamo.torch_api import (
    compiled_bytes,
    compiled_of,
    graph_bytes,
    graph_of,
    output_code,
    serializable_callable,
)

__all__ = ["CompiledGraph", "SavedFunction"]


class CompiledGraph(output_code()):
    """What a compiler gives to AOTAutograd, where that is to write it down.

    Args:
        run: a compiled graph, as `compile_graph` gives it.
    """

    def __init__(self, run: Callable[..., Any]):
        super().__init__()
        self._run = run
        self._boxed_call = True

    def __call__(self, inputs: Any) -> Any:
        """The graph's outputs, for a list of its inputs."""
        return self._run(*inputs)

    def prepare_for_serialization(self) -> None:
        """Nothing to do: `__reduce__` says what is kept."""

    def post_compile(self, *given: Any) -> None:
        """Nothing to do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledGraph, (self._run,)


class SavedFunction(serializable_callable()):
    """What the backend gives to Dynamo, where that is to write it down.

    Args:
        run: AOTAutograd's function, or a `SharingGuard` before it.
        graph: the graph that Dynamo captured.
    """

    def __init__(self, run: Callable[..., Any], graph: Any):
        self._run, self._graph = run, graph

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        return self._run(*args)

    @classmethod
    def serialize_compile_artifacts(cls, fn: SavedFunction) -> bytes:
        """The function's bytes."""
        guard = fn._run if isinstance(fn._run, SharingGuard) else None
        if guard is None:
            return pickle.dumps((compiled_bytes(fn._run), None, None))
        return pickle.dumps((compiled_bytes(guard.compiled), graph_bytes(fn._graph), (guard.asked, guard.seen, guard.returned)))

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> SavedFunction:
        """The inverse of `serialize_compile_artifacts`."""
        compiled, graph, sharing = pickle.loads(data)
        if sharing is None:
            return cls(compiled_of(compiled), None)
        kept = graph_of(graph)
        return cls(SharingGuard(compiled_of(compiled), kept.forward, *sharing), kept)
