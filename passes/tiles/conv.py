"""Tiles of convolutions on a GPU: which stages ask for engine `conv`, and how many pixels and features a tile has."""

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.conv.tiles import Problem, choose_tile, depthwise_tile
from kitsune_mlir.dialects.access import loop_sizes, static_ints
from kitsune_mlir.dialects.contraction import conv_dims
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import defining_op, is_contraction, is_projected_product
from kitsune_mlir.machine.target import Target

BYTES = {"bf16": 2, "f16": 2, "f32": 4}
VECTOR_BYTES = 16
STAGE_BYTES = 4096  # shared memory that the kernel keeps for itself


def conv_tile(space: Space, target: Target) -> tuple[str, list[int]] | None:
    """Engine and tile sizes of a stage that is one channels-last convolution of bf16, f16 or f32; None for other stages."""
    products = [n for n, op in enumerate(space.ops) if is_contraction(op)]
    if len(products) != 1 or is_projected_product(space.ops[products[0]]):
        return None
    op = space.ops[products[0]]
    found = convolution_of(op)
    if found is None:
        return None
    problem, loops, depthwise = found
    if depthwise:
        chosen = depthwise_tile(problem, max(1, VECTOR_BYTES // problem.element_bytes), target.workers)
    else:
        problem = dataclasses.replace(problem, inside=not _pads_last(op, space)).merged()
        chosen = choose_tile(problem, target.workers, target.fast_bytes - STAGE_BYTES)
    if chosen is None:
        return None
    tile = dict(zip(loops, (*chosen[0], chosen[1]), strict=True))
    shared = {d.loops.get(products[0]) for d in space.dims}
    whole = dict(zip(loops, (*problem.pixels, problem.features), strict=True))
    if any(tile[loop] != whole[loop] and loop not in shared for loop in loops) or not shared <= set(loops):
        return None
    return "depthwise" if depthwise else "conv", [tile[d.loops[products[0]]] for d in space.dims]


def _pads_last(op: ir.Operation, space: Space) -> bool:
    """Whether the stage pads the last dimension but the channels of what a convolution reads."""
    maker = defining_op(op.operands[0])
    if maker is None or maker.name != "tensor.pad" or maker not in space.ops:
        return False
    return any(static_ints(maker, name)[-2] != 0 for name in ("static_low", "static_high"))


def convolution_of(op: ir.Operation) -> tuple[Problem, list[int], bool] | None:
    """A product as a convolution, its loops (over pixels in the order of the image's dimensions, then the features), and
    whether it is depthwise: every feature is of one channel."""
    element = str(ir.ShapedType(op.operands[0].type).element_type)
    if element not in BYTES:
        return None
    try:
        dims = conv_dims(op)
    except MatchFailure:
        return None
    sizes = loop_sizes(op)
    problem = Problem(
        tuple(sizes[loop] for loop in dims.pixels),
        dims.strides,
        tuple(1 if tap is None else sizes[tap] for tap in dims.taps),
        dims.dilations,
        sizes[dims.channels],
        sizes[dims.features],
        element_bytes=BYTES[element],
        exact=element == "f32",  # what TF32 does with the same tile takes less of everything
    )
    return problem, [*dims.pixels, dims.features], dims.depthwise
