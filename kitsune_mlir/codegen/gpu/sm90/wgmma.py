"""Warpgroup matrix multiplication: D[64, n] += A[64, k] * B[k, n], f32 accumulators in registers.

The 128 threads of a warpgroup execute everything here together. A is in shared memory or in registers, B in shared
memory, both as `SharedTile`s. `multiply` emits one asynchronous group of instructions as a single block of inline PTX:
nothing can move between them, and the accumulators are tied operands. The results may be used after `wait`.

Thread t of the warpgroup has in register i of the accumulators (of A in registers, too) row 16 * (t / 32) + t % 32 / 4 +
8 * (i / 2 % 2) and column 2 * (t % 4) + `register_column(i)`: PTX ISA, "Register fragments and shared memory matrix layouts".

Between a thread's last write to registers or shared memory and the product: `barriers.fence_async_shared` and a barrier for
shared memory; for registers the `wgmma.fence` at the start of each block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_mlir.dialects import llvm

from kitsune_mlir.codegen.gpu.emit.inline_ptx import inline_ptx
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, i64, undefined, wrap
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["SharedOperand", "multiply", "register_column", "wait"]

_KINDS = {"bf16": ("bf16", 2), "f16": ("f16", 2), "tf32": ("tf32", 4)}
STEP_BYTES = 32
"""Bytes along k of one instruction: 16 elements of bf16 or f16, 8 of tf32."""


def register_column(register: int) -> int:
    """Column of an accumulator's register, from the thread's first one on; `mma_sync`'s blocks of 8 columns have the same."""
    return 8 * (register // 4) + register % 2


@dataclasses.dataclass(frozen=True)
class SharedOperand:
    """A or B in shared memory.

    Attributes:
        tile: its layout: [m or n] x k, or k x [m or n] if `transposed`.
        pointer: start of the tile, aligned to `tile.alignment`.
        row, col: where in the tile the operand starts. K-major: `row` is the first of m or n (a multiple of 8, may be a
            run-time value), `col` the first of k (a multiple of one step). Transposed: `row` is the first of k (a
            multiple of 16, may be a run-time value), `col` the first of m or n (a whole panel).
        transposed: whether m or n is contiguous ("MN-major"); 16-bit types only.
        distance: bytes from `pointer` to the start of the tile (a multiple of `tile.alignment`). It becomes part of the
            instructions' constants, so that many tiles share the registers of one descriptor.
    """

    tile: SharedTile
    pointer: Value
    row: Value | int = 0
    col: int = 0
    transposed: bool = False
    distance: int = 0

    def descriptor(self) -> Value:
        """wgmma's i64 descriptor of the operand's first step."""
        if self.transposed:
            fields, start = self.tile.mn_major(), self.tile.mn_major_start(self.row, self.col)
        else:
            fields, start = self.tile.k_major(), self.tile.k_major_start(self.row, self.col)
        address = wrap(llvm.ptrtoint(as_type("i64"), offset(self.pointer, start).ir))
        return ((address & 0x3FFFF) >> 4) | i64(fields.bits)

    def step(self, index: int) -> int:
        """What step `index` adds to the descriptor: the distance in 16-byte units."""
        if self.transposed:
            return self.distance + index * (STEP_BYTES // 2) * self.tile.swizzle >> 4
        elements = STEP_BYTES // self.tile.element_bytes
        moved = self.tile.k_major_start(0, self.col + index * elements) - self.tile.k_major_start(0, self.col)
        return self.distance + moved >> 4

    def steps(self) -> int:
        """Steps from the operand's start to the tile's end along k; a run-time `row` of a transposed one counts as 0."""
        if self.transposed:
            return (self.tile.rows - (self.row if isinstance(self.row, int) else 0)) * 2 // STEP_BYTES
        return (self.tile.cols - self.col) * self.tile.element_bytes // STEP_BYTES


def multiply(
    accumulators: Sequence[Value] | None,
    a: SharedOperand | Sequence[Value],
    b: SharedOperand,
    n: int,
    dtype: str = "bf16",
    steps: int | None = None,
    fence: bool = True,
) -> list[Value]:
    """Start D = A*B (accumulators None) or D += A*B over `steps` steps along k, as one committed group.

    Args:
        accumulators: n/2 f32, in `WgmmaAccumulator(n)`'s order.
        a: an operand in shared memory, or 4 i32 per step (packed pairs in `WgmmaA`'s order; one tf32 each for tf32).
        b: n x k, or k x n if transposed.
        n: a multiple of 8 up to 256.
        dtype: of A and B: "bf16", "f16" or "tf32".
        steps: instructions; default: to the end of A (registers) or of B's tile.
        fence: begin with `wgmma.fence`. Only a group that continues the one before (the same accumulators, A's registers
            written before that one's fence) does without. With A in registers, more fences make ptxas copy and spill.

    Returns:
        The n/2 accumulators, in flight until `wait`.

    Raises:
        ValueError: a type, shape or number of registers that the instruction does not take.
    """
    if dtype not in _KINDS:
        raise ValueError(f"wgmma multiplies {', '.join(_KINDS)}, not {dtype}")
    kind, element_bytes = _KINDS[dtype]
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"wgmma's n is a multiple of 8 up to 256, not {n}")
    if steps is None:
        steps = b.steps() if isinstance(a, SharedOperand) else len(a) // 4
    in_registers = not isinstance(a, SharedOperand)
    if in_registers and len(a) != 4 * steps:
        raise ValueError(f"{steps} steps need {4 * steps} registers of A, not {len(a)}")
    count = n // 2
    if accumulators is not None and len(accumulators) != count:
        raise ValueError(f"n = {n} needs {count} accumulators, not {len(accumulators)}")
    operands = [b] if in_registers else [a, b]
    for operand in operands:
        if operand.tile.element_bytes != element_bytes:
            raise ValueError(f"{dtype} has {element_bytes} bytes, the tile's elements {operand.tile.element_bytes}")
        if operand.transposed and element_bytes != 2:
            raise ValueError(f"a transposed operand needs a 16-bit type, not {dtype}")
    start = [undefined("f32")] * count if accumulators is None else list(accumulators)

    base = 2 * count  # operand numbers: results, tied accumulators, A, B
    results = ", ".join(f"${index}" for index in range(count))
    shape = f"m64n{n}k{STEP_BYTES // element_bytes}"
    a_values = list(a) if in_registers else [a.descriptor()]
    b_number = base + len(a_values)
    lines = [
        "{ .reg .pred first, rest; .reg .b32 low, high; .reg .b64 da, db; setp.ne.b32 first, 0, 0; setp.ne.b32 rest, 1, 0;",
        *(["wgmma.fence.sync.aligned;"] if fence else []),
    ]
    for step in range(steps):
        lines.append(_advanced("db", b_number, b.step(step)))
        if in_registers:
            source = "{" + ", ".join(f"${base + 4 * step + index}" for index in range(4)) + "}"
        else:
            lines.append(_advanced("da", base, a.step(step)))
            source = "da"
        predicate = "first" if accumulators is None and step == 0 else "rest"
        flags = "1, 1"
        if element_bytes == 2:
            flags += "" if in_registers else f", {int(a.transposed)}"
            flags += f", {int(b.transposed)}"
        lines.append(
            f"wgmma.mma_async.sync.aligned.{shape}.f32.{kind}.{kind} {{{results}}}, {source}, db, {predicate}, {flags};"
        )
    lines.append("wgmma.commit_group.sync.aligned; }")
    return inline_ptx("\n".join(lines), [*a_values, b.descriptor()], ["f32"] * count, memory=True, tied=start)


def _advanced(register: str, operand: int, step: int) -> str:
    """A descriptor moved by `step`: the address is in its lower half and never carries, so that half alone is added to."""
    return f"mov.b64 {{low, high}}, ${operand}; add.s32 low, low, {step}; mov.b64 {register}, {{low, high}};"


def wait(pending: int, accumulators: Sequence[Value]) -> list[Value]:
    """Wait until at most `pending` groups are in flight; returns the accumulators, now readable if theirs is not among them.

    They pass through the instruction as tied operands, so that no arithmetic on them can be moved above it. With `pending` > 0
    pass those of the groups that are waited for, or none.
    """
    code = f"wgmma.wait_group.sync.aligned {pending};"
    return inline_ptx(code, results=["f32"] * len(accumulators), memory=True, tied=accumulators)
