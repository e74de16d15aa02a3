"""What the vector code needs to know about the processor."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kitsune_mlir.runtime.host_code import host_cpu

__all__ = ["Machine", "this_machine"]


@dataclass(frozen=True)
class Machine:
    """Vector registers: how wide (bytes) and how many. Code for wider or more registers is right everywhere, only slower."""

    vector_bytes: int
    registers: int

    def lanes(self, element_bytes: int) -> int:
        """Elements of `element_bytes` bytes in one register."""
        return self.vector_bytes // element_bytes


@functools.cache
def this_machine() -> Machine:
    """The processor that this process runs on."""
    features = host_cpu()
    if "+avx512f" in features and "+avx512bw" in features and "+avx512vl" in features:
        return Machine(64, 32)
    if "+avx2" in features:
        return Machine(32, 16)
    return Machine(16, 32 if "+neon" in features else 16)
