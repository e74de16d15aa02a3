"""The `kitsune` backend of torch.compile (PyTorch finds it through the package's entry point)."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kitsune_mlir.dynamo.graph_options import MODES, GraphOptions, options_of_backend
from kitsune_mlir.errors import KitsuneError, UnsupportedError

if TYPE_CHECKING:
    from kitsune_mlir.dynamo.guard import Facts
    from kitsune_mlir.dynamo.kept_graphs import WholeGraph
    from kitsune_mlir.dynamo.report import GraphReport
    from kitsune_mlir.dynamo.timed_choice import Rules
    from kitsune_mlir.options import Options
    from kitsune_mlir.sized.part import Part

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
    step: Sequence[int] | None = None,
) -> Callable[..., Any]:
    """As `kitsune`; `keep` is called with what became of each graph.

    Args:
        step: where the graph is a whole training step, which needs no gradients, numbers of the inputs that are the same
            tensors at most calls; Dynamo tells which ones are in its graphs.
    """
    from kitsune_mlir.dynamo.above_autograd import composites_replaced
    from kitsune_mlir.dynamo.graph_calls import or_eager
    from kitsune_mlir.dynamo.growing import trace_growing_sizes
    from kitsune_mlir.dynamo.guard import Facts, guarded, rules_of
    from kitsune_mlir.dynamo.kept_graphs import kept_graph
    from kitsune_mlir.dynamo.outlined import outlined
    from kitsune_mlir.dynamo.recomputed import partitioned
    from kitsune_mlir.dynamo.repeated import OtherTensors
    from kitsune_mlir.dynamo.report import GraphReport
    from kitsune_mlir.dynamo.sharing import SharingGuard
    from kitsune_mlir.dynamo.torch_api import (
        aot_autograd,
        saved,
        saving,
        told_to_dynamo,
    )
    from kitsune_mlir.frontend.aten import traced_table
    from kitsune_mlir.frontend.gradients.whole import kept_whole

    if not saving() and step is None:
        trace_growing_sizes(gm, example_inputs)
    rules = rules_of(graph_options, options, example_inputs) if not saving() else None
    asked = _Asked(graph_options, options, keep, rules, len(example_inputs), step)
    training, facts = _needs_gradients(example_inputs), Facts()
    kept = None
    if not training and not saving() and step is None:
        kept = kept_graph(gm, example_inputs, graph_options, options)
        if kept is not None and (found := kept.find(example_inputs)) is not None:
            return or_eager(guarded(_untraced(*found, asked, facts), gm, example_inputs, facts, rules), gm.forward, False)
    compiled = aot_autograd(
        fw_compiler=_compiler("forward", asked, facts),
        bw_compiler=_compiler("backward", asked, facts),
        inference_compiler=_compiler("inference", asked, facts),
        decompositions=traced_table(late=not training),
        partition_fn=partitioned,
        keep_inference_input_mutations=True,
    )
    nothing, replaced = contextlib.nullcontext(), composites_replaced(training, graph_options.attention_dropout)
    with replaced, kept_whole() if training else nothing, saved() if saving() else nothing:
        try:
            try:
                short, held = outlined(gm) if step is not None else (gm, ())
                run = compiled(short, example_inputs)
            except OtherTensors:
                run = compiled(gm, example_inputs)
        except (KitsuneError, *told_to_dynamo()):
            raise
        except Exception as error:  # there are graphs that AOTAutograd does not take, and eager does
            asked.tell(GraphReport("captured", len(gm.graph.nodes), gave_up=f"AOTAutograd: {type(error).__name__}: {error}"))
            return gm.forward
    if facts.plain is not None:
        run = facts.plain
    if not training and not saving() and facts.reports and not any(report.programs for report in facts.reports):
        run = gm.forward  # not what it was taken apart into
    if kept is not None and facts.whole is not None:
        kept.keep(facts.whole)
    run = guarded(run, gm, example_inputs, facts, rules)
    if facts.written is None or facts.written:
        run = SharingGuard.of(run, gm, example_inputs)
    if saving():
        from kitsune_mlir.dynamo.saved import SavedFunction

        return SavedFunction(run, gm)
    several = any(report.islands or len(report.programs) > 1 for report in facts.reports)
    return or_eager(run, gm.forward, strict=several and facts.written != frozenset())


def _untraced(whole: WholeGraph, part: Part, asked: _Asked, facts: Facts) -> Callable[..., Any]:
    """A graph of one program, as AOTAutograd would call it."""
    from kitsune_mlir.dynamo.compile import copies_in
    from kitsune_mlir.dynamo.graph_calls import as_inference
    from kitsune_mlir.dynamo.kept_graphs import called
    from kitsune_mlir.dynamo.recorded import Recorded
    from kitsune_mlir.dynamo.report import GraphReport
    from kitsune_mlir.sized.restride import NoViews

    facts.numbers = frozenset(whole.static)
    facts.fixed = frozenset(whole.names[whole.takes.index(n)] for n in whole.static if n in whole.takes)
    report = GraphReport("inference", whole.nodes)
    report.programs, report.between, report.seconds = [part.program], whole.between, sum(part.program.seconds.values())
    facts.reports.append(report)
    asked.tell(report)
    calls = called(whole, part, asked.inputs)
    run = calls
    if asked.graphs.cudagraphs and whole.stays is None:
        facts.recorded, run = True, Recorded(calls, whole.static, (), lambda: copies_in(calls))
    looking = [n for n, (_, views) in enumerate(whole.outputs) if views]
    return as_inference(NoViews(run, looking) if looking else run)


def _needs_gradients(inputs: Sequence[Any]) -> bool:
    import torch

    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What the user asked for, for a graph of so many inputs."""

    graphs: GraphOptions
    options: Options
    keep: Callable[[GraphReport], None] | None
    rules: Rules | None
    inputs: int
    step: Sequence[int] | None = None

    def tell(self, report: GraphReport) -> None:
        """Say what became of a graph.

        Raises:
            UnsupportedError: with `require_full`: PyTorch runs some of it.
        """
        from kitsune_mlir.dynamo.report import logger
        from kitsune_mlir.dynamo.traces import trace

        if self.keep is not None:
            self.keep(report)
        if self.graphs.require_full and (report.gave_up or report.islands):
            raise UnsupportedError("torch.compile", f"option 'require_full' wants all of a graph in programs: {report}")
        if report.gave_up:
            warnings.warn(f"kitsune: {report}", stacklevel=3)
        logger.info("%s", report)
        trace(report, self.graphs.trace_ir)


def _compiler(kind: str, asked: _Asked, facts: Facts) -> Callable[..., Any]:
    """A compiler of AOTAutograd's graphs of one kind."""
    from kitsune_mlir.dynamo.compile import compile_graph, copies_in
    from kitsune_mlir.dynamo.drawn import draws_of
    from kitsune_mlir.dynamo.graph_calls import as_inference
    from kitsune_mlir.dynamo.kept_graphs import whole_graph
    from kitsune_mlir.dynamo.partition import is_outside, views_in
    from kitsune_mlir.dynamo.parts import NoPart, compile_part
    from kitsune_mlir.dynamo.recorded import Recorded, unrecordable, written_in
    from kitsune_mlir.dynamo.repeated import written_out
    from kitsune_mlir.dynamo.report import GraphReport, logger
    from kitsune_mlir.dynamo.shapes import Specialized, is_symbolic
    from kitsune_mlir.dynamo.torch_api import boxed, compiling, is_nested_size, saving
    from kitsune_mlir.dynamo.torch_metadata import (
        changing_outputs,
        plain_call,
        regenerated,
        static_inputs,
        written_inputs,
    )
    from kitsune_mlir.machine.target import find_target
    from kitsune_mlir.settings import choose_target
    from kitsune_mlir.sized.drawn import Drawn
    from kitsune_mlir.sized.restride import NoViews

    def compile(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        written_out(gm)
        nested = [node for node in gm.graph.find_nodes(op="placeholder") if is_nested_size(node.meta.get("val"))]
        if any(node.users for node in nested):
            why = "it computes with a size of a nested tensor, which is no number"
            facts.reports.append(GraphReport(kind, len(gm.graph.nodes), gave_up=why))
            asked.tell(facts.reports[-1])
            return boxed(gm.forward)
        if kind != "backward":
            facts.written = written_inputs(asked.inputs)
        facts.outside |= any(node.op == "call_function" and is_outside(node) for node in gm.graph.nodes)
        static = static_inputs() if asked.step is None else list(asked.step)
        numbers, views = (static, regenerated()) if kind == "inference" else ([], set())
        names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        if kind != "backward":
            facts.numbers = frozenset(static)
            facts.fixed = frozenset(names[n] for n in facts.numbers)
        fixed = [n for n, name in enumerate(names) if name in facts.fixed]
        graphs = asked.graphs.cudagraphs and not saving()
        symbolic = is_symbolic(gm)
        counted = plain_call(asked.inputs) if kind == "inference" else None
        whole = counted is not None and not facts.written

        def compile_static(graph: Any, sizes: str = "", same_outputs: bool = True) -> Callable[..., Any]:
            def attempt(graph: Any, compile_part: Callable[..., Any]) -> tuple[Callable[..., Any], GraphReport]:
                report = GraphReport(kind if asked.step is None else "step", 0)
                report.sizes = sizes
                with compiling():
                    placeholders = graph.graph.find_nodes(op="placeholder")
                    place = {n: at for at, n in enumerate(graph.meta.get("taken") or range(len(placeholders)))}
                    weights = {placeholders[place[n]].name for n in numbers}
                    same = [place[n] for n in fixed]
                    try:
                        machine = find_target(choose_target(graph, [node.meta.get("val") for node in placeholders]))
                        regenerated_here = views if same_outputs else set()
                        given = machine, asked.options, report, regenerated_here, asked.graphs, asked.rules, compile_part
                        stays, written = unrecordable(graph, same) if graphs else "", written_in(graph)
                        run = compile_graph(graph, weights, *given)
                        facts.whole = whole_graph(run, static, report, stays) if whole and not symbolic else None
                        if stays is None:
                            facts.recorded, calls = True, run
                            run = Recorded(calls, same, written, lambda: copies_in(calls))
                        elif stays:
                            logger.info("%s graph is not recorded in a CUDA graph: %s", kind, stays)
                    except NoPart:
                        raise
                    except Exception as error:  # a user's model goes on, whatever is wrong with the compiler
                        report.gave_up = f"{type(error).__name__}: {error}"
                        run = graph.forward
                return run, report

            if asked.graphs.background and not saving():
                from kitsune_mlir.dynamo.background import in_background

                return in_background(graph, attempt, tell)
            run, report = attempt(graph, compile_part)
            tell(report)
            return run

        def tell(report: GraphReport) -> None:
            facts.reports.append(report)
            asked.tell(report)

        draws = draws_of(gm) if symbolic else None
        run = Specialized(gm, compile_static, asked.graphs) if symbolic else compile_static(gm)
        run = Drawn(run, draws) if draws is not None else run
        if kind == "inference" and (looking := views_in(gm)):
            run = NoViews(run, looking)
        if counted is not None and not saving():
            facts.plain = as_inference(run, changing_outputs(), counted)
        if saving():
            from kitsune_mlir.dynamo.saved import CompiledGraph

            return CompiledGraph(run)
        return boxed(run)

    return compile
