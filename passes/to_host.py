"""`kitsune-to-host`: tile programs to functions that upstream passes take to LLVM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.host.machine import Machine, this_machine
from kitsune_mlir.codegen.host.program import lower_programs
from kitsune_mlir.passes.base import Pass


@dataclass(frozen=True)
class ToHost(Pass):
    """Replace each tile program by its task bodies, a driver for each task, and a worker that takes tile tasks.

    `@NAME` becomes `@NAME_body0`, `@NAME_body1`, ... (equal bodies once; vector loops on memrefs), `@NAME_task0`, ...
    (coordinates, waits, body, posts) and `@NAME_worker(pointers, control blocks, scratch area, requests)`: each request has a
    row of pointers to the arguments of `@NAME`, and a control block (zeroed before). Any number of threads may call the worker
    at the same time with a scratch area each; together they run every tile of every request once. The worker carries the
    figures that the caller needs as attributes: `kitsune.tiles`, `kitsune.slots`, `kitsune.control_bytes`,
    `kitsune.scratch_bytes`, `kitsune.arena_bytes`, `kitsune.arguments` (with the arena), and `kitsune.argument_bytes` (without
    it).

    Vectors are as wide as this processor's; `vector-bytes` (16, 32 or 64) sets another width.
    """

    name: ClassVar[str] = "kitsune-to-host"
    vector_bytes: int = 0

    def __post_init__(self) -> None:
        if self.vector_bytes not in (0, 16, 32, 64):
            raise ValueError(f"vector-bytes is 16, 32, 64, or 0 for this processor's width, not {self.vector_bytes}")

    def run(self, module: ir.Operation) -> None:
        """Rewrite every `func.func` with the attribute `kitsune.program`; other operations stay."""
        width = self.vector_bytes
        lower_programs(module, Machine(width, 32 if width == 64 else 16) if width else this_machine())
