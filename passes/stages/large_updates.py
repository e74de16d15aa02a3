"""Updates of large weights are stages of their own, not the ends of the products that make the gradients."""

import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.attribute_table import MUTATES
from kitsune_mlir.dialects.iteration import root_of
from kitsune_mlir.dialects.products import is_contraction
from kitsune_mlir.dialects.unchanged import constant

__all__ = ["updates_apart"]

LARGE = 3 << 17
"""Numbers of a weight from which on. A product's tile reads and writes matrices while nothing is multiplied; stages of their
own do so by all blocks at once (a step on an H200 with such: a Llama layer's 5.55 ms instead of 5.82, two layers of BERT-base
1.63 instead of 1.72, of ViT-S 1.62 instead of 1.69). Of smaller ones the way of a gradient to memory and back counts more."""


def updates_apart(maker: Sequence[ir.Operation], reader: Sequence[ir.Operation]) -> str | None:
    """Why a product's group and one that updates an argument of the program by it stay apart; None where they need not."""
    products = [op for op in maker if is_contraction(op)]
    if not products or any(map(is_contraction, reader)):
        return None
    points = math.prod(shape_of(products[-1].results[0]))
    if points < LARGE:
        return None
    function = products[0].parent
    if function is None or "res_attrs" not in function.attributes:
        return None
    changed = _changed(function.attributes["res_attrs"])
    roots = [root_of(v) for op in reader for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    read = {ir.BlockArgument(v).arg_number for v in roots if _is_whole_argument(v, points)}
    return "an update of so large a weight is a stage of its own" if read & changed else None


def _is_whole_argument(value: ir.Value, points: int) -> bool:
    return isinstance(value.owner, ir.Block) and math.prod(shape_of(value)) == points


@constant
def _changed(of_results: ir.Attribute) -> frozenset[int]:
    """Numbers of the arguments whose new values a function returns, by its `res_attrs`."""
    said = [ir.DictAttr(each) for each in ir.ArrayAttr(of_results)]
    return frozenset(ir.IntegerAttr(one[MUTATES]).value for one in said if MUTATES in one)
