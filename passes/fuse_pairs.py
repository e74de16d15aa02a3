"""`kitsune-fuse-pairs`: one stage for vectors, their dot products and the next layer's input made of these.

What the importer writes is a concatenation of vectors (some gathered), a batched product, a gather of some products by index,
and another concatenation: four passes over memory. `dialects/pairs.py` reads it; here its operations are marked, and
`form-stages` makes one stage of each mark, for the `pairs` engine.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.layers import FEW_ROWS
from kitsune_mlir.codegen.gpu.engines.pairs.tiles import KEPT_BYTES, samples_that_fit
from kitsune_mlir.dialects.attribute_table import PAIRS
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.pairs import Pairs, read_pairs
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.passes.pairs.layers import layer_bytes, layers_before

from .base import Pass
from .remarks import remark

__all__ = ["FusePairs"]


def obstacle(pairs: Pairs, target: Target) -> str | None:
    """Why pairs that were understood are not one stage; None if they are."""
    inside = {hash(op) for op in pairs.ops}
    for op in pairs.ops[:-1]:
        users = [_outermost(use.owner.operation, op) for result in op.results for use in result.uses]
        if any(hash(user) not in inside for user in users):
            return f"something else uses what '{op.name}' makes"
    if samples_that_fit(pairs, target) < 1:
        needed = pairs.sample_bytes + pairs.product_bytes
        return f"a sample needs {needed} bytes on chip, there are {target.fast_bytes - KEPT_BYTES}"
    return None


def _outermost(user: ir.Operation, beside: ir.Operation) -> ir.Operation:
    """The operation in the block of `beside` that `user` is, or is part of."""
    while user.block != beside.block:
        user = user.parent.operation
    return user


def with_layers(pairs: Pairs, target: Target) -> list[ir.Operation] | str:
    """The operations of layers that the stage should do itself; a reason if it should not."""
    ops = layers_before(pairs, target)
    if ops is None or isinstance(ops, str):
        return ops or []
    free = target.fast_bytes - KEPT_BYTES - FEW_ROWS * pairs.sample_bytes
    free -= max(FEW_ROWS * pairs.product_bytes, layer_bytes(pairs, ops))  # products come when the layers are done
    return ops if free >= 0 else f"{FEW_ROWS} samples and their layers need {-free} bytes more than there are on chip"


@dataclass(frozen=True)
class FusePairs(Pass):
    """Mark dot products of all pairs of a sample's vectors, and what they are made of and become, as one stage.

    Only for targets that have the `pairs` engine. `--remarks` says of each that stays apart why. Option: `target`.
    """

    name: ClassVar[str] = "kitsune-fuse-pairs"
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        target = find_target(self.target)
        if not target.is_gpu:
            return
        number = 0
        with module.context:
            for op in [op for op in walk(module) if op.name == "tensor.concat"]:
                try:
                    pairs = read_pairs(op)
                except MatchFailure:
                    continue
                if (reason := obstacle(pairs, target)) is not None:
                    remark(op, f"products of pairs stay apart: {reason}")
                    continue
                layers = with_layers(pairs, target)
                if isinstance(layers, str):
                    remark(op, f"the vector beside gathered ones is made apart: {layers}")
                    layers = []
                for inner in (*layers, *pairs.ops):
                    inner.attributes[PAIRS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
                number += 1
