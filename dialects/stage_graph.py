"""The stage graph: `kitsune.pipeline`, `kitsune.stage`, `kitsune.yield`.

Algorithm and schedule stay apart: a stage's body is linalg on whole tensors and no scheduling pass rewrites it; passes only
set attributes, until `kitsune-materialize` turns both into the tile program.

A pipeline or stage with several results returns one `tuple`; `pack` and `unpack` write and read it (with
`builtin.unrealized_conversion_cast`, the upstream op that takes any number of types).
"""

# Fields of ops are annotated with the bindings' descriptors, which are not types.
# pyright: reportInvalidTypeForm=false

from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import builtin, ext

from .attribute_table import OVERWRITES
from .attributes import POLICIES, SPACES
from .kitsune import Kitsune
from .verify import captures, fail, has_attributes, single_block, terminator_of, unpack_type


def verify_yielding_body(op) -> bool:
    """One block without arguments, ended by a `kitsune.yield` of the op's result type."""
    block = single_block(op)
    if block is None:
        return fail(op, "needs one region with one block")
    if len(block.arguments):
        return fail(op, "its block takes no arguments: values from outside are used directly")
    last = terminator_of(block)
    if last is None or last.name != "kitsune.yield":
        return fail(op, "body must end in 'kitsune.yield'")
    if len(last.operands) != 1 or last.operands[0].type != op.operation.results[0].type:
        got = last.operands[0].type if len(last.operands) else "nothing"
        return fail(op, f"yields {got}, but its result is {op.operation.results[0].type}")
    return True


class PipelineOp(Kitsune.Operation, name="pipeline", traits=[ext.Pure]):
    """`kitsune.pipeline`: stages that run together. One pipeline is one launch, unless its mode is `separate`.

    The body holds `kitsune.stage` ops, and views (reshapes of contiguous tensors) between them; it may use tensors from
    outside. The result is a tensor, or a tuple of tensors. `mode` is `temporal` (every block runs tiles of every stage),
    `spatial` (a stage owns as many multiprocessors as its `workers` says), or `separate` (stages of one `launch` number are
    one kernel; kernels run in this order).
    """

    sym_name: ir.StringAttr
    out: ext.Result[Any]
    body: ext.Region

    def verify_invariants(self) -> bool:
        return has_attributes(self, "sym_name")

    def verify_region_invariants(self) -> bool:
        return verify_yielding_body(self) and self._verify_mode()

    def _verify_mode(self) -> bool:
        """In a spatial pipeline each stage has workers, in a separate one a launch, no smaller than that of the stage before.

        A stage that another one does (`into`) has neither.
        """
        wanted = {"spatial": "workers", "separate": "launch"}.get(mode_of(self), "")
        last = 0
        for op in self.operation.regions[0].blocks[0].operations:
            attrs = op.operation.attributes
            if op.operation.name != "kitsune.stage" or not wanted or "into" in attrs:
                continue
            name = attrs["sym_name"] if "sym_name" in attrs else "without a name"
            if wanted not in attrs:
                return fail(self, f"is {mode_of(self)}, but its stage {name} has no '{wanted}'")
            if wanted == "launch" and (number := ir.IntegerAttr(attrs["launch"]).value) < last:
                return fail(self, f"has stage {name} of launch {number} after one of launch {last}")
            last = ir.IntegerAttr(attrs[wanted]).value if wanted == "launch" else last
        return True


class StageOp(Kitsune.Operation, name="stage", traits=[ext.Pure]):
    """`kitsune.stage`: linalg on whole tensors that shares one iteration space.

    Its inputs are the tensors that its body uses from outside, in order of first use. Its attributes but `sym_name` are its
    schedule, each set by one pass and absent before it.
    """

    sym_name: ir.StringAttr
    out: ext.Result[Any]
    body: ext.Region

    def verify_invariants(self) -> bool:
        return has_attributes(self, "sym_name")

    def verify_region_invariants(self) -> bool:
        if not verify_yielding_body(self):
            return False
        attrs = self.operation.attributes
        results = unpack_type(self.operation.results[0].type)
        for name, kind, count, noun, allowed in (
            ("buffers", "buffer", len(results), "result", SPACES),
            ("sync", "sync", len(inputs_of(self)) if "sync" in attrs else 0, "input", POLICIES),
        ):
            if name not in attrs:
                continue
            items = list(ir.ArrayAttr(attrs[name]))
            if len(items) != count:
                return fail(self, f"'{name}' has {len(items)} entries, needs one for each {noun} ({count})")
            for item in items:
                before, word, *_ = [*str(item).split('"'), ""]
                if before != f"#kitsune.{kind}<" or word not in allowed:
                    return fail(self, f"'{name}' has {item}, must be #kitsune.{kind} of one of {', '.join(allowed)}")
        return True


def mode_of(pipeline) -> str:
    """The mode of a pipeline; `temporal` where nothing is said."""
    attrs = pipeline.operation.attributes
    return ir.StringAttr(attrs["mode"]).value if "mode" in attrs else "temporal"


class YieldOp(Kitsune.Operation, name="yield", traits=[ir.IsTerminatorTrait]):
    """`kitsune.yield`: ends a pipeline or a stage (with its result) or a task (with nothing)."""

    value: ext.Operand[Any] | None

    def verify_invariants(self) -> bool:
        parent = self.operation.parent
        if parent is None or parent.name not in ("kitsune.pipeline", "kitsune.stage", "kitsune.task"):
            return fail(self, "must be inside kitsune.pipeline, kitsune.stage or kitsune.task")
        return True


def inputs_of(stage) -> list[ir.Value]:
    """The tensors that a stage or pipeline uses from outside, in order of first use."""
    return [v for v in captures(stage) if isinstance(v.type, ir.RankedTensorType)]


def pack(values: list[ir.Value]) -> ir.Value:
    """One value that stands for `values` (a tuple where there are several), made at the current insertion point."""
    if len(values) == 1:
        return values[0]
    tuple_type = ir.TupleType.get_tuple([v.type for v in values])
    return builtin.UnrealizedConversionCastOp([tuple_type], values).results[0]


def unpack(value: ir.Value) -> list[ir.Value]:
    """The values that `pack` put into one; made at the current insertion point."""
    types = unpack_type(value.type)
    if not isinstance(value.type, ir.TupleType):
        return [value]
    return list(builtin.UnrealizedConversionCastOp(types, [value]).results)


def yielded(op) -> list[ir.Value]:
    """The tensors that a stage or pipeline yields, looking through the tuple."""
    last = terminator_of(op.operation.regions[0].blocks[0])
    assert last is not None
    value = last.operands[0]
    return list(value.owner.operands) if isinstance(value.type, ir.TupleType) else [value]


def overwritten(stage) -> list[int]:
    """For each result of a stage the argument of the function in whose memory it is written, or -1."""
    if OVERWRITES not in stage.attributes:
        return [-1] * len(results_of(stage))
    return list(ir.DenseI64ArrayAttr(stage.attributes[OVERWRITES]))


def results_of(op) -> list[ir.Value]:
    """The tensors that a stage or pipeline gives its users, looking through the tuple.

    A tuple result must have been unpacked by exactly one cast (as `unpack` does); none is an empty list.
    """
    value = op.operation.results[0]
    if not isinstance(value.type, ir.TupleType):
        return [value]
    users = [use.owner for use in value.uses]
    return list(users[0].operation.results) if users else []
