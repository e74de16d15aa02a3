"""How long groups of ops take on a GPU, as far as grouping has to know: coarse, and only beside each other."""

import math

from kitsune_mlir.codegen.gpu.engines.chain.layers import Layer
from kitsune_mlir.dialects.iteration import Space, inner_elements
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import Target

__all__ = ["least_tiles", "moving_seconds", "product_seconds"]


def product_seconds(layer: Layer, target: Target) -> float:
    """Time of one product as a stage of its own: tiles of 128 x 128, or its bytes, and the way in and out."""
    tiles = -(-layer.rows // 128) * -(-layer.columns // 128)
    waves = -(-tiles // target.workers)
    rate = target.matrix_rate / target.workers
    bytes_ = layer.weight_bytes + 2 * layer.rows * (layer.depth + layer.columns)
    one = 2 * 128 * min(128, max(8, layer.columns)) * layer.depth / rate
    return rates.CHAIN_HAND_OFF + max(waves * one + (waves - 1) * rates.CHAIN_TURN, bytes_ / target.dram_rate)


def moving_seconds(bytes_: int, target: Target) -> float:
    """Time of a stage without products that moves `bytes_`."""
    return rates.CHAIN_HAND_OFF + bytes_ / target.dram_rate


def least_tiles(space: Space) -> int:
    """How many tiles of the smallest useful size a space gives: rows, or vectors of 32 where there is nothing but columns."""
    points = math.prod(d.size for d in space.dims)
    return points if inner_elements(space) > 1 else max(1, points // 32)
