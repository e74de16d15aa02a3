"""`kitsune-to-gpu`: tile programs become kernels."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.cubin import CHIPS
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import Decision
from kitsune_mlir.codegen.gpu.kernel.length import LongKernel
from kitsune_mlir.codegen.gpu.lower import each_launch, replace_program
from kitsune_mlir.dialects.tile_reader import program_functions
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine.slow_stages import slow_task
from kitsune_mlir.machine.stage_cost import REFERENCE
from kitsune_mlir.machine.target import TARGETS
from kitsune_mlir.passes.base import Pass, PassFailure
from kitsune_mlir.passes.remarks import remark


@dataclass(frozen=True)
class ToGpu(KernelOptions, Pass):
    """Turn every tile program into a `gpu.module` with one persistent kernel, at the level of nvvm, scf, arith and memref.

    A `separate` program becomes one for each launch, named NAME_0, NAME_1, ...; so does one whose kernel would have more than
    `most-operations` operations, for LLVM and ptxas take time that grows faster than a kernel.

    `--remarks` names each task that will be far slower than the chip needs to be: one that only the generic engine takes, one
    of a single block with work for many, one predicted at more than ten times its own floor.

    The kernel walks all tiles in order; each task's code comes from the engine that took it. The launch's manifest is the
    `gpu.module`'s attribute `kitsune.manifest` (JSON), its processor the `#nvvm.target`. `kitsune-opt --emit=ptx` prints the
    assembly text after `kitsune-finalize-nvvm`, which is what `compile` makes with the same options.

    Options: `chip` is the processor; `workers` the multiprocessors that the program is planned for; `shared-bytes` and
    `threads` what a block can have; `debug` bounds all waits and reports the first that gives up; with `timestamps` blocks
    write when they did what; `matmul-precision` and `convolution-precision` (`highest`, `high`, `medium`) say how f32 products
    are done, exactly or in TF32; with `requests` above 1 a launch does up to so many, by a table of pointers; `ptxas-seconds`
    is for whoever assembles the kernel: the pass does not.
    """

    name: ClassVar[str] = "kitsune-to-gpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chip not in CHIPS:
            raise ValueError(f"chip is one of {', '.join(sorted(CHIPS))}, not {self.chip}")

    def run(self, module: ir.Operation) -> None:
        machine = next((target for target in TARGETS.values() if target.chip == self.chip), REFERENCE)

        def watch(decision: Decision) -> None:
            if (slow := slow_task(decision.plan, decision.declined, machine)) is not None:
                remark(decision.plan.task.op, str(slow))

        def emit(function: ir.Operation) -> None:
            try:
                replace_program(function, self, watch)
            except LongKernel:
                raise
            except KitsuneError as error:
                raise PassFailure(function, f"cannot become a kernel: {error}") from error

        for function in program_functions(module):
            each_launch(function, emit)
        module.verify()
