"""Which stages engines `conv` and `depthwise` take, and how many pixels and features a tile has."""

import dataclasses

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.conv.tiles import Problem, choose_tile, depthwise_tile
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer
from kitsune_mlir.codegen.gpu.interface.plan import Decline
from kitsune_mlir.dialects.access import loop_sizes, static_ints
from kitsune_mlir.dialects.contraction import conv_dims
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import defining_op, is_projected_product
from kitsune_mlir.machine.target import Target

BYTES = {"bf16": 2, "f16": 2, "f32": 4}
VECTOR_BYTES = 16
STAGE_BYTES = 4096  # shared memory that the kernel keeps for itself


def offer(name: str, candidate: Candidate, machine: Target, depthwise: bool = False) -> Offer | Decline:
    """A stage of one channels-last convolution of bf16, f16 or f32.

    Args:
        depthwise: whether it is the engine for convolutions of which every feature is of one channel.
    """
    contractions, space = candidate.contractions, candidate.space
    if len(contractions) != 1 or is_projected_product(contractions[0]):
        return Decline(name, "it holds no convolution, or other products beside one")
    op = contractions[0]
    if (found := convolution_of(op)) is None:
        return Decline(name, "its convolution is none of bf16, f16 or f32 with channels innermost")
    problem, loops, per_channel = found
    if per_channel != depthwise:
        return Decline(name, "each feature is of one channel" if per_channel else "its features are of several channels")
    if (reason := candidate.several_passes or candidate.after_products) is not None:
        return Decline(name, reason)
    if depthwise:
        chosen = depthwise_tile(problem, max(1, VECTOR_BYTES // problem.element_bytes), machine.workers)
    else:
        problem = dataclasses.replace(problem, inside=not _pads_last(op, space)).merged()
        chosen = choose_tile(problem, machine.workers, machine.fast_bytes - STAGE_BYTES)
    if chosen is None:
        return Decline(name, f"no tile of it fits {machine.fast_bytes - STAGE_BYTES} bytes of shared memory")
    tile = dict(zip(loops, (*chosen[0], chosen[1]), strict=True))
    number = space.ops.index(op)
    shared = {d.loops.get(number) for d in space.dims}
    whole = dict(zip(loops, (*problem.pixels, problem.features), strict=True))
    if any(tile[loop] != whole[loop] and loop not in shared for loop in loops) or not shared <= set(loops):
        return Decline(name, "tiles are cut along pixels and features, which not all of its operations share")
    return Offer(name, tuple(tile[d.loops[number]] for d in space.dims))


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
        group=dims.group,
    )
    return problem, [*dims.pixels, dims.features], dims.depthwise
