"""Which loops of a product are batch, rows (m), columns (n) and sum (k), and which of a convolution are pixels and channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir
from torch_mlir.dialects import linalg

from kitsune_mlir.dialects.sizes import HALF_TYPES

from .access import affine_maps, iterator_kinds, loop_sizes, plain_loops, terms_of
from .match_failure import MatchFailure
from .products import is_projected_product
from .unchanged import remembered

__all__ = [
    "ContractionDims",
    "ConvDims",
    "contraction_dims",
    "conv_dims",
    "is_dot",
    "matrix_extents",
    "operand_bytes",
    "subscripts",
]


@dataclass(frozen=True)
class ContractionDims:
    """The loops of `out[batch, m, n] += sum over k of a[batch, m, k] * b[batch, n, k]`, each in rising order.

    Only loops that walk a dimension alone have a role: of a convolution's, neither pixels nor taps.
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]

    def role(self, loop: int) -> str | None:
        """ "batch", "m", "n" or "k"; None for a loop that has none of these."""
        return next((name for name in ("batch", "m", "n", "k") if loop in getattr(self, name)), None)


@remembered
def contraction_dims(op: ir.Operation) -> ContractionDims:
    """The roles of a linalg op's loops, from its maps and iterator types alone: its body is not looked at.

    Raises:
        ValueError: it has not two inputs and one result.
    """
    found = linalg.infer_contraction_dimensions(op)
    if found is None:
        raise ValueError(f"'{op.name}' is no product: it has {len(op.operands)} operands and {len(op.results)} results")
    return ContractionDims(tuple(found.batch), tuple(found.m), tuple(found.n), tuple(found.k))


@remembered
def subscripts(op: ir.Operation) -> str:
    """A product in einsum's notation, a letter for each dimension's role: "mk,nk->mn", or "bmk,bkn->bmn" of a batch.

    Several loops of one role have one letter. A dimension that is not walked by a loop with a role alone is "?".

    Raises:
        ValueError: as `contraction_dims`.
    """
    dims = contraction_dims(op)
    letters = {loop: role[0] for role in ("batch", "m", "n", "k") for loop in getattr(dims, role)}
    a, b, out = ("".join(letters.get(loop, "?") for loop in plain_loops(map_)) for map_ in affine_maps(op))  # type: ignore[arg-type]
    return f"{a},{b}->{out}"


def matrix_extents(op: ir.Operation, sizes: Sequence[int] | None = None) -> tuple[int, int, int]:
    """(rows, columns, terms) of a product, as one of two matrices: batches and a convolution's pixels are rows, too.

    Args:
        sizes: of the loops, where they are not the op's own.

    Raises:
        ValueError: as `contraction_dims`.
    """
    sizes = loop_sizes(op) if sizes is None else sizes
    columns = contraction_dims(op).n
    kinds = iterator_kinds(op)
    rows = math.prod(sizes[d] for d, kind in enumerate(kinds) if kind == "parallel" and d not in columns)
    terms = math.prod(sizes[d] for d, kind in enumerate(kinds) if kind == "reduction")
    return rows, math.prod(sizes[d] for d in columns), terms


@dataclass(frozen=True)
class ConvDims:
    """The loops of a convolution of images whose channels are the last dimension.

        out[pixel.., feature] += image[pixel*stride + tap*dilation.., channel] * weight[feature, tap.., channel]

    or, where every channel has a weight of its own (depthwise), so that features are channels,

        out[pixel.., channel] += image[pixel*stride + tap*dilation.., channel] * weight[tap.., channel]

    or, where the image's channels are in groups, each of which has a weight of its own,

        out[pixel.., group, feature] += image[pixel*stride + tap*dilation.., group, channel]
                                        * weight[group, feature, tap.., channel]

    The result's dimensions may have any order.

    Attributes:
        pixels: a loop for each dimension of the image but the channels (batch, rows, columns, ..., group).
        strides: of each of them, in elements of the image.
        taps: the loop of the weight along each; None where there is none (a batch).
        dilations: from one tap to the next; 1 where there is none.
        features, channels: the loops of the result's and of the image's channels.
        group: which of `pixels` is the group; None where there is one weight.
    """

    pixels: tuple[int, ...]
    strides: tuple[int, ...]
    taps: tuple[int | None, ...]
    dilations: tuple[int, ...]
    features: int
    channels: int
    group: int | None = None

    @property
    def depthwise(self) -> bool:
        """Whether every channel has a weight of its own."""
        return self.features == self.channels


def conv_dims(op: ir.Operation) -> ConvDims:
    """A product of two inputs (image, weight) as a convolution; one without taps and strides is one, too.

    Raises:
        MatchFailure: it is none with channels innermost.
    """
    image, weight, out = affine_maps(op)
    walked, outs = plain_loops(weight), plain_loops(out)
    if None in walked or None in outs or not walked:
        raise MatchFailure("the weight or the result is not indexed by plain loops")
    kinds = iterator_kinds(op)
    channels = walked[-1]
    depthwise = kinds[channels] == "parallel"  # type: ignore[index]
    *pixels, last = (terms_of(index) for index in image.results)
    group = next((n for n, terms in enumerate(pixels) if not depthwise and terms == {walked[0]: 1}), None)
    if group is not None and len(walked) < 3:
        raise MatchFailure("each group has one feature")
    first = 0 if group is None else 1
    features, taps = (channels, walked[:-1]) if depthwise else (walked[first], walked[first + 1 : -1])
    if last != {channels: 1} or features not in outs:
        raise MatchFailure("the channels are not the innermost dimension of image and weight")
    found: list[tuple[int, int, int | None, int]] = []
    for number, terms in enumerate(pixels):
        along = [loop for loop in terms or {} if kinds[loop] == "parallel"]
        within = [loop for loop in terms or {} if kinds[loop] == "reduction"]
        if terms is None or len(along) != 1 or len(within) > 1:
            raise MatchFailure(f"the image is indexed by {image.results[number]}")
        tap = within[0] if within else None
        found.append((along[0], terms[along[0]], tap, 1 if tap is None else terms[tap]))
    if [tap for *_, tap, _ in found if tap is not None] != taps or {*(loop for loop, *_ in found), features} != set(outs):
        raise MatchFailure("groups, or taps in another order than the image's dimensions")
    if features in [loop for loop, *_ in found]:
        raise MatchFailure("the weight differs from pixel to pixel")
    loops, strides, seen, dilations = zip(*found, strict=True) if found else ((), (), (), ())
    return ConvDims(loops, strides, seen, dilations, features, channels, group)  # type: ignore[arg-type]


def operand_bytes(op: ir.Operation) -> int:
    """Bytes of an element of a contraction's operands: 2, or 4 for what is no 16-bit float."""
    return 2 if all(str(ir.ShapedType(value.type).element_type) in HALF_TYPES for value in list(op.operands)[:2]) else 4


def is_dot(op: ir.Operation) -> bool:
    """Whether a contraction has neither rows nor columns: sums of products of two vectors, which tensor cores do badly."""
    if not is_projected_product(op):
        return False
    dims, sizes = contraction_dims(op), loop_sizes(op)
    return all(sizes[loop] == 1 for loop in (*dims.m, *dims.n))
