"""The `kitsune` backend of torch.compile (PyTorch finds it through the package's entry point)."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kitsune_mlir.dynamo.graph_options import MODES, GraphOptions, options_of_backend
from kitsune_mlir.errors import UnsupportedError

if TYPE_CHECKING:
    from kitsune_mlir.dynamo.report import GraphReport
    from kitsune_mlir.options import Options

__all__ = ["MODES", "compiled_graph", "kitsune"]


def kitsune(
    gm: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured, and its backward where it needs gradients.

    Args:
        gm: the captured `torch.fx.GraphModule`.
        example_inputs: one for each of its placeholders.
        mode: one of torch.compile's modes; see `graph_options.MODES`.
        options: fields of `kitsune_mlir.Options` and of `GraphOptions` (`torch.compile(..., options={"threads": 1})`).

    What cannot be compiled runs in PyTorch, between programs; logger `kitsune_mlir.dynamo` says what, and why.

    Raises:
        ArgumentError: there is no such mode or option; the message lists those that there are.
        UnsupportedError: with `require_full`: an operator would run in PyTorch.
    """
    return compiled_graph(gm, example_inputs, *options_of_backend(mode, options))


def compiled_graph(
    gm: Any,
    example_inputs: Sequence[Any],
    graph_options: GraphOptions,
    options: Options,
    keep: Callable[[GraphReport], None] | None = None,
) -> Callable[..., Any]:
    """As `kitsune`; `keep` is called with what became of each graph."""
    from kitsune_mlir.dynamo.above_autograd import composites_replaced
    from kitsune_mlir.dynamo.sharing import SharingGuard
    from kitsune_mlir.dynamo.torch_api import aot_autograd, min_cut_rematerialization_partition
    from kitsune_mlir.frontend.aten import traced_table
    from kitsune_mlir.frontend.gradients.whole import kept_whole

    asked = _Asked(graph_options, options, keep)
    training, writes = _needs_gradients(example_inputs), Writes()
    compiled = aot_autograd(
        fw_compiler=_compiler("forward", asked, writes),
        bw_compiler=_compiler("backward", asked, writes),
        inference_compiler=_compiler("inference", asked, writes),
        decompositions=traced_table(late=not training),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with composites_replaced(training), kept_whole() if training else contextlib.nullcontext():
        run = compiled(gm, example_inputs)
    return SharingGuard(run, gm.forward, example_inputs) if writes.found else run


@dataclasses.dataclass
class Writes:
    """Whether a graph was found to write to inputs."""

    found: bool = False


def _needs_gradients(inputs: Sequence[Any]) -> bool:
    import torch

    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What the user asked for."""

    graphs: GraphOptions
    options: Options
    keep: Callable[[GraphReport], None] | None


def _compiler(kind: str, asked: _Asked, writes: Writes) -> Callable[..., Any]:
    """A compiler of AOTAutograd's graphs of one kind."""
    from kitsune_mlir.dynamo.compile import compile_graph
    from kitsune_mlir.dynamo.report import GraphReport, logger
    from kitsune_mlir.dynamo.shapes import Specialized, is_symbolic
    from kitsune_mlir.dynamo.torch_api import compiling, make_boxed_func, regenerated, static_inputs, writes_to_inputs
    from kitsune_mlir.machine.target import find_target
    from kitsune_mlir.pipeline import choose_target

    def compile(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        writes.found |= writes_to_inputs()
        numbers, views = (static_inputs(), regenerated()) if kind == "inference" else ([], set())

        def compile_static(graph: Any) -> Callable[..., Any]:
            report = GraphReport(kind, 0)
            with compiling():
                placeholders = graph.graph.find_nodes(op="placeholder")
                weights = {placeholders[n].name for n in numbers}
                try:
                    machine = find_target(choose_target(graph, [node.meta.get("val") for node in placeholders]))
                    run = compile_graph(graph, weights, machine, asked.options, report, views, asked.graphs)
                except Exception as error:  # a user's model goes on, whatever is wrong with the compiler
                    report.gave_up = f"{type(error).__name__}: {error}"
                    run = graph.forward
            if asked.keep is not None:
                asked.keep(report)
            if asked.graphs.require_full and (report.gave_up or report.islands):
                raise UnsupportedError("torch.compile", f"option 'require_full' wants all of a graph in programs: {report}")
            if report.gave_up:
                warnings.warn(f"kitsune: {report}", stacklevel=2)
            logger.info("%s", report)
            return run

        if is_symbolic(gm):
            return make_boxed_func(Specialized(gm, compile_static))
        return make_boxed_func(compile_static(gm))

    return compile
