"""Runs pipelines that mix this project's passes with MLIR's own: the driver behind `compile` and `kitsune-opt`.

Passes written in Python run directly on the module; what stands between them goes to MLIR's pass manager, in as few pieces
as possible. (Python passes are not added to MLIR's manager: `add(fn, op_name=...)` on a module's manager kills the process,
and an exception inside would lose its type.)
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from kitsune_mlir.dialects.attribute_table import misplaced
from kitsune_mlir.dialects.unchanged import lasting, unchanged
from kitsune_mlir.errors import CompileError, KitsuneError
from kitsune_mlir.passes.base import Pass, PassFailure
from kitsune_mlir.passes.registry import PASSES
from kitsune_mlir.passes.remarks import collect_remarks
from kitsune_mlir.passmanager.diagnostics import Diagnostic, diagnostic_at, error_on, from_error, from_mlir
from kitsune_mlir.passmanager.instrumentation import NO_PRINTING, IRPrinting, Timing
from kitsune_mlir.passmanager.options import make_pass, pass_text
from kitsune_mlir.passmanager.pipeline_text import ROOT, Node, PassNode, PipelineError, leaves, nested, parse_pipeline
from kitsune_mlir.passmanager.reproducer import write_reproducer

Sink = Callable[[Diagnostic], None]
_RESTRICTED = re.compile(r"restricted to '([\w.]+)'")


class PassPipelineError(CompileError):
    """A pass failed, or left invalid IR.

    Attributes:
        pass_name: the pass, as it is written in a pipeline.
        diagnostics: what it reported, errors and their notes.
        reproducer: path of a file that `kitsune-opt` can replay, or None.
    """

    def __init__(self, pass_name: str, diagnostics: Sequence[Diagnostic], reproducer: Path | None = None):
        self.pass_name = pass_name
        self.diagnostics = list(diagnostics)
        text = "\n".join(d.render() for d in self.diagnostics)
        super().__init__(text, reproducer=None if reproducer is None else str(reproducer))


@dataclass(frozen=True)
class Step:
    """What runs in one go: one Python pass, or upstream passes as one textual pipeline."""

    text: str  # as an element of a pipeline
    label: str  # as shown in dumps and timings
    arguments: tuple[str, ...]  # the names of its passes
    run: Callable[[ir.Operation], None]
    python: bool
    only_schedules: bool = False


def run_pipeline(
    module: ir.Module | ir.Operation,
    pipeline: str | Sequence[Pass | str],
    *,
    target: str | None = None,
    verify_each: bool = True,
    verify_last: bool = False,
    print_ir_before_all: bool = False,
    print_ir_after_all: bool = False,
    print_ir_before: Collection[str] = (),
    print_ir_after: Collection[str] = (),
    printing: IRPrinting = NO_PRINTING,
    timing: Timing | None = None,
    on_diagnostic: Sink | None = None,
    reproducer_dir: str | os.PathLike[str] | Literal[False] | None = None,
    crash_reproducer: str | Path | None = None,
) -> None:
    """Run a pipeline on a module, in place; its IR is verified after each pass of this project.

    Args:
        pipeline: text such as `builtin.module(kitsune-normalize,canonicalize,func.func(cse))`, or a list of passes and of
            such pieces of text.
        target: name of a target (machine/target.py): the value of option `target` of the passes that have it and do not set it.
        verify_each: False leaves out all verification between passes.
        verify_last: after the last pass there is one all the same.
        print_ir_before_all, print_ir_after_all, print_ir_before, print_ir_after: dump the module before or after all passes,
            or those named.
        printing: how and where dumps are written.
        timing: collects the wall time of each pass.
        on_diagnostic: gets warnings and remarks as they are made (remarks of this project's passes are made only for a
            listener). Errors are in the exception.
        reproducer_dir: where a failing pass writes its input and the pipeline from there on; None is the environment variable
            KITSUNE_REPRODUCER_DIR, or the system's temporary folder; False writes none.
        crash_reproducer: a file that holds such a reproducer while each pass runs, so that it is left over even when native
            code ends the process; removed when the pipeline succeeds.

    Raises:
        PipelineError: the pipeline is malformed or names what does not exist; nothing has run.
        PassPipelineError: a pass failed or left invalid IR.
        KitsuneError: what else a pass raises on purpose (UnsupportedError, TargetError) passes through as it is.
    """
    root = module.operation
    before = partial(_wanted, print_ir_before_all, frozenset(print_ir_before))
    after = partial(_wanted, print_ir_after_all, frozenset(print_ir_after))
    one_by_one = timing is not None or print_ir_before_all or print_ir_after_all or bool(print_ir_before or print_ir_after)
    with root.context, ir.Location.unknown(), lasting(), ExitStack() as known:
        steps = plan(pipeline, target=target, merge=not one_by_one)
        for i, step in enumerate(steps):
            if not step.only_schedules:
                known.close()  # what is known of operations, from one scheduling pass to the next
            elif not i or not steps[i - 1].only_schedules:
                known.enter_context(unchanged())
            rest = f"{ROOT}({','.join(s.text for s in steps[i:])})"
            if before(step):
                printing.dump(root, f"IR Dump Before {step.label}")
            if crash_reproducer is not None:
                write_reproducer(root, rest, target, path=crash_reproducer)
            # The input is kept as a copy: writing it out before every pass would cost more than most passes.
            saved = None if reproducer_dir is False else root.clone(ip=False)
            try:
                with timing.measure(step.label) if timing is not None else nullcontext():
                    _run_step(root, step, verify_each or (verify_last and step is steps[-1]), on_diagnostic)
            except PassPipelineError as error:
                if printing.after_failure or after(step):
                    printing.dump(root, f"IR Dump After {step.label} Failed", valid=False)
                if saved is None:
                    raise
                path = write_reproducer(saved.operation, rest, target, folder=reproducer_dir or None, name=step.arguments[0])
                raise PassPipelineError(error.pass_name, error.diagnostics, path) from error.__cause__
            if after(step):
                printing.dump(root, f"IR Dump After {step.label}")
    if crash_reproducer is not None:
        Path(crash_reproducer).unlink(missing_ok=True)


def plan(pipeline: str | Sequence[Pass | str], *, target: str | None = None, merge: bool = True) -> list[Step]:
    """The steps of a pipeline, all names and options checked. Needs an active context.

    With `merge`, neighbouring upstream passes are one step; without it each pass is a step, so that it can be timed or printed.
    """
    steps: list[Step] = []
    waiting: list[Node] = []  # upstream elements not yet made into a step

    def flush() -> None:
        if waiting:
            steps.append(_upstream_step(list(waiting)))
            waiting.clear()

    items: Sequence[Pass | str] = [pipeline] if isinstance(pipeline, str) else pipeline
    for item in items:
        if isinstance(item, Pass):
            flush()
            steps.append(_python_step(item))
            continue
        for node in parse_pipeline(item):
            for anchors, leaf in leaves([node]):
                _check_name(leaf, anchors, item)
            if isinstance(node, PassNode) and node.name in PASSES:
                flush()
                steps.append(_python_step(_instance(node, item, target)))
            elif merge:
                waiting.append(node)
            else:
                steps += [_upstream_step([nested(anchors, leaf)]) for anchors, leaf in leaves([node])]
    flush()
    return steps


def implicitly_nested(name: str, options: str = "") -> str:
    """The pass as a pipeline element, nested in the operation it is restricted to, as `mlir-opt --name` does.

    Needs an active context. PipelineError when there is no such pass or it does not take the options.
    """
    node = PassNode(name, options)
    parse_pipeline(str(node))  # unbalanced options would reach into the next pass
    if name in PASSES:
        _instance(node, str(node), None)
        return str(node)
    _check_name(node, (), str(node))
    try:
        PassManager.parse(f"{ROOT}({node})")
    except ValueError as error:
        found = _RESTRICTED.search(str(error))
        if not found:
            raise PipelineError(str(error).strip()) from error
        return str(nested((found.group(1),), node))
    return str(node)


def _check_name(leaf: PassNode, anchors: tuple[str, ...], text: str) -> None:
    """Refuse a pass of this project nested in an operation, and names that look like one and are not."""
    if leaf.name in PASSES:
        if anchors:
            raise PipelineError(f"'{leaf.name}' runs on '{ROOT}', it cannot be nested in '{anchors[-1]}'", text, leaf.column)
    elif leaf.name.startswith("kitsune-"):
        near = difflib.get_close_matches(leaf.name, PASSES, 1)
        guess = f"; did you mean '{near[0]}'?" if near else ""
        raise PipelineError(f"'{leaf.name}' does not refer to a registered pass{guess}", text, leaf.column)


def _instance(node: PassNode, text: str, target: str | None) -> Pass:
    try:
        return make_pass(PASSES[node.name], node.options, target=target)
    except PipelineError as error:
        raise PipelineError(error.reason, text, node.column) from error


def _python_step(pass_: Pass) -> Step:
    return Step(
        pass_text(pass_), f"{type(pass_).__name__} ({pass_.name})", (pass_.name,), pass_.run, True, pass_.only_schedules
    )


def _upstream_step(nodes: list[Node]) -> Step:
    text = ",".join(map(str, nodes))
    names = tuple(leaf.name for _, leaf in leaves(nodes))
    try:
        PassManager.parse(f"{ROOT}({text})")
    except ValueError as error:
        # MLIR points into the text; the position and its caret mean nothing to the user once the text has been split.
        reason = re.sub(r"^MLIR Textual PassPipeline Parser:\d+:\d+: error: ", "", str(error).strip()).split("\n")[0]
        raise PipelineError(f"{reason} (in '{text}')") from error

    def run(root: ir.Operation) -> None:
        PassManager.parse(f"{ROOT}({text})").run(root)

    return Step(text, text, names, run, python=False)


def _wanted(everything: bool, names: frozenset[str], step: Step) -> bool:
    return everything or not names.isdisjoint(step.arguments)


def _run_step(root: ir.Operation, step: Step, verify: bool, sink: Sink | None) -> None:
    """Run one step and verify what it leaves; PassPipelineError carries all errors that were reported."""
    name = ",".join(step.arguments)
    errors: list[Diagnostic] = []
    try:
        with _collected(root.context, errors, sink):
            step.run(root)
            if verify and step.python:
                root.verify()
                for op, message in misplaced(root):
                    raise PassFailure(op, message)
    except PassFailure as failure:
        raise PassPipelineError(name, [*errors, error_on(failure.op, failure.message)]) from failure
    except ir.MLIRError as error:
        found = errors + from_error(error) or [diagnostic_at(root.location, "error", f"pass '{name}' failed: {error}")]
        raise PassPipelineError(name, found) from error
    except KitsuneError:
        raise
    except Exception as error:  # a mistake in a pass: still a diagnostic and a reproducer, with the traceback as the cause
        text = f"internal error in pass '{name}': {type(error).__name__}: {error}"
        raise PassPipelineError(name, [*errors, diagnostic_at(root.location, "error", text)]) from error


@contextmanager
def _collected(context: ir.Context, errors: list[Diagnostic], sink: Sink | None) -> Iterator[None]:
    """Collect errors; give warnings and remarks to `sink`, or leave them to the caller's own handlers where it is None."""

    def handle(source: Any) -> bool:
        found = from_mlir(source)
        if found.severity == "error":
            errors.append(found)
            return True
        if sink is not None:
            sink(found)
        return sink is not None

    handler = context.attach_diagnostic_handler(handle)
    try:
        if sink is None:
            yield
        else:
            with collect_remarks(lambda r: sink(diagnostic_at(r.location, "remark", r.message))):
                yield
    finally:
        handler.detach()
