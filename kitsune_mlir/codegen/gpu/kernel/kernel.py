"""One kernel: its module, parameters, launch bounds and shared memory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.backend.cubin import Cubin, assemble
from kitsune_mlir.codegen.gpu.backend.ptx import to_ptx
from kitsune_mlir.codegen.gpu.backend.to_llvm import to_llvm_ir
from kitsune_mlir.codegen.gpu.emit.memory import GLOBAL, SHARED, offset
from kitsune_mlir.codegen.gpu.emit.smem import SharedArena, SharedSpan
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, wrap
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.errors import CompileError

__all__ = ["MOST_PARAMETER_BYTES", "ArrayParameter", "Compiled", "Kernel", "parameter_bytes"]

MOST_PARAMETER_BYTES = 32764
"""Bytes of all parameters of a kernel (CUDA C++ Programming Guide, "Kernel Parameters", from compute capability 7.0 on)."""

_SCALARS = ("i32", "i64", "f32", "f64")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A kernel's artefacts: LLVM IR (LLVM 24's spelling), PTX, the cubin, and the manifest that a launch needs."""

    llvm_ir: str
    ptx: str
    cubin: Cubin
    manifest: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ArrayParameter:
    """`count` items of `bytes` each, passed by value in constant memory; the argument is their address."""

    count: int
    bytes: int
    align: int


class Kernel:
    """A kernel under construction. Use it inside an active `ir.Context` and `ir.Location`:

        kernel = Kernel("scale", ["pointer", "i32"], threads=128)
        with kernel.body() as (data, count):
            ...emit...
        compiled = kernel.compile()

    Args:
        name: the symbol of the kernel.
        parameters: one per argument: "pointer" (global memory), "i32", "i64", "f32", "f64", or a `TensorMap`, which is
            passed by value in constant memory (`__grid_constant__`), as an `ArrayParameter` is.
        threads: threads per block (one-dimensional, a multiple of 32, at most 1024); the launch must use exactly these.
        min_blocks: blocks that must fit a multiprocessor at once: caps the registers.
        cluster: blocks per cluster, or None; a plain launch then makes clusters of this size.
        max_registers: cap on registers per thread (`.maxnreg`), or None.

    `arena` lays out the dynamic shared memory: take spans from it, and turn them into pointers by `shared`.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[str | TensorMap | ArrayParameter],
        threads: int,
        min_blocks: int = 1,
        cluster: int | None = None,
        max_registers: int | None = None,
    ):
        if threads % 32 or not 32 <= threads <= 1024:
            raise CompileError(f"kernel '{name}': threads are a multiple of 32 up to 1024, not {threads}")
        if cluster is not None and not 1 <= cluster <= 16:
            raise CompileError(f"kernel '{name}': a cluster has 1 to 16 blocks, not {cluster}")
        self.name = name
        self.parameters = tuple(parameters)
        if (size := parameter_bytes(self.parameters)) > MOST_PARAMETER_BYTES:
            raise CompileError(
                f"kernel '{name}': its {len(self.parameters)} parameters take {size} bytes, "
                f"at most {MOST_PARAMETER_BYTES} are possible"
            )
        self.threads = threads
        self.min_blocks = min_blocks
        self.cluster = cluster
        self.arena = SharedArena()
        attributes = f"nvvm.kernel, nvvm.reqntid = array<i32: {threads}, 1, 1>, nvvm.minctasm = {min_blocks} : i32"
        if cluster is not None:
            attributes += f", nvvm.cluster_dim = array<i32: {cluster}, 1, 1>"
        if max_registers is not None:
            attributes += f", nvvm.maxnreg = {max_registers} : i32"
        declared = ", ".join(f"%arg{index}: {_declare(name, kind)}" for index, kind in enumerate(self.parameters))
        # The array has no size: its bytes come with the launch. 1024 is the period of the 128-byte swizzle.
        self.module = ir.Module.parse(
            f"""module {{
              llvm.mlir.global external @smem() {{addr_space = 3 : i32, alignment = 1024 : i64}} : !llvm.array<0 x i8>
              llvm.func @{name}({declared}) attributes {{{attributes}}} {{ llvm.return }} }}"""
        )
        self._block = list(self.module.body.operations)[1].regions[0].blocks[0]

    @contextlib.contextmanager
    def body(self) -> Iterator[tuple[Value, ...]]:
        """Emit into the kernel: the insertion point is before its return; gives the arguments as values."""
        with ir.InsertionPoint(list(self._block.operations)[-1]):
            yield tuple(wrap(argument) for argument in self._block.arguments)

    def shared(self, span: SharedSpan | int) -> Value:
        """Pointer to a span of the arena, or to a byte offset, in shared memory. Only inside `body`."""
        base = wrap(llvm.mlir_addressof(as_type(SHARED), "smem"))
        return offset(base, span if isinstance(span, int) else span.offset)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory that the launch must ask for."""
        return self.arena.peak

    def manifest(self) -> dict[str, Any]:
        """What a launch needs to know, as plain data for JSON."""
        parameters = [
            {"kind": "tensor_map", "map": kind.manifest()} if isinstance(kind, TensorMap) else {"kind": kind}
            for kind in self.parameters
            if not isinstance(kind, ArrayParameter)
        ]
        return {
            "name": self.name,
            "threads": self.threads,
            "cluster": self.cluster or 1,
            "min_blocks": self.min_blocks,
            "shared_bytes": self.shared_bytes,
            "parameters": parameters,
        }

    def compile(self, chip: str = "sm_90a", fastmath: str = "contract") -> Compiled:
        """Verify, lower and assemble.

        Raises:
            CompileError: the module is invalid, or LLVM or ptxas reject it.
        """
        try:
            self.module.operation.verify()
        except ir.MLIRError as error:
            raise CompileError(f"kernel '{self.name}' is invalid: {error}") from error
        llvm_ir = to_llvm_ir(self.module, fastmath)
        ptx = to_ptx(llvm_ir, chip)
        return Compiled(llvm_ir, ptx, assemble(ptx, chip), self.manifest())


def parameter_bytes(parameters: Sequence[str | TensorMap | ArrayParameter]) -> int:
    """Bytes that parameters of a kernel take together."""
    return sum(map(_bytes, parameters))


def _bytes(kind: str | TensorMap | ArrayParameter) -> int:
    """Size of a parameter, with what may be lost to alignment."""
    if isinstance(kind, ArrayParameter):
        return -(-kind.count * kind.bytes // kind.align) * kind.align
    return 128 if isinstance(kind, TensorMap) else 8


def _declare(kernel: str, kind: str | TensorMap | ArrayParameter) -> str:
    if isinstance(kind, TensorMap):
        kind = ArrayParameter(1, 128, 64)
    if isinstance(kind, ArrayParameter):
        bytes, align = kind.count * kind.bytes, kind.align
        return f"!llvm.ptr {{llvm.byval = !llvm.array<{bytes} x i8>, nvvm.grid_constant, llvm.align = {align} : i64}}"
    if kind == "pointer":
        return GLOBAL
    if kind in _SCALARS:
        return kind
    raise CompileError(f"kernel '{kernel}': no parameter kind '{kind}'; known: pointer, {', '.join(_SCALARS)}, TensorMap")
