"""Loads of memory that is written while the kernel runs must not go through the read-only cache.

Engines load a program's inputs as data that nobody writes (`ld.global.nc`; PTX ISA, "ld.global.nc": the memory must not change
while the kernel runs). In a kernel of epochs one run's input is another one's result. What an engine has loaded stays the same
for as long as its own code runs, so only the instruction has to be another one.
"""

from __future__ import annotations

from torch_mlir import ir

from kitsune_mlir.dialects.verify import walk

__all__ = ["coherent"]


def coherent(module: ir.Operation) -> None:
    """Turn all loads of data through the read-only cache into plain ones; of addresses, which the host writes, they stay."""
    for op in list(walk(module)):
        if op.name == "llvm.load" and "invariant" in op.attributes and _of_data(op):
            del op.attributes["invariant"]
        for name in ("asm_string", "ptxCode"):  # of llvm.inline_asm and nvvm.inline_ptx
            code = ir.StringAttr(op.attributes[name]).value if name in op.attributes else ""
            if "ld.global.nc" in code:
                with module.context:
                    op.attributes[name] = ir.StringAttr.get(code.replace("ld.global.nc", "ld.global"))


def _of_data(load: ir.Operation) -> bool:
    """Whether it is no load of words that the host has written: tickets, records and pointers."""
    if str(load.operands[0].type) != "!llvm.ptr<1>":
        return False
    users = {use.owner.name for use in load.results[0].uses}
    return users != {"llvm.inttoptr"}
