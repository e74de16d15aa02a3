"""`simulate`: from a compiled program, or a module of tile programs, to a `Simulation`."""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import program_functions
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.machine.target import Target, find_machine
from kitsune_mlir.runtime.manifest_check import read_manifest
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.simulation.program import SimProgram
from kitsune_mlir.simulation.read import Choice, Kernel, choices_of, resident_blocks, sim_program
from kitsune_mlir.simulation.result import Simulation
from kitsune_mlir.simulation.run import run
from kitsune_mlir.simulation.traffic import traffic_of

__all__ = ["numbers_of", "simulate", "simulate_program"]


def simulate(program: Program | ir.Module | ir.Operation, machine: str | Target = "H200", cold: bool = False) -> Simulation:
    """Run a program on a described machine, in numbers.

    Args:
        program: a compiled `Program` that has its `tiles` text, or a module that holds one tile program.
        machine: a name of `target.MACHINES`, a file that describes one (see `target.find_machine`), or a `Target`.
        cold: nothing is in L2 before. Otherwise the program has run before, as when it is timed.

    Raises:
        ArgumentError: there is no tile program.
        TargetError: there is no such machine.
        DeadlockError: the program locks up.
    """
    described = machine if isinstance(machine, Target) else find_machine(machine)
    return simulate_program(numbers_of(program, described), described, cold)


def numbers_of(program: Program | ir.Module | ir.Operation, machine: Target) -> SimProgram:
    """A compiled program, or the tile program of a module, in numbers; errors as of `simulate`."""
    if isinstance(program, Program):
        if not program.summary.get("stages"):
            raise ArgumentError("this program computes nothing: there is nothing to simulate")
        with new_context(), ir.Location.unknown():
            return _read(ir.Module.parse(program.ir("tiles")).operation, machine, program)
    operation = program.operation if isinstance(program, ir.Module) else program
    with operation.context, ir.Location.unknown():
        return _read(operation, machine)


def simulate_program(program: SimProgram, machine: Target, cold: bool = False) -> Simulation:
    """Run a program that is given in numbers."""
    traffic = traffic_of(program.tasks, machine.cache_bytes, cold)
    spans, blocks = run(program, traffic, machine)
    return Simulation(program, machine, spans, traffic, blocks)


def _read(module: ir.Operation, machine: Target, program: Program | None = None) -> SimProgram:
    found = program_functions(module)
    if len(found) != 1:
        raise ArgumentError(f"a module with one tile program can be simulated; this one holds {len(found)}")
    kernel = _kernel(program, machine) if program is not None and "engines" in program.summary else None
    return sim_program(found[0], kernel or choices_of(found[0], machine), machine)


def _kernel(program: Program, machine: Target) -> Kernel:
    """What the code generator decided for a compiled program."""
    choices = [Choice.from_summary(entry) for entry in program.summary["engines"]]
    found = [read_manifest(data.decode()) for name, data in program.artifacts.items() if name.endswith(".json")]
    registers = {kernel["name"]: kernel["registers"] for kernel in program.summary["kernels"]}
    most = max(registers.values())
    resident = [resident_blocks(m.threads, registers.get(m.kernel, most), m.shared_bytes, machine) for m in found]
    return Kernel(choices, min(resident, default=1), len(found) == 1 and found[0].streaming)
