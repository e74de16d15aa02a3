"""Descriptions of the machines that programs are compiled for. Pure data: no IR and no driver is needed to read them."""

import os
from dataclasses import dataclass

from kitsune_mlir.errors import TargetError


@dataclass(frozen=True)
class Target:
    """What the planner knows about a machine.

    Rates are bytes a second and floating-point operations a second, sizes are bytes. The H200's DRAM and tensor rates are the
    ones measured for the project (a device copy, an 8192 x 8192 x 8192 bf16 product), the others are the vendor's.
    """

    name: str
    kind: str  # "host" or "gpu"
    workers: int  # multiprocessors of a GPU, hardware threads of a host: how many tile tasks run at a time
    fast_bytes: int  # what one worker keeps close: shared memory of a block, second-level cache of a core
    cache_bytes: int  # what all workers share: L2 of a GPU, last-level cache of a host
    dram_rate: float
    cache_rate: float
    matrix_rate: float  # bf16 products with f32 accumulation
    vector_rate: float  # f32 element-wise operations
    chip: str = ""  # the code generator's name for it, empty for the host

    @property
    def is_gpu(self) -> bool:
        """Whether programs for this target are CUDA kernels."""
        return self.kind == "gpu"


HOST = Target("host", "host", os.cpu_count() or 1, 1 << 20, 32 << 20, 20e9, 200e9, 100e9, 50e9)
H200 = Target("h200", "gpu", 132, 232448, 50 << 20, 4.3e12, 7.0e12, 790e12, 60e12, "sm_90a")
H100 = Target("h100", "gpu", 132, 232448, 50 << 20, 3.0e12, 7.0e12, 790e12, 60e12, "sm_90a")

# "sm_90a" names the code, not the machine: the H200's figures serve for planning.
TARGETS = {"host": HOST, "sm_90a": H200, "h200": H200, "h100": H100}


def find_target(name: str) -> Target:
    """The target called `name`; TargetError lists the names there are."""
    if name not in TARGETS:
        raise TargetError(f"unknown target '{name}'; known targets: {', '.join(TARGETS)}")
    return TARGETS[name]
