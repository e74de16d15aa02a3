"""Tiles of convolutions on a GPU: which stages ask for engine `conv`, and how many pixels and features a tile has."""

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.conv.tiles import Problem, choose_tile, depthwise_tile
from kitsune_mlir.dialects.access import affine_maps, iterator_kinds, shape_of, static_ints, terms_of
from kitsune_mlir.dialects.iteration import Space
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
    image, weight, out = affine_maps(op)
    if not all(isinstance(e, ir.AffineDimExpr) for e in [*weight.results, *out.results]):
        return None
    kinds = iterator_kinds(op)
    walked = [ir.AffineDimExpr(e).position for e in weight.results]
    depthwise = kinds[walked[-1]] == "parallel"
    features, taps, channels = (walked[-1], walked[:-1], walked[-1]) if depthwise else (walked[0], walked[1:-1], walked[-1])
    sizes = dict(zip(walked, shape_of(op.operands[1]), strict=True))
    sizes.update(zip([ir.AffineDimExpr(e).position for e in out.results], shape_of(op.results[0]), strict=True))
    *pixels, summed = [terms_of(e) for e in image.results]
    if summed != {channels: 1} or kinds[features] != "parallel" or (not depthwise and kinds[channels] != "reduction"):
        return None
    columns: list[tuple[int, int, int, int]] = []  # of each dimension: loop, stride, taps, dilation
    seen: list[int] = []
    for terms in pixels:
        along = [loop for loop in terms or {} if kinds[loop] == "parallel"]
        within = [loop for loop in terms or {} if kinds[loop] == "reduction"]
        if terms is None or len(along) != 1 or len(within) > 1 or along[0] == features:
            return None
        seen += within
        columns.append(
            (along[0], terms[along[0]], sizes[within[0]] if within else 1, terms[within[0]] if within else 1)
        )  # fmt: skip
    if seen != taps:
        return None
    loops = [column[0] for column in columns]
    strides, extents, dilations = (tuple(column[part] for column in columns) for part in (1, 2, 3))
    pixel_sizes = tuple(sizes[loop] for loop in loops)
    # f32 is planned for as exact: what TF32 does with the same tile takes less of everything.
    problem = Problem(
        pixel_sizes, strides, extents, dilations, sizes[channels], sizes[features],
        element_bytes=BYTES[element], exact=element == "f32",
    )  # fmt: skip
    return problem, [*loops, features], depthwise
