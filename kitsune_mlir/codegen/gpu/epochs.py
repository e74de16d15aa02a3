"""Tile programs -> one kernel that runs any of them in any order (`kernel/epochs.py`): every form on the way, and the cubin."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.cache.store import Store
from kitsune_mlir.codegen.gpu.backend.assembling import Assembling
from kitsune_mlir.codegen.gpu.backend.cubin import CHIPS, KernelResources
from kitsune_mlir.codegen.gpu.backend.to_llvm import finalize, target_attribute, to_text
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.epochs import EpochExecutor, build_epochs
from kitsune_mlir.codegen.gpu.kernel.merged import MergedView, merge
from kitsune_mlir.codegen.gpu.lower import PLAIN_REGISTERS
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import program_functions
from kitsune_mlir.dialects.unchanged import lasting
from kitsune_mlir.errors import CompileError, TargetError
from kitsune_mlir.runtime.epoch_manifest import EpochManifest

__all__ = ["KERNEL", "EpochCode", "compile_epochs", "emit_epochs"]

KERNEL = "epoch"


@dataclasses.dataclass(frozen=True)
class EpochCode:
    """An epoch kernel, compiled.

    Attributes:
        ptx: the assembly text.
        cubin: the ELF image.
        manifest: what launches need.
        resources: registers, spills and shared memory as ptxas reports them.
    """

    ptx: str
    cubin: bytes
    manifest: EpochManifest
    resources: KernelResources


def emit_epochs(texts: Sequence[str], digests: Sequence[str], options: KernelOptions, loops: bool = False) -> EpochExecutor:
    """The kernel of tile programs, in the current context.

    Args:
        texts: modules that hold a tile program each.
        digests, loops: see `build_epochs`.

    Raises:
        CompileError, UnsupportedError: as of `merge` and `build_epochs`.
    """
    whole, parsed = ir.Module.create(), [ir.Module.parse(text) for text in texts]
    found = [program_functions(module.operation) for module in parsed]
    if not found or not all(found):
        raise CompileError("a kernel of epochs needs programs that compute something")
    functions = [one[0].clone(ir.InsertionPoint(whole.body)).operation for one in found]
    merged, parts = merge(functions, KERNEL)
    for function in functions:
        function.erase()
    return build_epochs(MergedView(merged, parts), KERNEL, digests, options, loops=loops)


def compile_epochs(
    texts: Sequence[str],
    digests: Sequence[str],
    options: KernelOptions | None = None,
    store: Store | None = None,
    loops: bool = False,
) -> EpochCode:
    """Compile tile programs to one kernel; needs no GPU.

    Args:
        texts, digests, loops: as of `emit_epochs`.
        store: where assembled kernels are kept, if anywhere.

    Raises:
        AssemblyTimeout: ptxas takes longer than it may.
        CompileError: no engine takes a task, or LLVM or ptxas reject the code.
        TargetError: there is no such chip.
        UnsupportedError: a program has what such a kernel cannot do.
    """
    options = options or KernelOptions()
    if options.chip not in CHIPS:
        raise TargetError(f"no target machine for '{options.chip}'; known: {', '.join(sorted(CHIPS))}")
    with new_context(), ir.Location.unknown(), lasting():
        executor = emit_epochs(texts, digests, options, loops)
        unroll = all(decision.plan.registers <= PLAIN_REGISTERS for decision in executor.decisions)
        holder = ir.Module.create()
        kernel = ir.Operation.create(
            "gpu.module",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(KERNEL),
                "targets": ir.ArrayAttr.get([target_attribute(options.chip, unroll)]),
            },
            ip=ir.InsertionPoint(holder.body),
        )
        point = ir.InsertionPoint(kernel.regions[0].blocks.append())
        for op in list(executor.module.body.operations):
            op.operation.detach_from_parent()
            point.insert(op.operation)
        try:
            holder.operation.verify()
        except ir.MLIRError as error:
            raise CompileError(f"kernel '{KERNEL}' is invalid: {error}") from error
        finalize(holder.operation)
        text = to_text(kernel)
        with Assembling(options.chip, options.ptxas_seconds, store) as assembling:
            ptx, cubin = assembling.submit(text).result()
    return EpochCode(ptx, cubin.data, executor.manifest, cubin.kernels[KERNEL])
