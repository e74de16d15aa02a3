"""The simt engine: its kernels run on an emulated block, its choices, and what it declines."""

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.backend.cubin import assemble_best
from kitsune_mlir.codegen.gpu.backend.ptx import to_ptx
from kitsune_mlir.codegen.gpu.backend.to_llvm import to_llvm_ir
from kitsune_mlir.codegen.gpu.emit.value import i32
from kitsune_mlir.codegen.gpu.engines.simt.affine_index import Atom, Linear, add, at, clamp, divmod_index, scale
from kitsune_mlir.codegen.gpu.engines.simt.choose_rows import Overrides
from kitsune_mlir.codegen.gpu.engines.simt.engine import SimtEngine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel import footprint
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.emulators.vector import run_kernel
from test.gpu.simt_cases import CASES, DTYPES, TOLERANCE, Case, error_of, rows, softmax
from test.gpu.simt_programs import compile_case
from test.oracles.upstream import values_of
from test.rotation import in_turn


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32)) if array.dtype == ml_dtypes.bfloat16 else torch.from_numpy(array)


EMULATED = (
    *("span", "span_types", "channels_last", "channels_last_all"),
    *("add_broadcast_odd", "add_bf16_odd", "one_element", "outer_broadcast", "mixed_types", "bool_out", "i64_math", "arange"),
    *(
        "cat",
        "cat_odd",
        "cat_panels",
        "cat_panels_f32",
        "cat_panels_uneven",
        "cat_thin",
        "cat_thin_odd",
        "roll_thin",
        "stack_thin",
        "pad_thin",
        "pad",
        "slice",
        "flip_stride",
        "permute",
        "transpose",
        "embedding_bf16",
        "gather",
        "pool_max",
    ),
    *(
        "pool_average_odd",
        "row_mean_odd",
        "row_any",
        "rows_joined",
        "row_long",
        "total_sum",
        "column_sum_odd",
        "column_softmax",
    ),
    *("middle_softmax", "middle_mean", "argmax_ties", "column_argmax", "batch_statistics", "group_norm", "softmax_f32_8"),
    *("column_softmax_long", "column_std_long"),
    *("total_norm_long", "total_extremes_long", "dot_long", "cosine"),
    *("total_sum_long", "column_sum_long", "column_max_long", "transpose_bf16", "transpose_odd", "swap_inner"),
    *("softmax_bf16_31", "softmax_f32_4096", "softmax_bf16_30000", "layer_norm_f32_129", "rms_norm_bf16_1000", "stitch_f32"),
)


@pytest.mark.parametrize("name", in_turn(list(EMULATED), 8))
def test_right_in_bounds_aligned_and_without_races(name):
    """Every case against torch in float64; the emulator checks every access and every barrier."""
    check(CASES[name])


@pytest.mark.rotated(5)
@pytest.mark.parametrize(
    "tuning",
    [
        Overrides(cluster=2),
        Overrides(cluster=4, staged=True, elements=4),
        Overrides(cluster=2, staged=True, elements=4, slots=2),
        Overrides(staged=True, elements=4),
    ],
    ids=["registers", "parts", "persistent", "one block"],
)
@pytest.mark.parametrize("name", ["softmax_bf16_4096", "softmax_f32_5000", "rows_to_unit_sum"])
def test_rows_shared_by_a_cluster_and_rows_in_parts(name, tuning):
    """Also with one reduction only, after which the blocks must meet once more; 5000 columns are no multiple of a share."""
    emitted = check(CASES[name], SimtEngine(tuning))
    assert emitted.manifest.cluster == (tuning.cluster or 1)


COLUMNS = ["column_softmax", "middle_softmax", "column_argmax", "column_sum_odd"]


@pytest.mark.parametrize("name, blocks", in_turn([*itertools.product(COLUMNS, [2, 4])], 3))
def test_columns_shared_by_a_cluster(name, blocks):
    """Whose elements stay in registers, not where they are gone over once."""
    assert check(CASES[name], SimtEngine(Overrides(cluster=blocks))).manifest.cluster == (1 if "sum" in name else blocks)


class Extremes(Case):
    """Rows with infinities, the smallest finite numbers, which masks are made of, and NaN."""

    def make(self, device, empty=False):
        x = super().make(device)[0]
        low = torch.finfo(x.dtype).min
        x[0] = low
        x[1, ::2] = low
        x[2, 5:] = -torch.inf
        x[3, 7] = torch.nan
        x[4, 9] = torch.inf
        x[5] = -torch.inf
        x[6, :] = 3e38
        return [x]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_softmax_of_extremes(dtype):
    check(Extremes(softmax, (rows(dtype, 9, 256),)))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_softmax_of_extremes_whose_rows_are_gone_over_in_pieces(dtype):
    """The largest number so far changes on the way, from minus infinity too."""
    emitted = check(Extremes(softmax, (rows(dtype, 9, 20000),)), SimtEngine(Overrides(staged=True, elements=4)))
    assert not any(decision.plan.parameters.get("resident") for decision in emitted.decisions)


def test_a_long_softmax_has_two_passes_over_its_row():
    """Its sum is made beside its maximum: exponentials in the first pass, and again in the last."""
    ((_, emitted),) = compile_case(Case(softmax, (rows("bf16", 4, 100000),)))
    text = to_ptx(to_llvm_ir(emitted.module))
    points = text.count("max.NaN.f32")
    assert text.count("ex2.approx.ftz") < 2.5 * points


def check(case, engine=None):
    ((model, emitted),) = compile_case(case, engine)
    inputs = case.make("cpu")
    arguments = [to_numpy(value) for value in values_of(model, inputs)]
    notes = sorted((r for r in model.results if r.kind == "tensor"), key=lambda r: r.index)
    results = [to_numpy(torch.zeros(r.shape, dtype=DTYPES[r.dtype])) for r in notes]
    with model.module.context:
        alone = emitted.manifest.cluster > 1 or any(decision.plan.private.alone for decision in emitted.decisions)
        blocks = emitted.manifest.tiles if alone and emitted.manifest.streaming else 2
        run_kernel(emitted.module.operation, emitted.manifest, arguments, results, max(blocks, emitted.manifest.cluster))
    wanted = case.run(*[t.double() if t.is_floating_point() else t for t in inputs])
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    for note, reference in zip(model.results, wanted, strict=True):
        assert error_of(to_torch(results[note.index]), reference) <= TOLERANCE.get(DTYPES[note.dtype], 0.0)
    return emitted


@pytest.mark.rotated(3)
@pytest.mark.parametrize(
    "name", ["add_f32", "softmax_bf16_1000", "layer_norm_bf16_4096", "column_sum", "argmax", "stitch_full"]
)
def test_cubins_without_spills(name):
    ((_, emitted),) = compile_case(CASES[name])
    (resources,) = assemble_best(to_ptx(to_llvm_ir(emitted.module))).kernels.values()
    assert not resources.spills


def _ptx(name: str) -> str:
    ((_, emitted),) = compile_case(CASES[name])
    return to_ptx(to_llvm_ir(emitted.module))


def test_one_pass_over_memory():
    """A warp has a row of Stitch: each lane reads four vectors of each of its two inputs once.

    Of the three weights it reads two coefficients of f32, which the block has made.
    """
    text = _ptx("stitch_full")
    assert text.count("ld.global.v4") == 2 * 4 and text.count("ld.shared.v4") == 2 * 2 * 4
    assert text.count("st.global.v4") == 4


def test_joined_tensors_are_made_in_panels():
    """A thread makes the same place of all 13 panels of 64 columns: it reads its three operands once, and makes 8 roots."""
    text = _ptx("cat_panels")
    assert text.count("ld.global.nc.v4") == 2 and text.count("st.global.v4") == 13 and text.count("sqrt.approx") == 8


def test_wide_accesses_where_rows_are_aligned_and_narrow_ones_where_not():
    assert ".v4" in _ptx("add_f32") and "ld.global.v" not in _ptx("row_mean_odd")


DECLINED = {
    "product": """%r = linalg.matmul ins(%t, %t : tensor<8x8xf32>, tensor<8x8xf32>)
                       outs(%e : tensor<8x8xf32>) -> tensor<8x8xf32>""",
    "scan": """%c8 = arith.constant 8 : index
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %r = scf.for %i = %c0 to %c8 step %c1 iter_args(%a = %t) -> tensor<8x8xf32> { scf.yield %a : tensor<8x8xf32> }""",
}


@pytest.mark.parametrize("name", DECLINED)
def test_declines_with_a_reason(name):
    text = f"""func.func @p(%x: memref<8x8xf32>, %y: memref<8x8xf32>, %arena: memref<1xi8>)
        attributes {{kitsune.program, kitsune.arguments = 1 : i64, kitsune.results = 1 : i64}} {{
      "kitsune.task"() ({{
      ^bb0(%n: index):
      %t = bufferization.to_tensor %x restrict : memref<8x8xf32> to tensor<8x8xf32>
      %e = tensor.empty() : tensor<8x8xf32>
      {DECLINED[name]}
      bufferization.materialize_in_destination %r in restrict writable %y : (tensor<8x8xf32>, memref<8x8xf32>) -> ()
      "kitsune.yield"() {{operandSegmentSizes = array<i32: 0>}} : () -> ()
      }}) {{sym_name = "t", grid = array<i64: 1>, engine = "simt"}} : () -> ()
      return
    }}"""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        (task,) = ProgramView(module.body.operations[0].operation).tasks
        decision = SimtEngine().plan(task, KernelOptions())
    assert isinstance(decision, Decline)
    assert "simt does maps, reductions and movement of tensors" in decision.reason


def test_plan_does_not_change_the_program():
    with new_context(), ir.Location.unknown():
        text = (Path(__file__).resolve().parent.parent / "lit" / "host" / "two-tasks.mlir").read_text()
        module = ir.Module.parse(text)
        before = str(module)
        function = next(op for op in module.body.operations if "kitsune.program" in op.operation.attributes)
        for task in ProgramView(function.operation).tasks:
            assert isinstance(SimtEngine().plan(task, KernelOptions()), Plan | Decline)
        assert str(module) == before


class TestIndex:
    """Arithmetic of indices, without a kernel: atoms are looked at, not run."""

    @pytest.fixture(autouse=True)
    def module(self):
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                yield

    def test_quotient_and_remainder_become_the_number_again(self):
        x = Linear(((Atom(i32(0), 4, 1000), 1),), 1, 0)
        for extent in (8, 12, 60):
            quotient, remainder = divmod_index(x, extent, 4)
            assert remainder.lane == 1 and not quotient.lane
            assert add(scale(quotient, 3 * extent), scale(remainder, 3)) == scale(x, 3)

    def test_vectors_that_cross_a_row_are_taken_apart(self):
        x = Linear(((Atom(i32(0), 4, 1000), 1),), 1, 0)
        quotient, remainder = divmod_index(x, 129, 4)
        assert isinstance(quotient, tuple) and len(quotient) == 4
        whole = add(scale(quotient, 129), remainder)
        assert [at(whole, e) for e in range(4)] == [at(x, e) for e in range(4)]

    def test_constants_and_bounds_need_no_division(self):
        x = Linear(((Atom(i32(0), 1, 7), 1),), 0, 24)
        assert divmod_index(x, 8, 1) == (Linear(const=3), Linear(x.terms, 0, 0))

    def test_clamping_keeps_what_is_known(self):
        x = Linear.of(Atom(i32(0), 8, 4096))
        assert clamp(x, 4095) is x
        assert clamp(x, 1000).multiple == 8 and clamp(x, 1001).multiple == 1
        assert clamp(x, 1000).range(1) == (0, 1000)


@pytest.mark.parametrize("name", ["column_sum_long", "softmax_bf16_31", "transpose_bf16", "softmax_f32_4096"])
def test_kernels_with_more_threads_than_a_task_uses(name, monkeypatch):
    """A kernel that also holds products has 384 threads: those that simt does not use meet only in block barriers."""
    monkeypatch.setattr(footprint, "_threads", lambda plans, limits: 128 + max(plan.threads for plan in plans))
    test_right_in_bounds_aligned_and_without_races(name)


def test_rows_that_meet_by_themselves_have_other_barriers_than_all_that_work(monkeypatch):
    """Threads of one row may be at the barrier of all that work while another row's still meet each other."""
    monkeypatch.setattr(footprint, "_threads", lambda plans, limits: 128 + max(plan.threads for plan in plans))

    def barriers(length: int) -> set[tuple[str, int]]:
        """(what the barrier's number is, a constant or the sum of it and a row's; the constant)"""
        found = set()

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name == "nvvm.barrier" and len(op.operands) == 2:
                number = op.operands[0].owner
                last = number if number.name == "arith.constant" else number.operands[1].owner
                found.add((number.name, ir.IntegerAttr(last.attributes["value"]).value))
            return ir.WalkResult.ADVANCE

        share = Case(lambda x: x / x.abs().sum(-1, keepdim=True), (rows("f32", 8, length),))
        for _, executor in compile_case(share):
            executor.module.operation.walk(visit)
        return found

    assert barriers(1024) == {("arith.addi", 2)} and barriers(20000) == {("arith.constant", 1)}


@pytest.mark.parametrize("case", [Case(lambda x: x + 1, (("f32", ()),)), Case(lambda x: x.sum() < 4, (rows("f32", 3, 5),))])
def test_one_number_has_no_panels(case: Case):
    """A tensor without dimensions has no last one that could be joined."""
    assert compile_case(case)
