"""Tiles of one size along a dimension that they do not divide: the last one is shifted back."""

from torch_mlir import ir
from torch_mlir.dialects import arith

from .memrefs import index

__all__ = ["repeated", "tile_offset"]


def tile_offset(coordinate: ir.Value, tile: int, size: int) -> ir.Value:
    """`min(coordinate * tile, size - tile)`: the last tile is shifted back where the tile does not divide the size."""
    offset = arith.muli(coordinate, index(tile))
    return offset if size % tile == 0 else arith.minui(offset, index(size - tile))


def repeated(coordinate: ir.Value, tile: int, size: int, offset: ir.Value) -> ir.Value | None:
    """How many rows of a tile belong to the tile before (see `tile_offset`); None where tiles never overlap."""
    return None if size % tile == 0 else arith.subi(arith.muli(coordinate, index(tile)), offset)
