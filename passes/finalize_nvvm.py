"""`kitsune-finalize-nvvm`: kernels become LLVM dialect."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.to_llvm import finalize
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.passes.base import Pass, PassFailure

FASTMATH = ("afn", "arcp", "contract", "fast", "ninf", "nnan", "nsz", "reassoc")
"""Flags of MLIR's `#arith.fastmath`, except for `none`."""


@dataclass(frozen=True)
class FinalizeNvvm(Pass):
    """Lower everything in `gpu.module`s to the LLVM dialect, ready to be translated to LLVM IR.

    Option: `fastmath` names the flags that every arith and math operation gets ("contract" lets a product and a sum become
    one fma; "contract,afn,arcp" allows approximations of functions and divisions too).
    """

    name: ClassVar[str] = "kitsune-finalize-nvvm"
    fastmath: str = "contract"

    def __post_init__(self) -> None:
        if unknown := {*self.fastmath.split(",")} - {"", *FASTMATH}:
            raise ValueError(f"fastmath has flags {', '.join(FASTMATH)}, not {', '.join(sorted(unknown))}")

    def run(self, module: ir.Operation) -> None:
        try:
            finalize(module, self.fastmath)
        except KitsuneError as error:
            raise PassFailure(module, str(error)) from error
        module.verify()
