"""The kitsune dialect from Python: loading, building, verifiers, captured values, tuples."""

import pytest
from torch_mlir import ir
from torch_mlir.passmanager import PassManager

from kitsune_mlir.dialects import buffer_attr, load, new_context, sync_attr
from kitsune_mlir.dialects.stage_graph import PipelineOp, StageOp, YieldOp, inputs_of, pack, results_of, unpack, yielded
from kitsune_mlir.dialects.tile_program import PostOp, SemaphoreOp, TaskOp, WaitOp
from kitsune_mlir.dialects.types import SemaphoreType
from kitsune_mlir.dialects.verify import captures, terminator_of, unpack_type, walk

STAGES = """
func.func @f(%x: tensor<4xf32>, %y: tensor<4xf32>, %n: index) -> tensor<4xf32> {
  %unused = arith.constant dense<0.0> : tensor<4xf32>
  %p = "kitsune.pipeline"() ({
    %s = "kitsune.stage"() ({
      %a = arith.addf %y, %x : tensor<4xf32>
      %g = tensor.generate {
      ^bb0(%i: index):
        %j = arith.addi %i, %n : index
        %e = tensor.extract %a[%j] : tensor<4xf32>
        %h = tensor.extract %x[%i] : tensor<4xf32>
        %k = arith.addf %e, %h : f32
        tensor.yield %k : f32
      } : tensor<4xf32>
      "kitsune.yield"(%g) : (tensor<4xf32>) -> ()
    }) {sym_name = "s"} : () -> tensor<4xf32>
    "kitsune.yield"(%s) : (tensor<4xf32>) -> ()
  }) {sym_name = "p"} : () -> tensor<4xf32>
  return %p : tensor<4xf32>
}
"""


@pytest.fixture
def context():
    with new_context() as context, ir.Location.unknown():
        yield context


def find(module: ir.Module, name: str) -> ir.Operation:
    return next(op for op in walk(module.operation) if op.name == name)


def test_loading_twice_is_harmless():
    context = load(load(ir.Context()))
    assert ir.Module.parse(STAGES, context).operation.verify()


def test_contexts_are_independent():
    one, two = new_context(), new_context()
    del one
    assert ir.Module.parse(STAGES, two).operation.verify()


def test_ops_are_seen_as_their_classes(context: ir.Context):
    module = ir.Module.parse(STAGES)
    stage = find(module, "kitsune.stage").opview
    assert isinstance(stage, StageOp) and stage.sym_name == ir.StringAttr.get("s")
    assert isinstance(find(module, "kitsune.pipeline").opview, PipelineOp)


def test_captured_values_in_order_of_first_use(context: ir.Context):
    module = ir.Module.parse(STAGES)
    x, y, n = module.body.operations[0].regions[0].blocks[0].arguments
    stage = find(module, "kitsune.stage")
    assert captures(stage) == [y, x, n]  # through nested regions, each value once
    assert inputs_of(stage) == [y, x]  # tensors only
    assert captures(find(module, "kitsune.pipeline")) == [y, x, n]
    assert captures(module.operation) == []


def test_walk_is_outer_before_inner(context: ir.Context):
    names = [op.name for op in walk(ir.Module.parse(STAGES).operation)]
    assert names[:4] == ["func.func", "arith.constant", "kitsune.pipeline", "kitsune.stage"]
    assert names[-2:] == ["kitsune.yield", "func.return"]


def test_a_dead_pipeline_is_removed_and_equal_ones_are_one(context: ir.Context):
    """Pipelines and stages are pure: upstream passes may drop and merge them."""
    source = STAGES.replace("return %p", "return %x")
    module = ir.Module.parse(source)
    PassManager.parse("builtin.module(canonicalize)").run(module.operation)
    assert "kitsune" not in str(module)


def test_a_task_is_not_removed(context: ir.Context):
    source = """func.func @f() {
      "kitsune.task"() ({
      ^bb0(%i: index):
        "kitsune.yield"() : () -> ()
      }) {sym_name = "t", grid = array<i64: 2>} : () -> ()
      return
    }"""
    module = ir.Module.parse(source)
    PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
    assert "kitsune.task" in str(module)


def test_building_a_stage_with_two_results(context: ir.Context):
    module = ir.Module.parse("func.func @f(%x: tensor<4xf32>, %y: tensor<8xi64>) { return }")
    block = module.body.operations[0].regions[0].blocks[0]
    values = list(block.arguments)
    types = [v.type for v in values]
    with ir.InsertionPoint.at_block_terminator(block):
        stage = StageOp(sym_name=ir.StringAttr.get("s"), out=ir.TupleType.get_tuple(types))
        with ir.InsertionPoint(stage.body.blocks.append()):
            YieldOp(value=pack(values))
        results = unpack(stage.out)
    stage.operation.attributes["buffers"] = ir.ArrayAttr.get([buffer_attr("global"), buffer_attr("queue", 3)])
    stage.operation.attributes["sync"] = ir.ArrayAttr.get([sync_attr("none"), sync_attr("all")])
    assert module.operation.verify()
    assert [r.type for r in results] == types and results_of(stage) == results
    assert yielded(stage) == values and unpack_type(stage.out.type) == types
    assert str(buffer_attr("queue", 3)) == '#kitsune.buffer<"queue", 3 : i64>'


def test_one_value_is_not_packed(context: ir.Context):
    module = ir.Module.parse(STAGES)
    stage = find(module, "kitsune.stage")
    assert pack([stage.results[0]]) == stage.results[0] and unpack(stage.results[0]) == [stage.results[0]]
    assert results_of(stage) == [stage.results[0]] and yielded(stage)[0].owner.name == "tensor.generate"


def test_building_a_tile_program(context: ir.Context):
    module = ir.Module.parse("func.func @f() { return }")
    block = module.body.operations[0].regions[0].blocks[0]
    i64 = ir.IntegerType.get_signless(64)
    with ir.InsertionPoint.at_block_terminator(block):
        semaphore = SemaphoreOp(ir.IntegerAttr.get(i64, 4), SemaphoreType.get())
        task = TaskOp(sym_name=ir.StringAttr.get("t"), grid=ir.DenseI64ArrayAttr.get([4]))
        body = task.body.blocks.append(ir.IndexType.get())
        with ir.InsertionPoint(body):
            index = body.arguments[0]
            WaitOp(semaphore.sem, index, index, count=ir.IntegerAttr.get(i64, 1))
            PostOp(semaphore.sem, index)
            YieldOp(value=None)
    assert module.operation.verify()
    assert terminator_of(body) is not None and [op.operation.name for op in body.operations] == [
        *("kitsune.wait", "kitsune.post", "kitsune.yield")
    ]


def test_verifiers_need_no_current_context():
    """They run on threads of their own, and while text is parsed."""
    source = """func.func @f() {
      "kitsune.task"() ({
      ^bb0(%i: i32):
        "kitsune.yield"() : () -> ()
      }) {sym_name = "t", grid = array<i64: 2>} : () -> ()
      return
    }"""
    with pytest.raises(ir.MLIRError, match="one index argument a grid dimension"):
        ir.Module.parse(source, new_context())


def test_an_invalid_change_is_found(context: ir.Context):
    module = ir.Module.parse(STAGES)
    stage = find(module, "kitsune.stage")
    stage.attributes["tile"] = ir.DenseI64ArrayAttr.get([0])
    with pytest.raises(ir.MLIRError) as caught:
        module.operation.verify()
    assert caught.value.error_diagnostics[0].message == "'kitsune.stage' op 'tile' must be at least 1, got array<i64: 0>"
