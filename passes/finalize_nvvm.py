"""`kitsune-finalize-nvvm`: kernels become LLVM dialect."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.assemble import finalize
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.passes.base import Pass, PassFailure


@dataclass(frozen=True)
class FinalizeNvvm(Pass):
    """Lower everything in `gpu.module`s to the LLVM dialect, ready to be translated to LLVM IR.

    Option: `fastmath` names the flags that every arith and math operation gets ("contract" lets a product and a sum become
    one fma; "contract,afn,arcp" allows approximations of functions and divisions too).
    """

    name: ClassVar[str] = "kitsune-finalize-nvvm"
    fastmath: str = "contract"

    def run(self, module: ir.Operation) -> None:
        try:
            finalize(module, self.fastmath)
        except KitsuneError as error:
            raise PassFailure(module, str(error)) from error
        module.verify()
