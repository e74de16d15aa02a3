"""`epoch_kernel`: programs that were compiled, as one kernel for windows on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.cache.store import store_of
from kitsune_mlir.codegen.gpu.epochs import compile_epochs
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import Options, options_of
from kitsune_mlir.runtime.epoch_kernel import EpochKernel, digest_of
from kitsune_mlir.runtime.program import Program

__all__ = ["epoch_kernel"]

_PRECISIONS = ("matmul_precision", "convolution_precision")


def epoch_kernel(
    programs: Sequence[Program], options: Options | Mapping[str, Any] | None = None, *, loops: bool = False
) -> EpochKernel:
    """One kernel that runs any of some programs, as often as wanted and in an order known at its launch only.

        kernel = kitsune_mlir.epoch_kernel([program, other])
        window = kitsune_mlir.Window(size=4096, back_end="device", kernel=kernel)

    Programs that differ in their weights alone are one. Registers, threads and shared memory are those of the hungriest stage.
    Needs no GPU.

    Args:
        programs: for a GPU, with their texts (not saved without).
        options: of which `debug`, `ptxas_seconds`, `cache` and `cache_dir` count.
        loops: look at the condition of an entry (`Window.append(..., when=flag)`) once, however many pieces of work it has, so
            that it may change the condition itself; and let entries one behind the other with the same condition end together,
            as soon as it does not hold: the rest of a loop costs no waits. Not timed.

    Raises:
        ArgumentError: there is no program, or one is not for a GPU, or they differ in precision.
        AssemblyTimeout, CompileError: as of `kitsune_mlir.compile`.
        UnsupportedError: a program has what such a kernel cannot do: shares of the multiprocessors, clusters.
    """
    chosen = options_of(options)
    found = {digest_of(program.artifacts): program for program in programs}
    if not found:
        raise ArgumentError("a kernel of epochs needs a program")
    targets = {program.target for program in found.values()}
    machine = find_target(min(targets))
    if len(targets) > 1 or not machine.is_gpu:
        raise ArgumentError(f"a kernel of epochs has programs for one GPU target, not for {', '.join(sorted(targets))}")
    precisions = {tuple(program.summary[name] for name in _PRECISIONS) for program in found.values()}
    if len(precisions) > 1:
        raise ArgumentError(f"programs of one kernel have the same precision, not {sorted(precisions)}")
    made = KernelOptions(
        chip=machine.chip,
        workers=machine.workers,
        debug=chosen.debug,
        ptxas_seconds=chosen.ptxas_seconds,
        **dict(zip(_PRECISIONS, precisions.pop(), strict=True)),
    )
    store = store_of(chosen.cache, chosen.cache_dir)
    code = compile_epochs([program.ir("tiles") for program in found.values()], [*found], made, store, loops)
    return EpochKernel(code.manifest, code.cubin, code.ptx, dataclasses.asdict(code.resources))
