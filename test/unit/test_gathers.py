"""Gathers of what other stages make: which wait for named rows, what the tile program says then, what is proved of it."""

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects.edges import edge_of, stage_space, stages_of
from kitsune_mlir.dialects.named_rows import Named
from kitsune_mlir.dialects.stage_graph import inputs_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import Target
from kitsune_mlir.passes.base import PassFailure
from kitsune_mlir.passes.check_progress import CheckProgress
from kitsune_mlir.passes.modes import choice, gathers
from kitsune_mlir.passmanager.manager import run_pipeline
from kitsune_mlir.simulation.simulate import simulate
from test.gpu.cases_gathers import GATHER_CASES, gather_rows
from test.gpu.run_programs import make_input
from test.gpu.tile_text import Case
from test.programs.planned import parse, product
from test.unit.test_gpu_executor import Emulated
from test.unit.test_progress import faults, parts

PLAN = "kitsune-normalize,kitsune-form-stages,kitsune-partition-streams{{gathers={0} mode=temporal}},kitsune-place-buffers"


def gather(index: str, shape: str, body: str, columns: int = 64, rows: int = 1000, read: int = 70) -> str:
    """relu(x), of which rows named by `index` (an operand of `shape`) are read."""
    return f"""func.func @main(%x: tensor<{rows}x{columns}xf32>, %w: tensor<{columns}x{columns}xf32>, %i: {shape})
    -> tensor<{read}x{columns}xf32> {{
  {product("h", "x", "w", rows, columns, columns)}
  {index}
  %e = tensor.empty() : tensor<{read}x{columns}xf32>
  %g = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}} ins(%at : tensor<{read}xi64>) outs(%e : tensor<{read}x{columns}xf32>) {{
  ^bb0(%a: i64, %b: f32):
    %c = linalg.index 1 : index
    {body}
    %v = tensor.extract %h[%r, %c] : tensor<{rows}x{columns}xf32>
    linalg.yield %v : f32
  }} -> tensor<{read}x{columns}xf32>
  return %g : tensor<{read}x{columns}xf32>
}}"""


PLAIN = "%r = arith.index_cast %a : i64 to index"
FROM_END = """%zero = arith.constant 0 : i64
    %n = arith.constant 1000 : i64
    %p = arith.cmpi slt, %a, %zero : i64
    %q = arith.addi %a, %n : i64
    %s = arith.select %p, %q, %a : i64
    %r = arith.index_cast %s : i64 to index"""
SECOND = """%at = tensor.extract_slice %i[1, 0] [1, 70] [1, 1] : tensor<2x70xi64> to tensor<70xi64>"""
ODD = """%n = arith.constant 2 : i64
    %p = arith.divui %a, %n : i64
    %r = arith.index_cast %p : i64 to index"""
SHIFTED = """%n = arith.constant 1 : i64
    %p = arith.addi %a, %n : i64
    %r = arith.index_cast %p : i64 to index"""


def planned(text: str, gathers: str) -> ir.Module:
    """The stage graph on a GPU, in one launch."""
    module = parse(text)
    passes = f"{PLAN.format(gathers)},kitsune-synchronize"
    run_pipeline(module, f"builtin.module({passes})", target="h200", reproducer_dir=False)
    return module


def gathering(module: ir.Module) -> tuple[ir.Operation, dict[str, tuple[Named, ...]]]:
    """The last stage, and the indices of each of its edges by their policies."""
    pipeline = next(op for op in walk(module.operation) if op.name == "kitsune.pipeline")
    stage = stages_of(pipeline)[-1]
    with module.context:
        edges = [edge_of(stage, stage_space(stage), value) for value in inputs_of(stage)]
    return stage, {edge.policy: edge.named for edge in edges if edge is not None}


@pytest.mark.parametrize(
    "index, shape, body, start, step",
    [
        ("", "tensor<70xi64>", PLAIN, 0, 1),
        ("", "tensor<70xi64>", FROM_END, 0, 1),
        (SECOND, "tensor<2x70xi64>", FROM_END, 70, 1),
    ],
    ids=["plain", "from_the_end", "second_row"],
)
def test_rows_that_indices_name(index: str, shape: str, body: str, start: int, step: int) -> None:
    text = gather(index, shape, body)
    text = text if index else text.replace("%at", "%i")
    module = planned(text, "rows")
    stage, edges = gathering(module)
    (named,) = edges["indexed"]
    assert (named.start, named.step, stage_space(stage).dims[named.dim or 0].size) == (start, step, 70)
    run_pipeline(module, "builtin.module(kitsune-materialize,kitsune-check-progress)", target="h200", reproducer_dir=False)
    (wait,) = parts(module, "kitsune.wait_rows")
    assert not parts(module, "kitsune.wait")
    numbers = {name: ir.IntegerAttr(wait.attributes[name]).value for name in ("count", "extent")}
    assert numbers["extent"] == 1000 and numbers["count"] >= 1


def layers(count: int) -> str:
    """Products, of each of whose rows the next one reads those that an argument names."""
    lines = []
    for n in range(count):
        lines.append(product(f"h{n}", f"g{n}", "w", 1000, 64, 64))
        lines.append(f"""%e{n} = tensor.empty() : tensor<1000x64xf32>
  %g{n + 1} = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}} ins(%i : tensor<1000xi64>) outs(%e{n} : tensor<1000x64xf32>) {{
  ^bb0(%a: i64, %b: f32):
    %c = linalg.index 1 : index
    {PLAIN}
    %v = tensor.extract %h{n}[%r, %c] : tensor<1000x64xf32>
    linalg.yield %v : f32
  }} -> tensor<1000x64xf32>""")
    body = "\n  ".join(lines)
    return f"""func.func @main(%g0: tensor<1000x64xf32>, %w: tensor<64x64xf32>, %i: tensor<1000xi64>) -> tensor<1000x64xf32> {{
  {body}
  return %g{count} : tensor<1000x64xf32>
}}"""


@pytest.mark.parametrize("wanted", ["rows", "all", "auto"])
def test_a_stage_is_counted_again_only_where_its_own_gather_is_tried(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of the others gives the model that all of them counted anew give."""
    models, counted = [], []
    fresh, work = gathers.model_of, choice.work_of_stage

    def both(pipeline: ir.Operation, target: Target, parts: dict[str, choice.Part]) -> choice.Model:
        models.append(known := fresh(pipeline, target, parts=parts))
        number = len(counted)
        assert known == fresh(pipeline, target)
        del counted[number:]
        return known

    monkeypatch.setattr(gathers, "model_of", both)
    monkeypatch.setattr(choice, "work_of_stage", lambda stage: counted.append(choice.name_of(stage)) or work(stage))
    module = parse(layers(4))
    passes = f"builtin.module({PLAN.format(wanted).replace(' mode=temporal', '')})"
    run_pipeline(module, passes, target="h200", reproducer_dir=False)
    stages = len(stages_of(next(op for op in walk(module.operation) if op.name == "kitsune.pipeline")))
    tried = len(models) - 1
    assert tried >= 3
    assert len(counted) <= 2 * stages + 2 * tried  # all for the first model, all for the choice of a mode


@pytest.mark.parametrize("body", [ODD, SHIFTED], ids=["half", "next"])
def test_other_functions_of_an_index_wait_for_all(body: str) -> None:
    module = planned(gather("", "tensor<70xi64>", body).replace("%at", "%i"), "rows")
    assert list(gathering(module)[1]) == ["all"]


def test_a_gather_beside_another_read_waits_for_all() -> None:
    both = gather("", "tensor<70xi64>", PLAIN, rows=70).replace("%at", "%i")
    both = both.replace("return %g", "%z = arith.addf %g, %h : tensor<70x64xf32>\n  return %z")
    assert list(gathering(planned(both, "rows"))[1]) == ["all"]


def test_the_choice_is_by_cost_and_says_why() -> None:
    few = gather("", "tensor<70xi64>", PLAIN).replace("%at", "%i")
    found: list[str] = []
    module = parse(few)
    run_pipeline(
        module, f"builtin.module({PLAN.format('auto')})", target="h200", on_diagnostic=lambda d: found.append(d.message)
    )
    (said,) = [message for message in found if "gathers from" in message]
    assert ("waits for all of it: its indices name" in said) != ("indexed" in str(module)) and " us" in said


@pytest.mark.parametrize("rows, chosen", [(135 * 128, True), (68 * 128, False)])
def test_rows_are_waited_for_where_few_tiles_are_late(rows: int, chosen: bool) -> None:
    """Of 135 tiles three come in a second wave, in which other blocks can gather eight rows; of 68 none does."""
    text = gather("", "tensor<8xi64>", PLAIN, columns=128, rows=rows, read=8).replace("%at", "%i")
    assert ("indexed" in str(planned(text, "auto"))) == chosen


# What is proved of them.

SMALL = {
    "rows": gather_rows((20, 3), (11, 4), 5),
    "pairs": gather_rows((20, 3), (11, 4), 5, "i32", pairs=True),
    "generic": gather_rows((9, 3), (7, 7), 2, engine="generic"),
}


def complaint(module: ir.Module) -> str | None:
    try:
        CheckProgress().run(module.operation)
    except PassFailure as failure:
        return failure.message
    return None


def edited(case: Case, old: str, new: str) -> str | None:
    assert old in case.text
    return complaint(parse(case.text.replace(old, new, 1)))


@pytest.mark.parametrize("make", GATHER_CASES, ids=lambda make: make().name)
def test_no_false_alarm(make) -> None:
    assert complaint(parse(make().text)) is None


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    "old, new, why",
    [
        ("count = 1 : i64, rows", "count = 2 : i64, rows", "never ends"),
        ("rows = 3 : i64", "rows = 2 : i64", "there are"),
        ("rows = 3 : i64", "rows = 4 : i64", "without waiting for"),
        ("%end = arith.addi %begin, %many", "%end = arith.addi %begin, %zero_w", "without waiting for"),
        ("%begin = arith.muli %off, %width", "%begin = arith.addi %off, %many", ""),
        ("(%s, %begin, %end, %x1)", "(%s, %end, %end, %x1)", "without waiting for"),
    ],
)
def test_faults_of_a_wait_for_rows(name: str, old: str, new: str, why: str | None) -> None:
    case = SMALL[name]
    if "%zero_w" in new:
        new = "%zero_w = arith.constant 0 : index\n    " + new
    found = edited(case, old, new)
    assert (found is None) == (why is None), found
    assert found is None or (why or "") in found


@pytest.mark.parametrize("name", SMALL)
def test_every_fault_of_posts_and_memory_is_found(name: str) -> None:
    """Faults of the other operations in a program whose gather waits for rows. Of posts that are made twice none is harmful."""
    text = SMALL[name].text
    names = [fault for fault, _ in faults(parse(text)) if not fault.startswith("view")]
    assert len(names) >= 5
    for fault in names:
        module = parse(text)
        edit = next(edit for other, edit in faults(module) if other == fault)
        with module.context, ir.Location.unknown():
            edit()
        if fault.startswith("post") and fault.endswith("twice"):
            continue
        assert complaint(module) is not None, fault


def test_indices_that_a_task_makes_are_refused() -> None:
    text = SMALL["rows"].text
    made = text.replace("kitsune.arguments = 3 : i64, kitsune.results = 1", "kitsune.arguments = 1 : i64, kitsune.results = 3")
    assert "an input" in (complaint(parse(made)) or "")


# What becomes of them.


def signed(case: Case) -> Case:
    """The case with indices that count from either end."""
    inputs = tuple((shape, type_, fill) for shape, type_, fill in case.inputs)
    return Case(case.name, case.text, inputs, case.results, case.reference, case.tolerance)


@pytest.mark.rotated(3)
@pytest.mark.parametrize("blocks", [1, 3, 8])
@pytest.mark.parametrize("name", SMALL)
def test_kernels_on_any_number_of_blocks(name: str, blocks: int) -> None:
    emulated = Emulated(signed(SMALL[name]), blocks)
    assert (emulated.inputs[1] < 0).any()
    for _ in range(3):
        assert emulated.error() <= emulated.case.tolerance


def test_a_kernel_whose_rows_are_never_posted_hangs(monkeypatch) -> None:
    from test.emulators import kernel as kernel_emulator

    monkeypatch.setattr(kernel_emulator, "SECONDS", 0.2)
    case = SMALL["rows"]
    text = "\n".join(line for line in case.text.splitlines() if "kitsune.post" not in line)
    with pytest.raises(TimeoutError):
        Emulated(Case(case.name, text, case.inputs, case.results, case.reference), 2).error()


def test_the_host_runs_them() -> None:
    import torch

    from kitsune_mlir.codegen.host.compile import compile_host
    from kitsune_mlir.runtime.host_runner import HostRunner

    case = signed(gather_rows((1000, 7), (129, 32), 33))
    module = parse(case.text)
    with module.context, ir.Location.unknown():
        runner = HostRunner(compile_host(module, case.name), 3)
    inputs = [make_input(torch, torch.Generator().manual_seed(3), *spec) for spec in case.inputs]
    (shape, _), *_ = case.results
    result = torch.full(shape, float("nan"))
    runner.run([t.data_ptr() for t in (*inputs, result)], 0)
    (wanted,) = case.reference(torch, *inputs)
    assert (result - wanted).norm() <= 1e-5 * wanted.norm()


def test_a_simulated_gather_does_not_wait_for_all() -> None:
    first = {}
    for waits in ("rows", "all"):
        blocks = simulate(parse(gather_rows((64 * 132 * 16, 64), (33, 1), 256).text), machine="H200").blocks
        case = gather_rows(
            ((blocks + 3) * 64, 64), (33, 1), 256, waits=waits
        )  # all blocks but three have one tile of the first
        run = simulate(parse(case.text), machine="H200")
        first[waits] = run.spans.ready[run.spans.task == 1].min()
    assert first["rows"] < first["all"]
