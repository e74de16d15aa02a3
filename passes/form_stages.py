"""`kitsune-form-stages`: group ops into stages that run tile by tile without leaving a block."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir
from torch_mlir.dialects import func

from kitsune_mlir.dialects.access import ALONG_ROWS
from kitsune_mlir.dialects.attribute_table import MICRO_BATCH
from kitsune_mlir.dialects.cloning import clone_with
from kitsune_mlir.dialects.iteration import is_reshape
from kitsune_mlir.dialects.products import defining_op, is_contraction, is_generic
from kitsune_mlir.dialects.stage_graph import PipelineOp, StageOp, YieldOp, pack, unpack
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.passes.stages.copies import settle_results, settle_scatters, settle_views
from kitsune_mlir.passes.stages.cut_chains import cut_chains
from kitsune_mlir.passes.stages.grouping import Grouping, reads
from kitsune_mlir.passes.stages.halo import gather_pads, mark_halos
from kitsune_mlir.passes.stages.long_chains import long_chains
from kitsune_mlir.passes.stages.made_where_read import make_where_read
from kitsune_mlir.passes.stages.moves_by_index import gather_moves
from kitsune_mlir.passes.stages.pool_windows import read_windows
from kitsune_mlir.passes.stages.read_through import read_through
from kitsune_mlir.passes.stages.remade_results import remake_results
from kitsune_mlir.passes.stages.split_results import split_after_groups
from kitsune_mlir.passes.stages.sum_ranges import mark_ranges
from kitsune_mlir.passes.stages.through_reshapes import merge_through_reshapes

from .base import Pass, PassFailure
from .remarks import remark

CHAINS = ("auto", "true", "false", "cost")


def stage_name(group: list[ir.Operation]) -> str:
    """A word for what a group mainly does."""
    if any(is_contraction(op) for op in group):
        return "product"
    if along := [op for op in group if op.name in ALONG_ROWS]:
        return along[0].name.split(".")[-1]
    kinds = {str(k) for op in group if is_generic(op) for k in ir.ArrayAttr(op.attributes["iterator_types"])}
    if any("reduction" in k for k in kinds):
        return "reduce"
    return "map" if all(is_generic(op) for op in group) else group[-1].name.split(".")[-1].replace("-", "_")


def _kinds(group: list[ir.Operation]) -> list[tuple[str, list[ir.Type]]]:
    """What is equal for groups that become code of the same size."""
    return [(op.name, [result.type for result in op.results]) for op in group]


@dataclass(frozen=True)
class FormStages(Pass):
    """Group ops into stages: chains that share parallel dimensions run tile by tile on chip.

    Two ops are joined when their maps give them a common parallel dimension, enough tiles are left to fill the machine, and
    a tile's intermediates fit on chip. Chains of products may store what they make on the way (what a gradient reads); what
    they would store, and can be made of 16-bit values that are stored anyway, is made again where it is read. What reads a few
    elements of a large map by index computes these. `--remarks` names what kept two ops apart.
    Options: `target`; `chains` says whether a stage may hold several products: `true`, `false`, `cost` (where the GPU's chain
    engine can hold them and it pays), or `auto`, the target's own way: on a GPU `cost`, on the host `true`. `cut`, for code
    that takes long to assemble, names stages that would be formed and are not: `cut=product_0:2,product_3:1` says one after
    the other how many products of that stage, and of each that is like it, stay together (how many ops, where it has one
    product or none); `cut=products:11` says of every stage how many products it holds at most.
    """

    name: ClassVar[str] = "kitsune-form-stages"
    target: str = "host"
    chains: str = "auto"
    cut: tuple[str, ...] = ()

    def run(self, module: ir.Operation) -> None:
        target = find_target(self.target)
        if self.chains not in CHAINS:
            raise KitsuneError(f"option 'chains' of {self.name} is {', '.join(CHAINS)}, not '{self.chains}'")
        chains = ("cost" if target.is_gpu else "true") if self.chains == "auto" else self.chains
        with module.context, ir.Location.unknown():
            for op in list(module.regions[0].blocks[0].operations):
                if op.operation.name == "func.func" and len(op.regions[0].blocks) and "kitsune.program" not in op.attributes:
                    self._form(op.operation, target, chains)

    def _form(self, function: ir.Operation, target: Target, chains: str) -> None:
        block = function.regions[0].blocks[0]
        if len(function.regions[0].blocks) > 1:
            raise PassFailure(function, "has several blocks; only straight-line functions become pipelines")
        if any(op.operation.name == "kitsune.pipeline" for op in block.operations):
            return
        self._check_static(function)
        settle_views(block)
        settle_results(block)
        if target.is_gpu:
            mark_halos(block)
            read_windows(block)
            settle_scatters(block)
            gather_pads(block)
            gather_moves(block)
            read_through(block)
            split_after_groups(block)
        every = [op.operation for op in block.operations]
        terminator = every.pop()
        every = [op for op in every if op.results]
        if not terminator.operands:
            return
        returned = list(terminator.operands)
        grouping = self._grouped(every, returned, target, chains, [])
        cuts = long_chains(grouping) if target.is_gpu and chains == "cost" else []
        if cuts:
            grouping = self._grouped(every, returned, target, chains, cuts)
        for item in self.cut:
            cuts = [*cuts, self._cut(function, grouping, item)]
            grouping = self._grouped(every, returned, target, chains, cuts)
        for op, reason in grouping.apart():
            remark(op, reason)
        self._build(function, grouping, returned, terminator)

    def _grouped(self, every, returned: list[ir.Value], target: Target, chains: str, cuts) -> Grouping:
        """The groups that become stages."""
        block = every[0].block

        def grouped() -> Grouping:
            grouping = Grouping(every, returned, target, chains, cuts)
            grouping.run()
            cut_chains(grouping)
            return grouping

        grouping = grouped()
        for rewrite in (make_where_read, merge_through_reshapes) if target.is_gpu else ():
            if rewrite(grouping):
                every[:] = [op.operation for op in block.operations if op.operation.results]
                returned[:] = list(block.operations)[-1].operation.operands
                grouping = grouped()
        if target.is_gpu and mark_ranges(grouping):
            grouping = grouped()
        if target.is_gpu:
            remake_results(grouping)
            every[:] = [op.operation for op in block.operations if op.operation.results]
        return grouping

    def _cut(self, function: ir.Operation, grouping: Grouping, item: str) -> tuple[frozenset[int], int]:
        """What an item of option `cut` says: of which ops, those of all groups that are alike, a group holds how many."""
        name, _, most = item.partition(":")
        if not most.isdigit() or int(most) < 1:
            raise KitsuneError(f"option 'cut' of {self.name} has a stage's name and a number of ops from 1 on, not '{item}'")
        groups = [grouping.members[g] for g in grouping.sorted_groups()]
        if name == "products":
            held = [[op for op in group if is_contraction(op)] for group in groups]
            return frozenset(hash(op) for products in held if len(products) > int(most) for op in products), int(most)
        named = [group for n, group in enumerate(groups) if f"{stage_name(group)}_{n}" == name]
        if not named:
            raise PassFailure(function, f"has no stage '{name}', which option 'cut' names")
        ops: set[int] = set()
        for group in groups:
            if _kinds(group) == _kinds(named[0]):
                products = [op for op in group if is_contraction(op)]
                ops.update(map(hash, products if len(products) > 1 else group))
        return frozenset(ops), int(most)

    def _check_static(self, function: ir.Operation) -> None:
        for op in function.regions[0].blocks[0].operations:
            for value in op.operation.results:
                if isinstance(value.type, ir.RankedTensorType) and not value.type.has_static_shape:
                    raise PassFailure(op, f"has a result of dynamic shape {value.type}; only static shapes are supported")

    def _build(self, function, grouping: Grouping, returned: list[ir.Value], terminator: ir.Operation) -> None:
        name = ir.StringAttr(function.attributes["sym_name"]).value
        mapping: dict[ir.Value, ir.Value] = {}
        out_type = returned[0].type if len(returned) == 1 else ir.TupleType.get_tuple([v.type for v in returned])
        with ir.InsertionPoint(terminator):
            pipeline = PipelineOp(ir.StringAttr.get(f"{name}_p0"), out_type, loc=function.location)
            body = pipeline.operation.regions[0].blocks.append()
            with ir.InsertionPoint(body):
                for n, g in enumerate(grouping.sorted_groups()):
                    self._build_stage(grouping, grouping.members[g], n, mapping)
                YieldOp(value=pack([self._outside(v, mapping) for v in returned]))
            results = unpack(pipeline.operation.results[0])
            func.ReturnOp(results)
        terminator.erase()
        # Everything the pipeline holds copies of is dead now; remove it, last first.
        for op in reversed([o.operation for o in function.regions[0].blocks[0].operations]):
            if op.name not in ("kitsune.pipeline", "func.return") and op.results and not any(list(r.uses) for r in op.results):
                op.erase()

    def _build_stage(self, grouping: Grouping, group: list[ir.Operation], n: int, mapping) -> None:
        ops, outputs = grouping.with_free(group), grouping.outputs(group)
        inside = {hash(op) for op in ops}
        # Views that feed this stage stand before it, at the level of the pipeline.
        for op in ops:
            for value in reads(op):
                maker = defining_op(value)
                if maker is not None and hash(maker) not in inside:
                    self._outside(value, mapping)
        out_type = outputs[0].type if len(outputs) == 1 else ir.TupleType.get_tuple([v.type for v in outputs])
        stage = StageOp(ir.StringAttr.get(f"{stage_name(group)}_{n}"), out_type, loc=group[-1].location)
        local = dict(mapping)
        with ir.InsertionPoint(stage.operation.regions[0].blocks.append()):
            for op in ops:
                copy = clone_with(op, local)
                if MICRO_BATCH in copy.attributes:  # stages are in order now; those of all micro-batches are alike
                    del copy.attributes[MICRO_BATCH]
            YieldOp(value=pack([local[v] for v in outputs]))
        mapping.update(zip(outputs, unpack(stage.operation.results[0]), strict=True))

    def _outside(self, value: ir.Value, mapping: dict[ir.Value, ir.Value]) -> ir.Value:
        """The value at the level of the pipeline; views are made there on first use."""
        views: list[ir.Operation] = []
        while value not in mapping and (maker := defining_op(value)) is not None and is_reshape(maker):
            views.append(maker)
            value = maker.operands[0]
        found = mapping.get(value, value)
        for maker in reversed(views):
            copy = maker.clone()
            copy.operation.operands[0] = found
            found = mapping[maker.results[0]] = copy.operation.results[0]
        return found
