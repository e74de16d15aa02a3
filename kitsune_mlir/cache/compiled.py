"""Programs that were compiled before, and the compiler where they were not: behind `compile` and torch.compile's backend.

The compiler is given, and not imported here: where a program is found, nobody waits until it is loaded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

from kitsune_mlir.cache.programs import ProgramCache, Source, source_of
from kitsune_mlir.cache.store import store_of
from kitsune_mlir.errors import PerformanceWarning
from kitsune_mlir.frontend import ExportedModel, ImportedModel, import_exported
from kitsune_mlir.garbage import full_collections_later
from kitsune_mlir.machine.target import Target
from kitsune_mlir.options import Options, Phases
from kitsune_mlir.runtime.explain import slow_text
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.settings import is_deterministic, precisions

__all__ = ["kept_or_compiled", "kept_program", "program_cache", "warn_if_slow"]

Model = ExportedModel | ImportedModel
Compiler = Callable[[ImportedModel, Target, Options, Phases], Program]


def kept_or_compiled(
    model: Callable[[], Model], machine: Target, options: Options, compiler: Compiler, phases: Phases | None = None
) -> Program:
    """The program of a model, from disk if it is there.

    Args:
        model: traces it, or reads it from a file.
        compiler: `pipeline.compile_imported`.
        phases: where time is noted.

    Raises:
        KitsuneError: as `pipeline.compile`.

    Warns:
        PerformanceWarning: as `pipeline.compile`.
    """
    phases = phases or Phases(options.on_phase)
    with full_collections_later():
        program = _kept_or_compiled(model, machine, options, compiler, phases)
    warn_if_slow(program, stacklevel=5)  # of who calls kitsune_mlir.compile
    return program


def _kept_or_compiled(
    model: Callable[[], Model], machine: Target, options: Options, compiler: Compiler, phases: Phases
) -> Program:
    cache = program_cache(machine, options)

    def known_or_imported() -> tuple[str | None, Source | None, Program | None, ImportedModel | None]:
        made = model()
        key, source, kept = _found(made, cache, options)
        return key, source, kept, _imported(made) if kept is None else None

    key, source, program, imported = phases.run("import", known_or_imported)
    if imported is not None:
        remarks, listener = [], options.on_remark
        heard = replace(options, on_remark=lambda one: (remarks.append(one), listener(one))) if listener else options
        program = compiler(imported, machine, heard, phases)
        if cache is not None and source is not None and key is not None:
            cache.keep(key, program, source, remarks if listener else None)
    else:
        program.seconds = dict(phases.seconds)
    program.kept_as = key
    return program


def kept_program(model: Model, machine: Target, options: Options) -> Program | None:
    """The program of a model, if it is on disk."""
    return _found(model, program_cache(machine, options), options)[2]


def warn_if_slow(program: Program, stacklevel: int = 2) -> None:
    """Warn, once a program, of stages that will be far slower than the chip needs to be."""
    if program.summary.get("slow"):
        warnings.warn(slow_text(program.summary["slow"]), PerformanceWarning, stacklevel=stacklevel)


def program_cache(machine: Target, options: Options) -> ProgramCache | None:
    """Where programs for a machine are kept; None where options or environment say that none are."""
    store = store_of(options.cache, options.cache_dir)
    settled = {"deterministic": is_deterministic(options), **precisions(options)}
    return ProgramCache(store, machine, options, settled) if store is not None else None


def _found(model: Model, cache: ProgramCache | None, options: Options) -> tuple[str | None, Source | None, Program | None]:
    """Where the program of a model is kept, what it is compiled of, and the program, if it is there; its remarks are made."""
    if cache is None:
        return None, None, None
    source = source_of(model)
    key = cache.key(source)
    kept = cache.find(key, source) if key is not None else None
    if kept is not None and options.on_remark is not None:
        for remark in kept.remarks:
            options.on_remark(remark)
    return key, source, kept.program if kept is not None else None


def _imported(model: Model) -> ImportedModel:
    from kitsune_mlir.dialects import new_context

    return model if isinstance(model, ImportedModel) else import_exported(model, context=new_context())
