"""The host target from end to end: a module with a tile program in, machine code out."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.codegen.host.lower import emit_object, to_llvm_ir
from kitsune_mlir.codegen.host.machine import Machine, this_machine
from kitsune_mlir.codegen.host.program import FACTS, SIZES, cut_tasks, lower_programs
from kitsune_mlir.dialects.attribute_table import PROGRAM_OVERWRITES
from kitsune_mlir.dialects.tile_reader import program_functions
from kitsune_mlir.errors import CompileError
from kitsune_mlir.runtime.host_code import HostCode, host_cpu

__all__ = ["compile_host"]


def compile_host(module: ir.Module, name: str, *, level: int = 2, machine: Machine | None = None) -> HostCode:
    """Compile the tile program `name` of `module` for this machine.

    Args:
        module: holds tile programs (docs/tile-program.md), or what `kitsune-to-host` made of them; it is left unchanged.
        name: symbol of the program's `func.func`.
        level: LLVM's optimisation level, 0 to 3.
        machine: what vectors to write; this processor's if None.

    Raises:
        CompileError: there is no such program, or something in it has no lowering (it is named).
    """
    clone = module.operation.clone().operation
    with clone.context, ir.Location.unknown():
        for program in program_functions(clone):
            if ir.StringAttr(program.attributes["sym_name"]).value != name:
                program.erase()
        lower_programs(clone, machine or this_machine())
        worker = _find(clone, f"{name}_worker", name)
        facts = {key: ir.IntegerAttr(worker.attributes[f"kitsune.{key}"]).value for key in FACTS}
        sizes = tuple(ir.DenseI64ArrayAttr(worker.attributes[SIZES]))
        over = PROGRAM_OVERWRITES in worker.attributes
        overwrites = tuple(ir.DenseI64ArrayAttr(worker.attributes[PROGRAM_OVERWRITES])) if over else ()
        cut = cut_tasks(worker)
        text, messages = to_llvm_ir(clone, name, f"{name}_worker")
    code = emit_object(text, level)
    return HostCode(
        name,
        code,
        text,
        tuple(messages),
        arguments=facts["arguments"],
        argument_bytes=sizes,
        task_count=facts["tiles"],
        semaphore_slots=facts["slots"],
        control_bytes=facts["control_bytes"],
        scratch_bytes=facts["scratch_bytes"],
        arena_bytes=facts["arena_bytes"],
        cpu=host_cpu(),
        overwrites=overwrites,
        cut=cut,
    )


def _find(module: ir.Operation, symbol: str, name: str) -> ir.Operation:
    for op in module.regions[0].blocks[0].operations:
        attributes = op.operation.attributes
        if "sym_name" in attributes and ir.StringAttr(attributes["sym_name"]).value == symbol:
            return op.operation
    raise CompileError(f"the module has no tile program '{name}'")
