"""`kitsune-opt`: run passes on MLIR text, with `mlir-opt`'s conventions. Starts without torch."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import inspect
import os
import re
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.compile import ptx_of
from kitsune_mlir.dialects import load
from kitsune_mlir.dialects.attribute_table import misplaced
from kitsune_mlir.errors import KitsuneError, UnsupportedError
from kitsune_mlir.machine.target import TARGETS, find_target
from kitsune_mlir.passes.registry import PASSES
from kitsune_mlir.passmanager.diagnostics import Diagnostic, error_on, from_error, from_mlir
from kitsune_mlir.passmanager.instrumentation import IRPrinting, Timing
from kitsune_mlir.passmanager.manager import PassPipelineError, implicitly_nested, plan, run_pipeline
from kitsune_mlir.passmanager.options import options_of
from kitsune_mlir.passmanager.pipeline_text import ROOT, PipelineError
from kitsune_mlir.passmanager.reproducer import read_reproducer

from .expected import check, expectations
from .opt_input import MAX_NESTING, Source, chunks_of, parse, read_source, too_deep

PROGRAM = "kitsune-opt"
EPILOG = (
    "Passes: --NAME or --NAME=OPTIONS runs one pass, in the order given; options are 'a=1 b=2', in braces or not. NAME is "
    "one of --show-passes, or any pass of MLIR and torch-mlir by its own name. Passes that run on an operation (func.func) are "
    "nested in it, as mlir-opt does."
)


class UsageError(KitsuneError):
    """The command line makes no sense."""


class _Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print its own usage and leave with status 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.  Try: '{PROGRAM} --help'")


def parser() -> argparse.ArgumentParser:
    """The options that are no passes."""
    p = _Parser(prog=PROGRAM, description="Run passes on MLIR.", epilog=EPILOG, allow_abbrev=False)
    add, flag = p.add_argument, argparse.BooleanOptionalAction
    add("input", nargs="?", default="-", help="a file with MLIR text or bytecode; '-' (default) is standard input")
    add("-o", dest="output", default="-", metavar="FILE", help="where to write the result (default: standard output)")
    add("--emit", choices=["mlir", "ptx"], default="mlir", help="what to write: ptx of gpu.modules in the LLVM dialect")
    add("--pass-pipeline", metavar="TEXT", help="such as 'builtin.module(kitsune-normalize,func.func(cse))'")
    add("--target", metavar="NAME", help=f"machine to compile for: {', '.join(TARGETS)} (passes with option 'target')")
    add("--show-passes", action="store_true", help="list this project's passes with their options, and exit")
    add("--split-input-file", action="store_true", help="treat each part between '// -----' lines as a file of its own")
    add("--verify-diagnostics", action="store_true", help="compare diagnostics with 'expected-error {{..}}' comments")
    add("--verify-each", action=flag, default=True, help="verify the IR after each pass (default: yes)")
    add("--allow-unregistered-dialect", action="store_true", help="accept operations of unknown dialects")
    add("--remarks", action="store_true", help="print what passes have to say about their choices")
    add("--mlir-print-ir-before-all", action="store_true", help="dump the IR before each pass")
    add("--mlir-print-ir-after-all", action="store_true", help="dump the IR after each pass")
    add("--mlir-print-ir-before", action="append", default=[], metavar="PASSES", help="dump the IR before these passes")
    add("--mlir-print-ir-after", action="append", default=[], metavar="PASSES", help="dump the IR after these passes")
    add("--mlir-print-ir-after-failure", action="store_true", help="dump the IR after a pass that fails")
    add("--mlir-print-op-generic", action="store_true", help="print operations in their generic form")
    add("--mlir-print-debuginfo", action="store_true", help="print locations")
    add("--mlir-timing", action="store_true", help="print the wall time of each pass")
    add("--mlir-pass-pipeline-crash-reproducer", metavar="FILE", help="keep a reproducer in FILE, even if native code crashes")
    add("--reproducer-dir", metavar="DIR", help="where a failing pass writes its reproducer (or $KITSUNE_REPRODUCER_DIR)")
    add("--run-reproducer", action="store_true", help="take the pipeline from the first line of a reproducer")
    return p


def normalized(argv: Sequence[str]) -> list[str]:
    """Long options with one dash (`-canonicalize`), as LLVM tools take them, written with two."""
    return [f"-{a}" if re.match(r"-[A-Za-z][\w-]", a) and not a.startswith("-o=") else a.replace("-o=", "-o", 1) for a in argv]


@dataclass
class Report:
    """Collects the diagnostics of one chunk, and prints them at once unless they are to be verified."""

    source: Source
    lines: list[str]
    options: argparse.Namespace
    found: list[Diagnostic] = field(default_factory=list)

    def add(self, diagnostic: Diagnostic) -> None:
        """Take one diagnostic; remarks are dropped unless someone asked for them."""
        diagnostic = diagnostic.renamed("-", self.source.name)
        if self.options.verify_diagnostics:
            self.found.append(diagnostic)
        elif diagnostic.severity != "remark" or self.options.remarks:
            self.show(diagnostic)

    def show(self, diagnostic: Diagnostic) -> None:
        """Print one diagnostic with its source line."""
        print(diagnostic.render({self.source.name: self.lines}), file=sys.stderr)


def main() -> int:
    """The command: `tool` in a process of its own, so that a crash of native code is an error message like any other.

    MLIR's parser and passes do crash on some wrong input (such as `linalg.transpose ... permutation =, [1, 0]`).
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # the threads that it warns of are NumPy's, idle and never used here
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = tool(sys.argv[1:])
        except SystemExit as leaving:  # --help
            status = leaving.code if isinstance(leaving.code, int) else 0
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    while True:
        try:
            _, status = os.waitpid(child, 0)
            break
        except KeyboardInterrupt:  # the child has got it as well
            continue
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    name = signal.Signals(os.WTERMSIG(status)).name
    print(
        f"{PROGRAM}: MLIR's native code ended the process ({name}). This is a mistake in a parser or pass; the input and",
        file=sys.stderr,
    )
    print("pipeline that cause it are kept by --mlir-pass-pipeline-crash-reproducer=FILE.", file=sys.stderr)
    return 1


def tool(argv: Sequence[str]) -> int:
    """Run the tool in this process; the exit status is 0, or 1 after any error."""
    # A parse error can name any byte; the streams must not fail on it.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return run(normalized(argv))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at exit
        return 1
    except KeyboardInterrupt:
        return 130
    except UsageError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    except PipelineError as error:
        print(f"<unknown>:0: error: {error}", file=sys.stderr)
    except (KitsuneError, RecursionError, MemoryError) as error:
        print(
            f"{PROGRAM}: {error}" if isinstance(error, KitsuneError) else f"{PROGRAM}: {type(error).__name__}", file=sys.stderr
        )
    return 1


def run(argv: list[str]) -> int:
    """Read, run passes on every chunk, write."""
    options, passes = parser().parse_known_args(argv)
    if options.show_passes:
        print(show_passes())
        return 0
    if options.target:
        find_target(options.target)
    source = read_source(options.input)
    if options.run_reproducer:
        replay = parser().parse_args(read_reproducer(source.text))
        options.pass_pipeline, options.target = replay.pass_pipeline, replay.target
    context = load(ir.Context())
    context.allow_unregistered_dialects = options.allow_unregistered_dialect
    pipeline = pipeline_of(options.pass_pipeline, passes, context)
    with context, ir.Location.unknown():
        plan(pipeline, target=options.target)  # a wrong pipeline is one error, not one a chunk
    deep = too_deep(source.data)
    if deep and not source.is_bytecode:
        error = Diagnostic("error", f"nested deeper than {MAX_NESTING} brackets", source.name, *deep)
        print(error.render(), file=sys.stderr)
        return 1
    timing = Timing() if options.mlir_timing else None
    chunks = chunks_of(source) if options.split_input_file and not source.is_bytecode else [None]
    outputs = [one_chunk(source, chunk, pipeline, context, options, timing) for chunk in chunks]
    if timing:
        print(timing.report(), file=sys.stderr)
    good = all(text is not None for text in outputs)
    if good or options.output == "-":
        write(options.output, "\n// -----\n".join(f"{text}\n" if text else "" for text in outputs))
    return 0 if good else 1


def pipeline_of(text: str | None, passes: list[str], context: ir.Context) -> str:
    """The pipeline of the command line: `--pass-pipeline`, or one pass a flag."""
    if text is not None and passes:
        raise UsageError(f"--pass-pipeline cannot be used together with flags of single passes ({passes[0]})")
    if text is not None:
        return text
    elements = []
    with context, ir.Location.unknown():
        for argument in passes:
            if not argument.startswith("--"):
                raise UsageError(f"Unknown command line argument '{argument}'.  Try: '{PROGRAM} --help'")
            name, _, given = argument[2:].partition("=")
            given = given.strip()
            if given.startswith("{") and given.endswith("}"):
                given = given[1:-1]
            elements.append(one_pass(name, given, argument))
    return f"{ROOT}({','.join(elements)})"


def one_pass(name: str, given: str, argument: str) -> str:
    """One flag as a pipeline element."""
    try:
        return implicitly_nested(name, given)
    except PipelineError as error:
        if "does not refer to a registered pass" not in str(error):
            raise
        known = [s for a in parser()._actions for s in a.option_strings] + [f"--{p}" for p in PASSES]
        near = difflib.get_close_matches(f"--{name}", known, 1)
        guess = f"\n{PROGRAM}: Did you mean '{near[0]}'?" if near else ""
        raise UsageError(f"Unknown command line argument '{argument}'.  Try: '{PROGRAM} --help'{guess}") from error


def one_chunk(
    source: Source, chunk: str | None, pipeline: str, context: ir.Context, options: argparse.Namespace, timing: Timing | None
) -> str | None:
    """The output of one chunk, or None after an error (with `--verify-diagnostics`: after an unexpected outcome)."""
    report = Report(source, source.text.split("\n"), options)
    text = transformed(source, chunk, pipeline, context, report, timing)
    if not options.verify_diagnostics:
        return text
    wrong = check(expectations(chunk if chunk is not None else source.text), report.found, source.name)
    for diagnostic in wrong:
        report.show(diagnostic)
    return None if wrong else text or ""


def transformed(
    source: Source, chunk: str | None, pipeline: str, context: ir.Context, report: Report, timing: Timing | None
) -> str | None:
    """Parse, run, print; errors go to the report and give None."""
    options = report.options
    try:
        handler = context.attach_diagnostic_handler(lambda d: report.add(from_mlir(d)) or True)
        with context, contextlib.closing(_Detaching(handler)):  # some verifiers need a current context
            module = parse(source, chunk, context)
            wrong = list(misplaced(module.operation))
            for op, message in wrong:
                report.add(error_on(op, message))
            if wrong:
                return None
            run_pipeline(
                module,
                pipeline,
                target=options.target,
                verify_each=options.verify_each,
                print_ir_before_all=options.mlir_print_ir_before_all,
                print_ir_after_all=options.mlir_print_ir_after_all,
                print_ir_before=_names(options.mlir_print_ir_before),
                print_ir_after=_names(options.mlir_print_ir_after),
                printing=IRPrinting(
                    debug_info=options.mlir_print_debuginfo,
                    generic=options.mlir_print_op_generic,
                    after_failure=options.mlir_print_ir_after_failure,
                ),
                timing=timing,
                on_diagnostic=report.add if options.remarks or options.verify_diagnostics else None,
                reproducer_dir=False if options.verify_diagnostics else options.reproducer_dir,
                crash_reproducer=options.mlir_pass_pipeline_crash_reproducer,
            )
            module.operation.verify()
            if options.emit == "ptx":
                return ptx_of(module.operation).removesuffix("\n")
        return module.operation.get_asm(
            enable_debug_info=options.mlir_print_debuginfo, print_generic_op_form=options.mlir_print_op_generic
        ).rstrip("\n")
    except PassPipelineError as error:
        for diagnostic in error.diagnostics:
            report.add(diagnostic)
        if error.reproducer and not options.verify_diagnostics:
            print(f"reproducer: {error.reproducer}", file=sys.stderr)
        if error.__cause__ is not None and not isinstance(error.__cause__, (KitsuneError, ir.MLIRError)):
            traceback_of(error.__cause__)
    except ir.MLIRError as error:
        for diagnostic in from_error(error) or [Diagnostic("error", str(error), source.name)]:
            report.add(diagnostic)
    except UnsupportedError as error:
        report.add(_located(error))
    except KitsuneError as error:
        report.add(Diagnostic("error", str(error)))
    except Exception as error:  # a mistake in a verifier: it runs while text is parsed, outside of any pass
        report.add(Diagnostic("error", f"internal error: {type(error).__name__}: {error}", source.name))
        traceback_of(error)
    return None


def _located(error: UnsupportedError) -> Diagnostic:
    """An UnsupportedError as a diagnostic; its position is text: `loc("file":1:2)` or `file:1:2`."""
    where = re.search(r'([^\s"(]+)"?:(\d+):(\d+)\)?$', error.location or "")
    if not where:
        return Diagnostic("error", str(error))
    message = str(error).removeprefix(f"{error.location}: ")
    return Diagnostic("error", message, where[1], int(where[2]), int(where[3]))


def traceback_of(cause: BaseException) -> None:
    """Where a pass went wrong, for whoever mends it; only on request, because users cannot act on it."""
    if os.environ.get("KITSUNE_TRACEBACK"):
        traceback.print_exception(cause, file=sys.stderr)


@dataclass
class _Detaching:
    """Lets a diagnostic handler be closed like a file."""

    handler: ir.DiagnosticHandler

    def close(self) -> None:
        self.handler.detach()


def _names(lists: list[str]) -> list[str]:
    return [name.strip() for names in lists for name in names.split(",")]


def write(output: str, text: str) -> None:
    """Write the result to a file or to standard output, as UTF-8."""
    data = text.encode("utf-8", errors="surrogateescape")
    if output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        Path(output).write_bytes(data)
    except OSError as error:
        raise KitsuneError(f"cannot open output file '{output}': {error.strerror}") from error


def show_passes() -> str:
    """This project's passes, their options and the first line of their help."""
    lines = ["Passes of kitsune-mlir (every pass of MLIR and torch-mlir can be named as well):"]
    for name, cls in PASSES.items():
        first = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        lines += textwrap.wrap(f"  --{name:<28} {first}", 120, subsequent_indent=" " * 33)
        lines += [f"      {o.name}=<{o.type}>  (default: {o.default or 'none'})" for o in options_of(cls)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
