"""`kitsune-synchronize`: derive from the affine maps what each tile of a consumer waits for."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.dialects import sync_attr
from kitsune_mlir.dialects.edges import edge_of, stage_space, stages_of
from kitsune_mlir.dialects.stage_graph import inputs_of
from kitsune_mlir.dialects.unchanged import unchanged
from kitsune_mlir.dialects.verify import walk

from .base import Pass
from .remarks import remark


@dataclass(frozen=True)
class Synchronize(Pass):
    """Set each input's policy: which tiles of its producer a tile of this stage waits for.

    `tile`, `row`, `strided` and `halo` come from how both stages walk the producer's leading tiled dimension; what cannot be
    told (gathers by index, reshapes that split dimensions) waits for `all`; gathers that `kitsune-partition-streams` has marked
    (`indexed`) wait for the rows that their indices name; arguments of the pipeline need `none`.
    """

    name: ClassVar[str] = "kitsune-synchronize"
    only_schedules: ClassVar[bool] = True

    def run(self, module: ir.Operation) -> None:
        with module.context, ir.Location.unknown():
            for op in list(walk(module)):
                if op.name == "kitsune.pipeline":
                    with unchanged():
                        for stage in stages_of(op):
                            self._derive(stage)

    def _derive(self, stage: ir.Operation) -> None:
        space = stage_space(stage)
        policies = []
        for value in inputs_of(stage):
            edge = edge_of(stage, space, value)
            policies.append(edge.policy if edge is not None else "none")
        stage.attributes["sync"] = ir.ArrayAttr.get([sync_attr(p) for p in policies])
        remark(stage, f"waits: {', '.join(policies) or 'none'}")
