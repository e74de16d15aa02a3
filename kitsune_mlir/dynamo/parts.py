"""Parts of graphs as programs: compiled, or found on disk."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from torch import fx

from kitsune_mlir.cache.compiled import kept_or_compiled, kept_program
from kitsune_mlir.dynamo.strides import inputs_in_memory_order, outputs_in_memory_order
from kitsune_mlir.frontend import traced_model
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.sized.part import Part

__all__ = ["NoPart", "compile_part", "kept_part"]


def compile_part(graph: fx.GraphModule, weights: Set[str], machine: Target, options: Options) -> Part:
    """Compile a part of a graph; it is used up.

    Args:
        weights: names of inputs that are the same tensors at most calls, and are not written to.

    Raises:
        KitsuneError: as `pipeline.compile`.
    """
    return _part(graph, weights, options, lambda model: kept_or_compiled(model, machine, options, _compiled))


class NoPart(Exception):
    """A part could not be had, for a reason that lies not in it."""


def kept_part(graph: fx.GraphModule, weights: Set[str], machine: Target, options: Options) -> Part:
    """As `compile_part`, of what is on disk.

    Raises:
        NoPart: it is not there.
    """

    def found(model: Callable[[], Any]) -> Program:
        program = kept_program(model(), machine, options)
        if program is None:
            raise NoPart("it is not on disk")
        return program

    return _part(graph, weights, options, found)


def _part(graph: fx.GraphModule, weights: Set[str], options: Options, made_by: Callable[[Callable[[], Any]], Program]) -> Part:

    names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    held = weights & set(names)
    orders, made = inputs_in_memory_order(graph.graph, held), outputs_in_memory_order(graph.graph)
    program = made_by(lambda: traced_model(graph, held))
    made = [(tuple(like.shape), tuple(like.stride()), order) for like, order in made]
    return Part(program, names, held, orders, made, options.threads)


def _compiled(*given: Any) -> Program:
    """The compiler, which takes longer to import than to find a program that was kept."""
    from kitsune_mlir import pipeline

    return pipeline.compile_imported(*given)
