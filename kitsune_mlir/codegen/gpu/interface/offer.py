"""What a planner asks an engine before there is a task: a candidate, and the engine's offer for it."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar, Protocol

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.grouped_gemms import share_a_pass
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.access import ALONG_ROWS, is_tensor, iterator_kinds, loop_sizes, shape_of
from kitsune_mlir.dialects.contraction import contraction_dims, is_dot
from kitsune_mlir.dialects.iteration import Space, is_free, sums_beside
from kitsune_mlir.dialects.products import body_of, defining_op, is_contraction, is_generic
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.machine.target import Target

__all__ = ["Candidate", "Offer", "Offering"]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Operations that may become one stage, or are one.

    Attributes:
        space: the linalg and tensor ops, and the iteration space that they share; the planner has not written anything yet.
        alone: it is the only stage of its pipeline.
        stage: the stage that it is; None while the planner still groups ops.
        before: the stage before it in the pipeline; None of the first, and while the planner groups ops.
        tile: sizes of the shared dimensions that were measured to be best; None for the engine's own choice.
    """

    space: Space
    alone: bool = False
    stage: ir.Operation | None = None
    before: ir.Operation | None = None
    tile: tuple[int, ...] | None = None

    @functools.cached_property
    def contractions(self) -> list[ir.Operation]:
        """All sums of products, in order."""
        return [op for op in self.space.ops if is_contraction(op)]

    @functools.cached_property
    def products(self) -> list[ir.Operation]:
        """Those that have rows or columns. Tensor cores do sums of products of two vectors badly."""
        return [op for op in self.contractions if not is_dot(op)]

    def opaque(self, pads: bool = True) -> bool:
        """Whether some op on tensors is no loop nest that is known (sort, scan, scatter, ...), or, with `pads`, pads."""
        space = self.space
        others = ("tensor.pad", *ALONG_ROWS) if pads else ALONG_ROWS
        return any(op.name in others for op in space.ops) or any(
            access is None and any(is_tensor(r) for r in op.results) and op.name not in ("arith.constant", "tensor.pad")
            for op, access in zip(space.ops, space.accesses, strict=True)
        )

    @functools.cached_property
    def several_passes(self) -> str | None:
        """Why its products are not done by one pass over operands in memory; None if they are."""
        if len(self.contractions) > 1 and not share_a_pass(self.contractions):
            return "a stage holds one product on this target"
        if self._fed_inside():
            return "a product's inputs come from memory on this target"
        if self.products and not all(map(self._tiled, self.products)):
            return "it would take the product's columns away from its tiles"
        return None

    @functools.cached_property
    def operand_sums(self) -> list[ir.Operation]:
        """Sums of a product's operand that are made beside it."""
        return [self.space.ops[n] for _, _, n in sums_beside(self.space.ops)]

    @functools.cached_property
    def after_products(self) -> str | None:
        """Why what follows the products is more than element-wise work on a tile of their results; None if it is not."""
        beside = {result for op in self.operand_sums for result in op.results}
        if any(value in beside for op in self.space.ops for value in op.operands):
            return "work on a sum that is made beside a product"
        made = {result for op in self.contractions for result in op.results}
        points = max((math.prod(shape_of(result)) for result in made), default=0)
        for op in self.space.ops:
            if is_contraction(op) or not any(value in made for value in op.operands):
                continue
            made.update(op.results)
            if op.name in ("tensor.concat", "tensor.pad", "tensor.insert_slice"):
                return f"'{op.name}' of what a product makes"
            if is_generic(op) and "reduction" in iterator_kinds(op):
                return "a reduction of what a product makes"
            if is_generic(op) and math.prod(loop_sizes(op)) > points:
                return "what follows the product has more elements"
        return self.asserts

    @functools.cached_property
    def asserts(self) -> str | None:
        """What says that an op beside the products, which is made with them, checks an index; None if none does."""
        beside = [op for op in self.space.ops if is_generic(op) and not is_contraction(op)]
        checked = any(inner.name == "cf.assert" for op in beside for inner in body_of(op))
        return "an element-wise body holds 'cf.assert'" if checked else None

    def _tiled(self, product: ir.Operation) -> bool:
        n = self.space.ops.index(product)
        access = self.space.accesses[n]
        tiled = {d.loops.get(n) for d in self.space.dims}
        kinds = enumerate(iterator_kinds(product))
        return access is None or all(loop in tiled or access.sizes[loop] == 1 for loop, kind in kinds if kind == "parallel")

    def _fed_inside(self) -> bool:
        """Whether a factor of a product (not its start value) is made by another op of the candidate."""
        inside = set(self.space.ops)
        pending = [value for op in self.contractions for value in list(op.operands)[:2]]
        while pending:
            maker = defining_op(pending.pop())
            if maker is None:
                continue
            if not is_free(maker):
                if maker in inside:
                    return True
            else:
                pending += [*maker.operands, *captures(maker)]
        return False

    def roles(self, product: ir.Operation) -> list[str]:
        """What each shared dimension is to a product: "m", "n" (a convolution's pixels, too), or "batch"."""
        n, dims = self.space.ops.index(product), contraction_dims(product)
        return [dims.role(d.loops[n]) or "n" if n in d.loops else "batch" for d in self.space.dims]


@dataclasses.dataclass(frozen=True)
class Offer:
    """An engine takes a candidate: `Engine.plan` will plan the tasks that become of it.

    Attributes:
        engine: its name.
        tile: sizes of the candidate's shared dimensions.
        seconds: how long it takes, from the first load to the last store; None where the engine has no model of its own and
            `machine.stage_cost` is asked.
        column_groups: groups of a product's columns that are counted apart (`engines/mma/column_groups.py`).
    """

    engine: str
    tile: tuple[int, ...]
    seconds: float | None = None
    column_groups: int = 1


class Offering(Protocol):
    """Who can be asked: an engine of a GPU's kernel, or the host's code generator."""

    name: ClassVar[str]
    traits: ClassVar[Traits]

    def offer(self, candidate: Candidate, machine: Target, options: KernelOptions) -> Offer | Decline: ...
