"""A kernel that is too long for LLVM and ptxas becomes several launches, before either sees it."""

import dataclasses
from concurrent.futures import Future

import pytest
import torch
from torch import nn
from torch_mlir import ir

import kitsune_mlir
import kitsune_mlir.codegen.gpu.compile as compile_module
from kitsune_mlir.codegen.gpu.backend.cubin import Cubin
from kitsune_mlir.codegen.gpu.compile import Made, compile_gpu, compile_launches
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel import executor, length
from kitsune_mlir.codegen.gpu.kernel.length import (
    LongKernel,
    check_parameters,
    launches_within,
    limited,
    operations_by_place,
    operations_of,
    seconds_of,
)
from kitsune_mlir.dialects import new_context
from kitsune_mlir.errors import AssemblyTimeout
from test.gpu.cases_layers import layers
from test.gpu.unassembled import unassembled
from test.unit.test_launches import program

ALL = [(1, 0), (2, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize(
    ("lengths", "launches"),
    [
        ([2_000, 3_000, 2_500, 1_500], [0, 0, 0, 0, 0]),
        ([9_000, 30_000, 9_000, 8_000], [0, 1, 1, 2, 2]),  # a long body has a launch to itself
        ([2_000, 12_000, 12_000, 2_000], [0, 0, 0, 1, 1]),
        ([40_000, 30_000, 40_000, 30_000], [0, 1, 1, 2, 3]),
    ],
)
def test_launches_take_little_time_to_compile(lengths: list[int], launches: list[int]) -> None:
    assert launches_within(ALL, lengths, 128_000) == launches


def test_launches_have_no_more_operations_than_they_may() -> None:
    assert launches_within(ALL, [20, 30, 25, 15], 100) == [0, 0, 0, 0, 0]
    assert max(launches_within(ALL, [20, 30, 25, 15], 60)) == 1
    assert launches_within(ALL, [20, 30, 25, 15], 25) == [0, 1, 1, 2, 3], "a body that is too long has a launch to itself"


def test_a_body_counts_once_in_a_launch_however_often_it_runs() -> None:
    layers = [(1, 0), (1, 1)] * 8
    assert launches_within(layers, [10, 10], 20) == [0] * 16
    assert launches_within([*layers, (1, 2)], [10, 10, 15], 25) == [0] * 16 + [1]
    assert launches_within(layers, [10, 10], 15) == list(range(16))
    assert launches_within(layers, [12_000, 1_000], 128_000) == [0] * 16


def test_long_kernels_take_more_time_for_each_operation() -> None:
    assert 40 < seconds_of(88_000) < 70 and 0.9 < seconds_of(11_000) < 1.4


def zero() -> dict[str, ir.Attribute]:
    return {"value": ir.IntegerAttr.get(ir.IndexType.get(), 0)}


def test_operations_are_counted_where_they_stand() -> None:
    with new_context(), ir.Location.name("outer"):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for name in ("a", "b", "a"):
                ir.Operation.create("arith.constant", [ir.IndexType.get()], attributes=zero(), loc=ir.Location.name(name))
        found = operations_by_place(module.operation)
    assert found == {'loc("a")': 2, 'loc("b")': 1, 'loc("outer")': 1}
    assert operations_of(module.operation) == found.total()


def _tasks(most: int) -> list[list[str]]:
    codes = compile_launches(program((0, 0, 0), "temporal"), "p0", KernelOptions(most_operations=most))
    return [[choice.task for choice in code.engines] for code in codes]


def test_a_kernel_that_is_too_long_becomes_launches() -> None:
    assert _tasks(0) == [["t0", "t1", "t2"]]
    whole = compile_gpu(program((0, 0, 0), "temporal"), "p0", KernelOptions(most_operations=1))
    assert [choice.task for choice in whole.engines] == ["t0", "t1", "t2"], "who asks for one kernel gets one"
    separate = compile_gpu(program((0, 1, 2), "separate"), "p0")
    assert [choice.task for choice in separate.engines] == ["t0", "t1", "t2"]
    first, *later = compile_launches(program((0, 0, 0), "temporal"), "p0", KernelOptions(most_operations=1))
    assert [len(code.engines) for code in (first, *later)] == [1, 1, 1]
    assert [code.manifest.follows for code in (first, *later)] == [False, True, True]
    assert not any(code.manifest.slots for code in (first, *later)), "nothing waits inside a launch of one task"


def test_tasks_that_are_alike_share_a_body_before_they_become_launches() -> None:
    """Eight layers of two alike tasks each: too few for sharing bodies, where the code is not too long."""
    case = layers(8, engine="simt")
    with new_context(), ir.Location.unknown(), unassembled():
        module = ir.Module.parse(case.text)
        (usual,) = compile_launches(module, case.name, KernelOptions())
        most = operations_of(ir.Module.parse(usual.gpu_ir).operation) * 9 // 10
        (shared,) = compile_launches(module, case.name, KernelOptions(most_operations=most))
    assert shared.manifest.arrays and not usual.manifest.arrays and len(shared.ptx) < 0.6 * len(usual.ptx)
    assert [choice.task for choice in shared.engines] == [choice.task for choice in usual.engines]


def test_a_kernel_with_too_many_parameters_becomes_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor maps fill half of what is possible; where they are few, the runs are halved; one run stays, and is an error."""
    runs = [(1, {0, 1}), (2, {1, 2}), (1, {2, 3}), (1, {4})]
    with pytest.raises(LongKernel, match="parameters of 1000 bytes; 768 are possible") as found:
        check_parameters("k", 1000, 3 * 2 * 128, runs)
    assert found.value.launches == (0, 0, 0, 1, 1)
    with pytest.raises(LongKernel) as found:
        check_parameters("k", 10_000, 9_000, runs)
    assert found.value.launches == (0, 0, 0, 1, 1)
    check_parameters("k", 1000, 1000, runs)
    check_parameters("k", 1000, 10, runs[:1])
    monkeypatch.setattr(executor, "MOST_PARAMETER_BYTES", 1)
    tasks = _tasks(KernelOptions().most_operations)
    assert tasks == [["t0"], ["t1"], ["t2"]]


def test_a_launch_that_is_still_too_long_is_cut_again() -> None:
    separate = program((0, 0, 1), "separate")
    codes = compile_launches(separate, "p0", KernelOptions(most_operations=1))
    assert [[choice.task for choice in code.engines] for code in codes] == [["t0"], ["t1"], ["t2"]]
    assert [code.manifest.follows for code in codes] == [False, True, True]


def test_kernels_of_programs_of_many_stages_are_shorter() -> None:
    usual = KernelOptions()
    assert limited(usual, 96) == usual
    assert limited(usual, 97).most_operations < usual.most_operations
    assert limited(KernelOptions(most_operations=5), 97).most_operations == 5


def test_a_program_of_many_stages_has_shorter_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.LayerNorm(64), nn.Softmax(0), nn.LayerNorm(64))

    def launches() -> int:
        program = kitsune_mlir.compile(
            model, (torch.randn(40, 64),), target="sm_90a", options={"schedule": "temporal", "cache": False}
        )
        return program.summary["launches"]

    assert launches() == 1
    monkeypatch.setattr(length, "MANY_STAGES", 1)
    monkeypatch.setattr(length, "MOST_OF_MANY", 1)
    assert launches() > 1


def test_several_requests_stay_one_kernel() -> None:
    options = KernelOptions(most_operations=1, requests=2)
    assert len(compile_launches(program((0, 0, 0), "temporal"), "p0", options)) == 1


def test_another_plan_has_the_kernels_of_launches_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those are made that no earlier plan had; one that was given up is made again."""
    emitted: list[str] = []
    emit = compile_module._emitted

    def counting(function: ir.Operation, name: str, *rest: object) -> object:
        emitted.append(name)
        return emit(function, name, *rest)

    monkeypatch.setattr(compile_module, "_emitted", counting)
    made: Made = {}
    separate = program((0, 1, 2), "separate")
    first = compile_launches(separate, "p0", made=made)
    copies = ["p0_0", "p0_1", "p0_2"]
    assert emitted == copies, "they copy between other kinds of memory"
    with separate.context:
        again = compile_launches(ir.Module.parse(str(separate)), "p0", made=made)
        other = ir.Module.parse(str(program((0, 0, 1), "separate")))
    assert emitted == copies
    assert [(a.cubin, a.manifest) for a in again] == [(b.cubin, b.manifest) for b in first]
    codes = compile_launches(other, "p0", made=made)
    assert emitted == [*copies, "p0_0"]
    assert codes[1].cubin == first[2].cubin
    assert [choice.task for choice in codes[1].engines] == ["t2"]
    compile_launches(other, "p0", KernelOptions(debug=True), made=made)
    assert len(emitted) == 6, "kernels of other options are others"
    given_up: Future[tuple[str, Cubin]] = Future()
    given_up.cancel()
    made.update({key: dataclasses.replace(one, assembled=given_up) for key, one in made.items()})
    compile_launches(other, "p0", made=made)
    assert len(emitted) == 8


def test_a_launch_that_took_ptxas_too_long_becomes_several() -> None:
    """Those that are equal to it, too; one of a single run of tasks is tried again."""
    made: Made = {}
    separate = program((0, 0, 1), "separate")

    def tasks() -> list[list[str]]:
        return [[choice.task for choice in code.engines] for code in compile_launches(separate, "p0", made=made)]

    assert tasks() == [["t0", "t1"], ["t2"]]
    late: Future[tuple[str, Cubin]] = Future()
    late.set_exception(AssemblyTimeout("p0_0", 1.0, 1.0, ("t0", "t1")))
    made.update({key: dataclasses.replace(one, assembled=late) for key, one in made.items()})
    assert tasks() == [["t0"], ["t1"], ["t2"]]


def test_that_a_launch_is_too_long_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal launches, of this plan or of another one, are cut without being emitted."""
    emitted: list[str] = []
    emit = compile_module._emitted

    def counting(function: ir.Operation, name: str, *rest: object) -> object:
        emitted.append(name)
        return emit(function, name, *rest)

    monkeypatch.setattr(compile_module, "_emitted", counting)
    made: Made = {}
    separate, options = program((0, 0, 1), "separate"), KernelOptions(most_operations=1)
    first = compile_launches(separate, "p0", options, made=made)
    assert emitted == ["p0_0", "p0_0_0", "p0_0_1", "p0_1"]
    again = compile_launches(separate, "p0", options, made=made)
    assert len(emitted) == 4
    assert [code.manifest for code in again] == [code.manifest for code in first]
