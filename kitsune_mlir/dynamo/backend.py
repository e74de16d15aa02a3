"""The `kitsune` backend of torch.compile (PyTorch finds it through the package's entry point)."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kitsune_mlir.errors import ArgumentError

if TYPE_CHECKING:
    from kitsune_mlir.options import Options

__all__ = ["MODES", "kitsune"]

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    # A program is one launch or a few: there is nothing to be gained by recording them.
    "reduce-overhead": {},
    "max-autotune": {"tune": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}
"""torch.compile's modes, as options of ours."""


def kitsune(
    gm: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured, and its backward where it needs gradients.

    Args:
        gm: the captured `torch.fx.GraphModule`.
        example_inputs: one for each of its placeholders.
        mode: one of torch.compile's modes; see `MODES`.
        options: fields of `kitsune_mlir.Options` (`torch.compile(..., options={"threads": 1})`).

    What cannot be compiled runs in PyTorch, between programs; logger `kitsune_mlir.dynamo` says what, and why.

    Raises:
        ArgumentError: there is no such mode or option; the message lists those that there are.
    """
    from kitsune_mlir.dynamo.above_autograd import composites_replaced
    from kitsune_mlir.dynamo.sharing import SharingGuard
    from kitsune_mlir.dynamo.torch_api import aot_autograd, min_cut_rematerialization_partition
    from kitsune_mlir.frontend.aten import traced_table

    chosen = _options(mode, options)
    training, writes = _needs_gradients(example_inputs), Writes()
    compiled = aot_autograd(
        fw_compiler=_compiler("forward", chosen, writes),
        bw_compiler=_compiler("backward", chosen, writes),
        inference_compiler=_compiler("inference", chosen, writes),
        decompositions=traced_table(late=not training),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    with composites_replaced(training):
        run = compiled(gm, example_inputs)
    return SharingGuard(run, gm.forward, example_inputs) if writes.found else run


@dataclasses.dataclass
class Writes:
    """Whether a graph was found to write to inputs."""

    found: bool = False


def _needs_gradients(inputs: Sequence[Any]) -> bool:
    import torch

    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)


def _options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    from kitsune_mlir.options import options_of

    if mode is not None and mode not in MODES:
        raise ArgumentError(f"mode '{mode}' of torch.compile is unknown; modes are {', '.join(MODES)}")
    return options_of({**MODES[mode or "default"], **(options or {})})


def _compiler(kind: str, options: Options, writes: Writes) -> Callable[..., Any]:
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
                    run = compile_graph(graph, weights, machine, options, report, views)
                except Exception as error:  # a user's model goes on, whatever is wrong with the compiler
                    report.gave_up = f"{type(error).__name__}: {error}"
                    run = graph.forward
            if report.gave_up:
                warnings.warn(f"kitsune: {report}", stacklevel=2)
            logger.info("%s", report)
            return run

        if is_symbolic(gm):
            return make_boxed_func(Specialized(gm, compile_static))
        return make_boxed_func(compile_static(gm))

    return compile
