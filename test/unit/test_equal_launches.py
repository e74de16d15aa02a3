"""Launches that are equal but for their memory: one kernel, with what each of them reads and writes in its manifest."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu import compile as gpu_compile
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.codegen.gpu.kernel.launches import cut_launches
from kitsune_mlir.codegen.gpu.kernel.task_equality import launch_key
from kitsune_mlir.codegen.gpu.lower import Emitted
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.attribute_table import ATTENTION, OPERAND_SUM, PAIRS
from kitsune_mlir.dialects.tile_reader import ProgramView, program_functions
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.runtime.cuda_executor import CudaExecutor
from kitsune_mlir.runtime.cuda_runner import CudaRunner
from kitsune_mlir.runtime.manifest import Parameter
from kitsune_mlir.runtime.manifest_check import check_manifest
from kitsune_mlir.runtime.program import Program
from test.emulators.vector import run_kernel
from test.gpu.unassembled import unassembled
from test.rotation import in_turn
from test.unit.test_cuda_executor import MANIFEST, fake  # noqa: F401  (a fixture)


class Normed(nn.Module):
    """Layers of a product and a norm, with an attention in each where `heads` is not 0."""

    def __init__(self, depth: int, width: int, heads: int = 0):
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 3 * width if heads else width), nn.LayerNorm(width)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            linear, norm = layer.children()
            y = linear(x)
            if self.heads:
                q, k, v = y.view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
                y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = norm(x + y)
        return x


def compiled(model: nn.Module, *args: Tensor, **options) -> Program:
    with unassembled(), torch.no_grad():
        return kitsune_mlir.compile(model, args, target="sm_90a", options={"schedule": "separate", **options})


def kernels(program: Program) -> list[dict]:
    """What differs between launches, with the kernel's name and PTX."""
    from kitsune_mlir.runtime.cuda_runner import CudaRunner

    manifests = [manifest for manifest, _ in CudaRunner.read_kernels(program.artifacts)]
    texts = [program.artifacts[f"kernel_{n}.ptx"].decode() for n in range(len(manifests))]
    return [{**dataclasses.asdict(m), "ptx": text} for m, text in zip(manifests, texts, strict=True)]


CASES = {
    "products": (lambda: Normed(8, 1024), lambda: (torch.randn(512, 1024),)),
    "attention": (lambda: Normed(3, 512, 8), lambda: (torch.randn(2, 300, 512),)),
}


@pytest.mark.parametrize("case, debug", in_turn([*itertools.product(CASES, [False, True])], 1))
def test_what_is_shared_is_what_each_would_have_been(case, debug, monkeypatch):
    model, args = CASES[case][0]().bfloat16(), tuple(x.bfloat16() for x in CASES[case][1]())
    seen: list[str] = []
    shared = compiled(model, *args, debug=debug, on_remark=lambda r: seen.append(r.message))
    monkeypatch.setattr(gpu_compile, "launch_key", lambda program: (program.name,))
    alone = compiled(model, *args, debug=debug)
    assert shared.ir("ptx") == alone.ir("ptx")
    for level in ("gpu", "llvm"):
        own, others = (re.split(r"^// launch \d+$", program.ir(level), flags=re.MULTILINE)[1:] for program in (shared, alone))
        first: dict[str, str] = {}
        for mine, theirs in zip(own, others, strict=True):
            (name, *_) = re.findall(r"main_p0_\d+", theirs)
            other = re.fullmatch(rf"\s*(?://|;) {name} is (main_p0_\d+) on other memory\s*", mine)
            if other is None:
                assert mine == theirs
                first[name] = theirs
            else:
                assert level == "gpu" or re.sub(rf"{name}(?!\d)", other[1], theirs) == first[other[1]]
        assert len(first) < len(own)
    assert shared.summary["engines"] == alone.summary["engines"] and shared.summary.get("slow") == alone.summary.get("slow")
    ours, theirs = kernels(shared), kernels(alone)
    names = [one.pop("kernel") for one in ours]
    assert len(set(names)) < len(names) == len({one.pop("kernel") for one in theirs})
    assert ours == theirs
    tasks = [name for one in ours for name, *_ in one["tasks"]]
    assert len(set(tasks)) == len(tasks)  # each keeps its own


def test_kernels_of_equal_launches_are_assembled_once(monkeypatch):
    model = Normed(8, 1024).bfloat16()
    program = compiled(model, torch.randn(512, 1024).bfloat16())
    found = kernels(program)
    distinct = {re.sub(r"main_p0_\d+", "kernel", one["ptx"]) for one in found}
    # The first layer reads an input, the last one writes the result: those in between have one kernel a stage.
    assert len({one["kernel"] for one in found}) == len(distinct) <= len(found) // 2


ROWS = """
  "kitsune.task"() ({{
  ^bb0(%i: index):
    %o = arith.muli %i, %c5 : index
    %v = memref.subview %{source}[%o, 0] [5, 8] [1, 1] : memref<20x8xf32> to memref<5x8xf32, strided<[8, 1], offset: ?>>
    %t = bufferization.to_tensor %v restrict : memref<5x8xf32, strided<[8, 1], offset: ?>> to tensor<5x8xf32>
    %w = bufferization.to_tensor %{weight} restrict : memref<8xf32> to tensor<8xf32>
    %e = tensor.empty() : tensor<5x8xf32>
    %r = linalg.generic {{
        indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (b)>, affine_map<(a, b) -> (a, b)>],
        iterator_types = ["parallel", "parallel"]}} ins(%t, %w : tensor<5x8xf32>, tensor<8xf32>) outs(%e : tensor<5x8xf32>) {{
    ^bb0(%a: f32, %b: f32, %c: f32):
      %d = arith.{op} %a, %b : f32
      linalg.yield %d : f32
    }} -> tensor<5x8xf32>
    %h = memref.subview %{target}[%o, 0] [5, 8] [1, 1] : memref<20x8xf32> to memref<5x8xf32, strided<[8, 1], offset: ?>>
    bufferization.materialize_in_destination %r in restrict writable %h
        : (tensor<5x8xf32>, memref<5x8xf32, strided<[8, 1], offset: ?>>) -> ()
    "kitsune.yield"() : () -> ()
  }}) {{sym_name = "t{n}", grid = array<i64: 4>, engine = "simt", launch = {n} : i64}} : () -> ()
"""


def rows(ops: list[str], places: list[str]) -> ir.Module:
    """Launch n does `ops[n]` with a weight of its own, from `places[n]` to `places[n + 1]`."""
    tasks = "".join(ROWS.format(n=n, op=op, weight=f"w{n}", source=places[n], target=places[n + 1]) for n, op in enumerate(ops))
    weights = ", ".join(f"%w{n}: memref<8xf32>" for n in range(len(ops)))
    return ir.Module.parse(
        f"""func.func @p0(%x: memref<20x8xf32>, {weights}, %y: memref<20x8xf32>, %arena: memref<2048xi8>) attributes {{
            kitsune.program, kitsune.mode = "separate", kitsune.arguments = {len(ops) + 1} : i64, kitsune.results = 1 : i64}} {{
          %c0 = arith.constant 0 : index
          %c5 = arith.constant 5 : index
          %c768 = arith.constant 768 : index
          %c1288 = arith.constant 1288 : index
          %p = memref.view %arena[%c0][] : memref<2048xi8> to memref<20x8xf32>
          %q = memref.view %arena[%c768][] : memref<2048xi8> to memref<20x8xf32>
          %s = memref.view %arena[%c1288][] : memref<2048xi8> to memref<20x8xf32>
          {tasks}
          return }}"""
    )


def groups(module: ir.Module) -> list[int]:
    """For each launch the first one that is equal."""
    met: dict[object, int] = {}
    parts = cut_launches(program_functions(module.operation)[0])
    return [met.setdefault(launch_key(ProgramView(part)), number) for number, part in enumerate(parts)]


def test_which_launches_are_equal():
    with new_context(), ir.Location.unknown():
        assert groups(rows(["addf"] * 6, ["x", "p", "q", "p", "q", "p", "y"])) == [0, 1, 1, 1, 1, 5]
        assert groups(rows(["addf", "mulf", "addf", "mulf"], ["x", "p", "q", "p", "q"])) == [0, 1, 2, 3]
        # The last one follows nothing that it lets begin; the one in place reads what it writes; 1288 is not 256 bytes apart.
        assert groups(rows(["addf"] * 5, ["p", "q", "p", "p", "q", "p"])) == [0, 1, 2, 1, 4]
        assert groups(rows(["addf"] * 4, ["p", "q", "p", "s", "q"])) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", [ATTENTION, OPERAND_SUM, PAIRS])
def test_which_number_of_a_program_a_thing_has_does_not_count(name: str) -> None:
    with new_context(), ir.Location.unknown():
        module, kind = rows(["addf"] * 6, ["x", "p", "q", "p", "q", "p", "y"]), ir.IntegerType.get_signless(64)
        generics = [op for op in walk(module.operation) if op.name == "linalg.generic"]
        for number, op in enumerate(generics[:-2]):  # the last but one is of no such thing
            op.attributes[name] = ir.IntegerAttr.get(kind, number)
        assert groups(module) == [0, 1, 1, 1, 4, 5]


def test_one_kernel_computes_all_of_them():
    ops, places = ["addf", "mulf", "mulf", "mulf", "subf"], ["x", "p", "q", "p", "q", "y"]
    rng = np.random.default_rng()
    x, *weights = rng.normal(size=(20, 8)), *rng.normal(size=(5, 8))
    inputs = [one.astype(np.float32) for one in (x, *weights)]
    arena, result = np.zeros(2048, np.uint8), np.zeros((20, 8), np.float32)
    made: dict[object, tuple] = {}
    with new_context(), ir.Location.unknown():
        module = rows(ops, places)
        for part in cut_launches(program_functions(module.operation)[0]):
            program = ProgramView(part)
            key = launch_key(program)
            if key in made:
                kernel, first = made[key]
                manifest, decisions = first.equal_launch(program)
                assert [one.plan.task.name for one in decisions] == [program.tasks[0].name]
                assert [p for p in manifest.parameters if p.kind == "input"] != [
                    p for p in first.manifest.parameters if p.kind == "input"
                ]
            else:
                executor = build(program, program.name, KernelOptions())
                kernel, manifest = executor.module, executor.manifest
                made[key] = kernel, Emitted(kernel.operation, manifest, executor.decisions, executor.needs)
            check_manifest(manifest)
            run_kernel(kernel.operation, manifest, inputs, [result], 3, arena=arena)
    assert len(made) == 3
    expected = inputs[0].astype(np.float64) + inputs[1]
    expected = expected * inputs[2] * inputs[3] * inputs[4] - inputs[5]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


SOME = dataclasses.replace(
    MANIFEST,
    selected=True,
    parameters=(
        Parameter("arena", offset=512),
        Parameter("input", 1),
        Parameter("result", 0),
        Parameter("arena", offset=1024),
        Parameter("workspace"),
        *(p for p in MANIFEST.parameters if p.kind == "tensor_map"),
    ),
)


def test_a_kernel_gets_the_pointers_that_it_takes(fake):  # noqa: F811
    executor = CudaExecutor(SOME, b"")
    executor.run([0x1000, 0x2000, 0x3000], 5)
    executor.run([0x1000, 0x6000, 0x7000], 5)
    (*_, first, _), (*_, second, _) = fake.launches
    whole = CudaExecutor(MANIFEST, b"")
    whole.run([0x1000, 0x2000, 0x3000], 5)
    assert first[1:3] == [0x2000, 0x3000] and second[1:3] == [0x6000, 0x7000]
    assert first[3] - first[0] == 512 and first[0] == second[0] and first[4] == second[4]


@pytest.mark.parametrize(
    "parameters, words",
    [
        ((Parameter("input", 2), Parameter("workspace")), "unknown order"),
        ((Parameter("workspace"), Parameter("input", 0)), "unknown order"),
        ((Parameter("input", 0), Parameter("input", 0), Parameter("workspace")), "unknown order"),
        ((Parameter("arena", offset=2048), Parameter("workspace")), "pointer 0 shows byte 2048 of 2048"),
        ((Parameter("input", 0, offset=16), Parameter("workspace")), "pointer 0 shows byte 16 of 64"),
    ],
)
def test_pointers_that_no_program_has(parameters, words):
    with pytest.raises(ValueError, match=words):
        check_manifest(dataclasses.replace(SOME, parameters=parameters))


def test_launches_share_the_memory_of_partial_results():
    """They lie behind the arena, as many bytes as the launch with the most needs; not those of a recurrent layer (flags)."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(4096, 128), nn.LayerNorm(128), nn.Linear(128, 64)
            self.long, self.recurrent = nn.Linear(8192, 64), nn.GRU(64, 64, batch_first=True)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            sums = self.last(self.norm(self.first(x))) + self.long(y)
            return self.recurrent(sums.view(4, 64, 64))[0]

    program = compiled(Model().bfloat16().eval(), torch.randn(256, 4096).bfloat16(), torch.randn(256, 8192).bfloat16())
    found = [manifest for manifest, _ in CudaRunner.read_kernels(program.artifacts)]
    pieces = {one["task"]: one["pieces"] for one in program.summary["engines"] if one["engine"] != "recurrence"}
    places: dict[bool, set[int]] = {True: set(), False: set()}
    for manifest in found:
        pointers = [p.offset for p in manifest.parameters if p.kind == "arena"]
        places[any(pieces.get(task, 1) > 1 for task, _, _ in manifest.tasks)].update(pointers)
        assert bool(manifest.partial_bytes) == any(engine == "recurrence" for _, engine, _ in manifest.tasks)
    behind = max(places[True])
    assert sum(count > 1 for count in pieces.values()) > 1 and max(places[False]) < behind
    assert {manifest.arena_bytes for manifest in found} == {program.summary["arena_bytes"] - found[-1].partial_bytes}
    assert found[0].arena_bytes >= behind + 4 * 256 * 128, "a whole result's sums, of the first product"
