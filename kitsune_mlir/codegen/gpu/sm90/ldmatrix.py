"""Matrices between shared memory and registers: `ldmatrix`, `stmatrix`, and accumulators staged for a bulk store."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import llvm, nvvm

from kitsune_mlir.codegen.gpu.emit.convert import pack_values
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, as_type, wrap
from kitsune_mlir.machine.shared_tile import SharedTile

__all__ = ["load_matrices", "stage_accumulator", "store_matrices"]


def stage_accumulator(
    values: Sequence[Value],
    thread: Value,
    tile: SharedTile,
    pointer: Value,
    col: int,
    dtype: str,
    row: int = 0,
    relu: bool = False,
) -> None:
    """Write 16 columns of a warpgroup's accumulator (8 registers, 64 rows) into shared memory as a 16-bit `dtype`.

    Args:
        thread: index of the thread in the warpgroup.
        tile, pointer: where to: a tile and its place, aligned as its swizzle asks.
        col: the first of the columns there, a multiple of 16; `row` of the rows, a multiple of 8.
    """
    lane = thread & 31
    at_row = (thread // 32 << 4) + (lane & 15) + row
    at_col = (lane >> 4 << 3) + col % tile.panel_cols
    panel = col // tile.panel_cols * tile.panel_bytes
    store_matrices(offset(offset(pointer, tile.offset(at_row, at_col)), panel), pack_values(values, dtype, relu))


def load_matrices(pointer: Value, transposed: bool = False) -> list[Value]:
    """Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.

    Lane 4 g + t gets of each matrix the elements 2t and 2t + 1 of row g, or, transposed, of column g.
    """
    layout = "col" if transposed else "row"
    attributes = (f"#nvvm.mma_layout<{layout}>", "#nvvm.ld_st_matrix_shape<m=8,n=8>", "#nvvm.ld_st_matrix_elt_type<b16>")
    result = nvvm.ldmatrix(pointer.ir, 4, *[ir.Attribute.parse(text) for text in attributes])
    return [wrap(llvm.extractvalue(as_type("i32"), result, [index])) for index in range(4)]


def store_matrices(pointer: Value, words: Sequence[Value]) -> None:
    """Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8."""
    attributes = ("#nvvm.mma_layout<row>", "#nvvm.ld_st_matrix_shape<m=8,n=8>", "#nvvm.ld_st_matrix_elt_type<b16>")
    nvvm.stmatrix(pointer.ir, [word.ir for word in words], *[ir.Attribute.parse(text) for text in attributes])
