"""Separate programs: cut into kernels that share the arena, each waiting for the one before; launched in order."""

import dataclasses

import numpy as np
import pytest
import torch
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.kernel.launches import cut_launches, launches_of
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.attribute_table import PDL_PRIMARY, PDL_SECONDARY
from kitsune_mlir.errors import ArgumentError, KitsuneError
from kitsune_mlir.frontend.valid_rows import valid_rows
from kitsune_mlir.runtime import launch
from kitsune_mlir.runtime.cuda_runner import CudaRunner
from kitsune_mlir.runtime.cuda_sequence import CudaSequence
from test.programs.live import compiled
from test.unit.test_cuda_executor import MANIFEST, Result, fake  # noqa: F401  (a fixture)

TASK = """
  "kitsune.task"() ({{
  ^bb0(%i: index):
    %o = arith.muli %i, %c50 : index
    {wait}
    %xv = memref.subview %{source}[%o, 0] [50, 8] [1, 1] : memref<100x8xf32> to memref<50x8xf32, strided<[8, 1], offset: ?>>
    %xt = bufferization.to_tensor %xv restrict : memref<50x8xf32, strided<[8, 1], offset: ?>> to tensor<50x8xf32>
    %hv = memref.subview %{target}[%o, 0] [50, 8] [1, 1] : memref<100x8xf32> to memref<50x8xf32, strided<[8, 1], offset: ?>>
    bufferization.materialize_in_destination %xt in restrict writable %hv
        : (tensor<50x8xf32>, memref<50x8xf32, strided<[8, 1], offset: ?>>) -> ()
    {post}
    "kitsune.yield"() : () -> ()
  }}) {{sym_name = "{name}", grid = array<i64: 2>, engine = "simt", launch = {launch} : i64}} : () -> ()
"""
WAIT = (
    "%i1 = arith.addi %i, %c1 : index\n    "
    '"kitsune.wait"(%{s}, %i, %i1) {{count = 1 : i64}} : (!kitsune.semaphore, index, index) -> ()'
)
POST = '"kitsune.post"(%{s}, %i) : (!kitsune.semaphore, index) -> ()'


def program(launches: tuple[int, int, int], mode: str = "separate") -> ir.Module:
    """Three tasks, each copying what the one before copied, of the launches that are given."""
    places = ("x", "a", "b", "y")
    tasks = "".join(
        TASK.format(
            name=f"t{n}",
            launch=launches[n],
            source=places[n],
            target=places[n + 1],
            wait=WAIT.format(s=f"s{n - 1}") if n else "",
            post=POST.format(s=f"s{n}") if n < 2 else "",
        )
        for n in range(3)
    )
    return ir.Module.parse(
        f"""func.func @p0(%x: memref<100x8xf32>, %y: memref<100x8xf32>, %arena: memref<6656xi8>) attributes {{kitsune.program,
            kitsune.mode = "{mode}", kitsune.arguments = 1 : i64, kitsune.results = 1 : i64}} {{
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c50 = arith.constant 50 : index
          %c3328 = arith.constant 3328 : index
          %a = memref.view %arena[%c0][] : memref<6656xi8> to memref<100x8xf32>
          %b = memref.view %arena[%c3328][] : memref<6656xi8> to memref<100x8xf32>
          %s0 = "kitsune.make_semaphore"() {{slots = 2 : i64}} : () -> !kitsune.semaphore
          %s1 = "kitsune.make_semaphore"() {{slots = 2 : i64}} : () -> !kitsune.semaphore
          {tasks}
          return }}""",
        new_context(),
    )


def parts(launches: tuple[int, int, int], mode: str = "separate") -> list[ir.Operation]:
    module = program(launches, mode)
    found = cut_launches(module.body.operations[0].operation)
    assert module.operation.verify() and len(module.body.operations) == len(found)
    return [part.clone().operation for part in found]


def counts(part: ir.Operation) -> list[int]:
    text = str(part)
    return [text.count(f'"kitsune.{name}"') for name in ("task", "wait", "post", "make_semaphore")]


def test_what_crosses_a_launch_needs_no_semaphore():
    first, second, third = parts((0, 1, 2))
    assert [counts(p) for p in (first, second, third)] == [[1, 0, 0, 0]] * 3
    assert [ir.StringAttr(p.attributes["sym_name"]).value for p in (first, second, third)] == ["p0_0", "p0_1", "p0_2"]
    assert [PDL_SECONDARY in p.attributes for p in (first, second, third)] == [False, True, True]
    assert [PDL_PRIMARY in p.attributes for p in (first, second, third)] == [True, True, False]


def test_tasks_of_one_launch_go_on_waiting_for_each_other():
    first, second = parts((0, 0, 4))
    assert counts(first) == [2, 1, 1, 1] and counts(second) == [1, 0, 0, 0]


@pytest.mark.parametrize("launches, mode", [((0, 0, 0), "separate"), ((0, 1, 2), "temporal")])
def test_one_launch_stays_as_it_is(launches, mode):
    module = program(launches, mode)
    function = module.body.operations[0].operation
    assert launches_of(function) == [] and cut_launches(function) == [function]


def test_a_model_in_separate_launches():
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 640)).to(torch.bfloat16)
    args = (torch.randn(300, 64).bfloat16(),)
    program = kitsune_mlir.compile(model, args, target="sm_90a", options={"schedule": "separate"})
    assert program.summary["launches"] == len(program.summary["kernels"]) == 2
    assert {"kernel_0.cubin", "kernel_1.json"} <= set(program.artifacts)
    one, two = (program.artifacts[f"kernel_{n}.ptx"].decode() for n in range(2))
    assert "griddepcontrol.launch_dependents" in one and "griddepcontrol.wait" not in one
    assert two.count("griddepcontrol.wait") == 1 and "griddepcontrol.launch_dependents" not in two
    # Only who loads the rows waits: weights come meanwhile.
    assert two.index("mbarrier.init") < two.index("setmaxnreg.dec") < two.index("griddepcontrol.wait")
    together = kitsune_mlir.compile(model, args, target="sm_90a", options={"schedule": "temporal"})
    assert together.summary["launches"] == 1 and "griddepcontrol" not in together.ir("ptx")


def test_chains_wait_where_rows_are_loaded():
    parts = [nn for a, b in ((64, 1024), (1024, 512), (512, 256), (256, 64)) for nn in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    model = torch.nn.Sequential(*parts).to(torch.bfloat16)
    args = (torch.randn(2048, 64).bfloat16(),)
    program = kitsune_mlir.compile(model, args, target="sm_90a", options={"schedule": "separate"})
    assert [engine["engine"] for engine in program.summary["engines"]] == ["mma", "mma", "chain"]
    for number in (1, 2):
        text = program.artifacts[f"kernel_{number}.ptx"].decode()
        assert text.count("griddepcontrol.wait") == 1
        assert text.index("mbarrier.init") < text.index("setmaxnreg.dec") < text.index("griddepcontrol.wait")


def test_other_engines_wait_before_everything():
    model = torch.nn.Sequential(torch.nn.Linear(64, 1024, bias=False), torch.nn.LayerNorm(1024)).to(torch.bfloat16)
    program = kitsune_mlir.compile(model, (torch.randn(300, 64).bfloat16(),), target="sm_90a", options={"schedule": "separate"})
    assert [engine["engine"] for engine in program.summary["engines"]] == ["mma", "simt"]
    two = program.artifacts["kernel_1.ptx"].decode()
    assert two.count("griddepcontrol.wait") == 1 and two.index("griddepcontrol.wait") < two.index("ld.global")


def counted(x: torch.Tensor, w: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (valid_rows(torch.nn.functional.layer_norm(x @ w, (1024,)), count, 300),)


@pytest.mark.parametrize("mode, kernels", [("temporal", 1), ("separate", 2)])
def test_a_program_for_several_sizes_waits_for_copies_before_everything(mode, kernels):
    args = (torch.randn(300, 64).bfloat16(), torch.randn(64, 1024).bfloat16(), torch.tensor(3))
    program = compiled(counted, *args, schedule=mode)
    assert program.summary["launches"] == kernels
    first = program.ir("gpu").partition("llvm.func")[2]
    begin = first.index("nvvm.griddepcontrol wait")
    assert begin < min(
        first.index(op) for op in ("llvm.load", "launch_dependents", "nvvm.barrier", "nvvm.elect") if op in first
    )
    assert program.ir("gpu").count("nvvm.griddepcontrol wait") == kernels


FIRST = dataclasses.replace(MANIFEST, kernel="first")
SECOND = dataclasses.replace(MANIFEST, kernel="second", tiles=40, follows=True)
SIMPLE = dataclasses.replace(MANIFEST, kernel="simple")


def test_kernels_share_an_arena_and_are_launched_in_order(fake):  # noqa: F811
    ids: list[list[int]] = []

    def record(address, function, table, extra):
        config = launch.ConfigLayout.from_address(address)
        ids.append([config.attributes[n].id for n in range(config.attribute_count)])
        config.attribute_count, config.attributes[0].id = 1, 2  # as the recording driver wants it
        return fake.launch(address, function, table, extra)

    sequence = CudaSequence([(FIRST, b""), (SECOND, b"")])
    for executor in sequence.executors:
        executor._launch = record
    sequence.run([0x1000, 0x2000, 0x3000], 5)
    (grid, *_, first, _), (grid_two, *_, second, _) = fake.launches
    assert (grid[0], grid_two[0]) == (264, 40)
    assert first[3] == second[3] and first[4] != second[4]  # one arena, two workspaces
    assert ids == [[2], [2, 6]]
    assert fake.allocated.count(MANIFEST.arena_bytes) == 1
    sequence.close()


def test_kernels_of_a_program_are_asked_for_nothing_twice(fake):  # noqa: F811
    """One question whether the stream is captured, and each kernel has the pointers of its call, whatever was before."""
    asked = []
    sequence = CudaSequence([(SIMPLE, b""), (dataclasses.replace(SIMPLE, kernel="second"), b"")])
    for executor in sequence.executors:
        executor._is_capturing = lambda *given: asked.append(given) or fake.is_capturing(*given)
    for n in range(4):
        sequence.run([0x1000 + n // 2, 0x2000, 0x3000], 5)
    assert len(asked) == 3  # there is no state at first
    assert [launch[4][0] for launch in fake.launches] == [0x1000] * 4 + [0x1001] * 4
    sequence.executors[1].run([7, 0x2000, 0x3000], 5)  # by itself
    sequence.run([0x1001, 0x2000, 0x3000], 5)
    assert [launch[4][0] for launch in fake.launches[8:]] == [7, 0x1001, 0x1001]
    sequence.run([0x1001, 0x2000, 0x3000], 6)
    assert [launch[3] for launch in fake.launches[-2:]] == [6, 6]
    with pytest.raises(ArgumentError, match="takes 3 pointers"):
        sequence.run([1, 2], 5)
    sequence.close()


def test_kernels_that_wait_for_nothing_need_no_cooperative_launch(fake):  # noqa: F811
    config = launch.Config(4, 256, 0, 0, cooperative=False, follows=True)
    layout = launch.ConfigLayout.from_address(config.address)
    assert layout.attribute_count == 1 and (layout.attributes[0].id, layout.attributes[0].value[0]) == (6, 1)


def test_times_of_all_kernels_are_one_timeline(fake, monkeypatch):  # noqa: F811
    sequence = CudaSequence([(FIRST, b""), (SECOND, b"")])
    raw = [np.full((264, 2, 2), 5000, dtype=np.uint64), np.full((40, 2, 2), 9000, dtype=np.uint64)]
    raw[0][:, 1, 1] = 8000
    for executor, times in zip(sequence.executors, raw, strict=True):
        monkeypatch.setattr(executor, "times", lambda stream, times=times: times)
        monkeypatch.setattr(executor, "waits", lambda stream, times=times: np.full(times.shape[:2], 500))
    timeline = sequence.timeline(0)
    assert timeline.times.shape == (264, 4, 2) and timeline.total == 4.0
    assert timeline.times[263, 2].tolist() == [4.0, 4.0]
    assert timeline.waits is not None and timeline.waits[39].tolist() == [0.5] * 4 and timeline.waits[40, 2] == 0


def test_a_failed_launch_is_told(fake):  # noqa: F811
    fake.status = 719
    with pytest.raises(KitsuneError, match=f"launching kernel 'first' .* failed: {Result('CUDA_ERROR_LAUNCH_FAILED').name}"):
        CudaSequence([(FIRST, b""), (SECOND, b"")]).run([1, 2, 3])


def test_members_of_a_package():
    one = CudaRunner.artifacts([(FIRST, b"a", "p")])
    two = CudaRunner.artifacts([(FIRST, b"a", "p"), (SECOND, b"b", "q")])
    assert set(one) == {"kernel.cubin", "kernel.json", "kernel.ptx"}
    assert two["kernel_1.cubin"] == b"b" and b'"follows": true' in two["kernel_1.json"]
