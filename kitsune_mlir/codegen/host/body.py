"""Lowers the task bodies of a program: tensors to memrefs, memrefs to vector loops, guards, math functions."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.failures import named
from kitsune_mlir.codegen.host import asserts, bufferize, safety
from kitsune_mlir.codegen.host.atomics import lower_atomics
from kitsune_mlir.codegen.host.machine import Machine
from kitsune_mlir.codegen.host.math_expand import expand_math
from kitsune_mlir.codegen.host.outline import Body
from kitsune_mlir.codegen.host.schedule import vectorize
from kitsune_mlir.codegen.host.scheduler import BodyArguments
from kitsune_mlir.dialects.verify import operations_named
from kitsune_mlir.errors import CompileError, KitsuneError

__all__ = ["lower_bodies"]

LOOPS = (
    "convert-linalg-to-loops",
    "canonicalize",
    "cse",
)


def lower_bodies(
    module: ir.Operation, bodies: list[Body], prefix: str, control_words: int, machine: Machine
) -> dict[str, BodyArguments]:
    """Lower every body in `module` (which holds nothing else) in place; returns each one's additional arguments by name.

    Constant tensors become `memref.global`s whose names start with `prefix`.

    Raises:
        CompileError: a body holds an operation that has no lowering; names the task.
    """
    _run(module, bodies, bufferize.bufferize)
    safety.check_indices(module)
    _run(module, bodies, lambda part: vectorize(part, machine))
    _run(module, bodies, _to_loops)
    arguments: dict[str, BodyArguments] = {}
    for op in module.regions[0].blocks[0].operations:
        function = op.operation
        if function.name != "func.func":
            continue
        name = ir.StringAttr(function.attributes["sym_name"]).value
        scratch = bufferize.assign_scratch(function)
        checked = asserts.has_assert(function)
        if checked:
            asserts.add_control_argument(function, control_words)
        function.attributes["passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get("noinline")])
        arguments[name] = BodyArguments(scratch, checked)
    _run(module, bodies, bufferize.free_temporaries)
    _rename_constants(module, prefix)
    return arguments


def _to_loops(module: ir.Operation) -> None:
    lower_atomics(module)
    safety.guard_divisions(module)
    expand_math(module)
    bufferize.run_passes(module, LOOPS)


def _rename_constants(module: ir.Operation, prefix: str) -> None:
    """Make the names of the globals unique among the programs of a module."""
    for op in operations_named(module, "memref.global", "memref.get_global"):
        key, of = ("sym_name", ir.StringAttr) if op.name == "memref.global" else ("name", ir.FlatSymbolRefAttr)
        old = str(op.attributes[key]).strip('@"')
        op.attributes[key] = of.get(f"{prefix}_{old}")


def _run(module: ir.Operation, bodies: list[Body], step) -> None:
    """Run `step` on the whole module; if that fails, find the body that is to blame and name its task."""
    backup = module.clone().operation
    try:
        step(module)
        return
    except KitsuneError:
        raise
    except Exception as error:
        first = error
    try:
        for op in list(backup.regions[0].blocks[0].operations):
            if op.operation.name != "func.func":
                continue
            name = ir.StringAttr(op.operation.attributes["sym_name"]).value
            task = next(b.task for b in bodies if b.name == name)
            alone = ir.Module.create(op.operation.location)
            alone.body.append(op.operation.clone())
            with named(f"the host's code generator, task '{task}',", op.operation.location):
                try:
                    step(alone.operation)
                except ir.MLIRError as error:
                    raise CompileError(f"task '{task}' has no lowering to the host: {error}") from error
    finally:
        backup.erase()
    raise CompileError(f"lowering to the host failed: {type(first).__name__}: {first}") from first
