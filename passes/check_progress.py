"""`kitsune-check-progress`: prove that a tile program ends and computes from what was written."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.dialects.tile_accesses import read_accesses
from kitsune_mlir.dialects.tile_reader import MalformedProgram, program_functions
from kitsune_mlir.dialects.unchanged import unchanged
from kitsune_mlir.passes.progress.coverage import Coverage
from kitsune_mlir.passes.progress.memory import Conflicts
from kitsune_mlir.passes.progress.order import Order
from kitsune_mlir.passes.spatial.check_rings import check_rings

from .base import Pass, PassFailure


@dataclass(frozen=True)
class CheckProgress(Pass):
    """Prove of every tile program that it cannot deadlock and that no tile reads or overwrites too early; change nothing.

    For any number of workers: every wait is met by posts of earlier tiles; a tile that touches what another tile writes is
    ordered with it by waits and posts, directly or through other tiles; whatever is read has been written and not been
    overwritten since; every element of every result is written. An error names the first tile for which this is not so, the
    tile that it clashes with, the memory, and what it does wait for; then follows the shortest run in which it happens, step by
    step: no fewer tiles have to finish first (where the search for fewer was cut off, it says so).
    """

    name: ClassVar[str] = "kitsune-check-progress"

    def run(self, module: ir.Operation) -> None:
        with module.context, ir.Location.unknown(), unchanged():
            for function in program_functions(module):
                self._check(function)

    def _check(self, function: ir.Operation) -> None:
        try:
            program = read_accesses(function)
        except MalformedProgram as error:
            raise PassFailure(error.operation, error.message) from error
        order = Order(program)
        order.check_waits()
        check_rings(program)
        Conflicts(program, order).check()
        coverage = Coverage(program)
        coverage.check_reads()
        coverage.check_results()
