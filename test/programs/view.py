"""Tile programs of test/gpu as the GPU code generator sees them."""

from torch_mlir import ir

from kitsune_mlir.dialects.tile_reader import ProgramView, program_functions

_modules: list[ir.Module] = []


def view(text: str) -> ProgramView:
    """The first program in a module's text."""
    module = ir.Module.parse(text)
    _modules[:] = [module]  # alive as long as its records
    return ProgramView(program_functions(module.operation)[0])
