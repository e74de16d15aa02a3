"""Kernels of several requests (`codegen/gpu/kernel/requests.py`), run on the processor block by block."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_mlir import ir

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.errors import ArgumentError, UnsupportedError
from kitsune_mlir.machine.stage_cost import Cost
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.request_kernels import Load, kernels_by_requests
from kitsune_mlir.runtime.cuda_runner import CudaRunner
from kitsune_mlir.runtime.manifest import Manifest
from test.gpu.unassembled import unassembled
from test.numerics.compare import problem
from test.programs.emulated import compiled, emulated_requests
from test.rotation import in_turn

R = torch.randn
CASES: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]]] = {
    "rows": (lambda x, w, b: torch.softmax(x * w + b, -1), lambda: (R(37, 40), R(40), R(40))),
    "columns": (lambda x, w: (torch.relu(x * 2).sum(0) * w)[None] + x, lambda: (R(37, 40), R(40))),
    "waits": (lambda x: torch.cumsum(torch.sort(x, -1)[0], -1).T.contiguous().cumsum(-1), lambda: (R(37, 40),)),
    "shared_sum": (lambda x: x.sum(), lambda: (R(30, 1000),)),
    "number": (lambda x, y: torch.relu(x @ y * 2 + 3), lambda: (R(1, 300).abs(), R(300, 1).abs())),
    "scan": (lambda x: torch.cumsum(x, -1) * 2, lambda: (R(3, 1000),)),
    "sort": (lambda x: torch.sort(x, -1)[0], lambda: (R(3, 100),)),
    "generic": (lambda x: nn.functional.max_pool2d(torch.relu(x), 3), lambda: (R(2, 3, 9, 9),)),
}


@pytest.mark.parametrize("name, counts", in_turn([*itertools.product(CASES, [(1, 2), (5, 3), (7, 20)])], 4))
def test_results_are_those_of_each_request(name: str, counts: tuple[int, int]):
    count, blocks = counts
    function, arguments = CASES[name]
    program = compiled(function, arguments())
    requests = [arguments() for _ in range(count)]
    like = [function(*requests[0])]
    for args, (result,) in zip(requests, emulated_requests(program, requests, like, 7, blocks), strict=True):
        wide = function(*(x.double() for x in args))
        assert problem(result, wide, function(*args)) is None


def test_equal_stages_share_bodies_for_all_requests():
    def many(x: Tensor) -> Tensor:
        for _ in range(20):
            x = torch.cumsum(torch.sort(x, -1)[0], -1) * 0.1
        return x

    program = compiled(many, (R(5, 33),))
    assert _of(program).arrays
    requests = [(R(5, 33),) for _ in range(3)]
    found = emulated_requests(program, requests, [requests[0][0]], 4, 2)
    for (x,), (result,) in zip(requests, found, strict=True):
        assert problem(result, many(x.double()), many(x)) is None


def _of(program: Any, **options: Any) -> Any:
    return _built(program, **options).manifest


def _built(program: Any, **options: Any) -> Any:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        return build(ProgramView(function), "kernel", KernelOptions(**options))


def test_the_manifest_counts_for_all_requests():
    program = compiled(CASES["waits"][0], CASES["waits"][1]())
    one, several = _of(program, debug=True), _of(program, debug=True, requests=5)
    assert one.slots > 1
    assert several.requests == 5 and several.slots == 5 * one.slots and not several.streaming
    assert several.counters[one.slots] == f"{one.counters[0]} of request 1"
    assert several.arena_stride % 256 == 0 and several.arena_bytes == one.arena_bytes


def test_layers_of_few_rows_are_one_run_of_each_request():
    """The ring of weights goes on from layer to layer; pieces that wait for each other are dealt out over all requests."""
    widths = (512, 1024, 512, 256)
    model = nn.Sequential(*(layer for i, o in zip(widths, widths[1:], strict=False) for layer in (nn.Linear(i, o), nn.ReLU())))
    with unassembled():
        program = kitsune_mlir.compile(model.bfloat16(), (R(1, 512).bfloat16(),), target="sm_90a", options={"requests": 8})
        split = kitsune_mlir.compile(Function(lambda x, y: (x @ y) @ y), (R(64, 2048), R(2048, 2048)), target="sm_90a")
    assert _built(program, requests=8).needs.schedule.runs[0] == (0, 1, 2)
    found = _built(split, requests=8).needs.schedule
    assert any(plan.together for plan in found.plans) and all(len(run) == 1 for run in found.runs)


def test_the_program_is_one_launch_with_an_assembly_of_its_own():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
    with unassembled():
        program = kitsune_mlir.compile(model, (R(1, 64),), target="sm_90a", options={"requests": 8})
    assert program.summary["launches"] == 1
    (entry,) = [line for line in program.ir("ptx").splitlines() if ".param" in line and "main_p0_param" in line][:1]
    assert ".u64" in entry and program.ir("ptx").count("main_p0_param_1") == 0


@functools.cache
def product(rows: int, inner: int, columns: int, most: int = 64) -> kitsune_mlir.Program:
    """A product for several requests."""
    with unassembled():
        args = R(rows, inner), R(inner, columns)
        return kitsune_mlir.compile(Function(torch.matmul), args, target="sm_90a", options={"requests": most})


def test_many_requests_have_a_kernel_whose_tiles_are_not_shared():
    """One request's sum is split over blocks, which many requests keep busy without that."""

    def kernels(*sizes: int) -> tuple[kitsune_mlir.Program, list[Manifest]]:
        program = product(*sizes)
        return program, [manifest for manifest, _ in CudaRunner.read_kernels(program.artifacts)]

    program, found = kernels(256, 1152, 128)
    few, *between, many = found
    assert program.summary["launches"] == 1 and program.summary["engines"][0]["pieces"] > 1
    assert few.least_requests == 1 and {manifest.requests for manifest in found} == {64}
    assert few.partial_bytes > 0 == many.partial_bytes and all(manifest.partial_bytes for manifest in between)
    least = [manifest.least_requests for manifest in found]
    assert least == sorted(set(least)) and least[-1] <= 64
    assert [kernel["least_requests"] for kernel in program.summary["kernels"]] == least
    sizes = [manifest.tasks[0][2] for manifest in found]  # tiles of a request: the fewer, the more requests there are
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-1]
    assert len(kernels(256, 1152, 128, 1)[1]) == 1
    assert len(kernels(2048, 64, 2048)[1]) == 1  # the same tiles, however many requests there are


def test_few_kernels_do_for_all_numbers_of_requests():
    """Plans that are as fast as the fastest for some number of requests: the one that is so for most is taken."""
    cost = Cost(1e-6, 1e-6, 1e-7, 0, 0, 0, 1e-6, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    machine = find_target("h200")

    def plan(tiles: int, share: float) -> list[Load]:  # a request's work in so many tiles
        return [Load(tiles, False, dataclasses.replace(cost, vector=share / tiles))]

    alike = [plan(64, 1e-6), plan(32, 1e-6), plan(16, 1e-6), plan(8, 1e-6), plan(4, 1e-6)]
    chosen = kernels_by_requests(alike, 64, machine)
    assert chosen[0] == (0, 1) and len(chosen) <= 4 and chosen[-1][0] == 4
    assert kernels_by_requests([plan(64, 1e-6), plan(64, 1e-6)], 64, machine) == [(0, 1)]
    times = [[sum(load.seconds(n, machine) for load in loads) for loads in alike] for n in range(1, 65)]
    for count, seconds in enumerate(times[1:], 2):
        number = [number for number, least in chosen if least <= count][-1]
        assert seconds[number] <= 1.1 * min(seconds) + 0.06 * machine.launch_seconds
    together = dataclasses.replace(alike[0][0], together=True)
    assert together.seconds(3, machine) == pytest.approx(together.seconds(1, machine) + cost.turn + 1e-6 / 64 + cost.finish)


def test_kernels_share_an_arena_that_is_large_enough():
    model = nn.Sequential(nn.Linear(640, 1024), nn.ReLU(), nn.Linear(1024, 640), nn.ReLU(), nn.Linear(640, 64))
    with unassembled():
        program = kitsune_mlir.compile(model, (R(256, 640),), target="sm_90a", options={"requests": 64})
    found = [manifest for manifest, _ in CudaRunner.read_kernels(program.artifacts)]
    assert (
        len(found) > 1 and len({(manifest.arena_bytes, manifest.input_bytes, manifest.result_bytes) for manifest in found}) == 1
    )


@pytest.mark.parametrize("change", [{"least_requests": 1}, {"requests": 32}, {"least_requests": 65}])
def test_kernels_for_few_and_many_fit_each_other(change: dict[str, int]):
    program = product(256, 1152, 128)
    manifest = {**json.loads(program.artifacts["kernel_1.json"]), **change}
    with pytest.raises(ValueError, match="requests"):
        CudaRunner.read_kernels({**program.artifacts, "kernel_1.json": json.dumps(manifest).encode()})


def test_what_cannot_take_several_requests_says_so():
    with pytest.raises(ArgumentError, match="option 'requests' is 8, and 'schedule' is 'separate'"):
        kitsune_mlir.Options(requests=8, schedule="separate")
    with pytest.raises(ArgumentError, match="at least 1, not 0"):
        kitsune_mlir.Options(requests=0)
    with unassembled():
        options = {"schedule": "spatial"}
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
        program = kitsune_mlir.compile(model, (R(2048, 512),), target="sm_90a", options=options)
    with pytest.raises(UnsupportedError, match=r"several requests of 'kernel'.*'temporal'.*'spatial'"):
        _of(program, requests=2)
