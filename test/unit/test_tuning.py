"""Tuning with a clock that is made up, and once for real on this processor."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import kitsune_mlir
from kitsune_mlir import pipeline
from kitsune_mlir.dialects import new_context
from kitsune_mlir.errors import CompileError, TargetError
from kitsune_mlir.frontend import import_model
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.partition_streams import PartitionStreams
from kitsune_mlir.passmanager.manager import PassPipelineError, run_pipeline
from kitsune_mlir.tuning import TuningCache, partition, progress, tensor_types, tune
from kitsune_mlir.tuning.candidates import LIMIT, candidates
from kitsune_mlir.tuning.isolate import isolate
from kitsune_mlir.tuning.search import _stages
from kitsune_mlir.tuning.stage_clock import StageClock
from kitsune_mlir.tuning.stage_key import stage_key
from kitsune_mlir.workers import Compilers


class Sums(torch.nn.Module):
    """Three stages; the first and the last do the same to different tensors of one shape."""

    def forward(self, x, y):
        a = x.sum(1)
        b = torch.sort(y, 1).values
        return a, b.sum(1), b


def formed(model=None, args=None):
    """A module that has been through kitsune-form-stages."""
    args = args or (torch.randn(8192, 40), torch.randn(8192, 40))
    imported = import_model(model or Sums(), args, context=new_context())
    run_pipeline(imported.module, "builtin.module(kitsune-normalize,kitsune-form-stages)", target="h200")
    return imported.module


class Clock:
    """Says how long a stage takes: the sum of its tile's sizes off what it likes best."""

    def __init__(self, best, refuse=()):
        self.best, self.refuse, self.asked = best, refuse, []

    def __call__(self, module, step, enough):
        ((name, tile),) = [one.split(":") for one in step.tiles]
        sizes = tuple(map(int, tile.split("x")))
        self.asked.append((name, sizes))
        if sizes in self.refuse:
            raise CompileError("no engine takes it")
        return 1.0 + sum(abs(s - self.best) for s in sizes)


def test_candidates_begin_with_the_planners_and_stay_within_sizes():
    found = candidates((1000, 7), (64, 7))
    assert found[0] == (64, 7) and len(found) == len(set(found)) <= LIMIT
    assert {(32, 7), (128, 7), (64, 4)} <= set(found[:6])
    assert all(1 <= a <= 1000 and 1 <= b <= 7 for a, b in found)
    assert candidates((1,), (1,)) == [(1,)] and len(candidates((4096,) * 3, (16, 16, 16))) == LIMIT


def test_the_fastest_tile_is_chosen_and_kept(tmp_path):
    module, target, cache = formed(), find_target("h200"), TuningCache("GPU 1", tmp_path)
    clock = Clock(best=8)
    steps = []
    found = tune(module, target, clock, cache, 60, lambda *step: steps.append(step))
    tuned = [s for s in found if s.times]
    assert tuned and all(abs(s.tile[0] - 8) <= abs(s.planned[0] - 8) for s in tuned)
    assert any(s.tile != s.planned for s in tuned)
    assert [done for _, done, _ in steps] == list(range(len(clock.asked))) and steps[0][2] == len(clock.asked)
    # Equal stages are measured once: the two sums over rows.
    sums = [s for s in found if s.name.startswith("reduce")]
    assert len(sums) == 2 and sums[0].key == sums[1].key and sums[0].tile == sums[1].tile
    assert {name for name, _ in clock.asked if name.startswith("reduce")} == {sums[0].name}
    # A second time, in another model's words, nothing is measured; on another device it is.
    again = Clock(best=1)
    assert [s.tile for s in tune(formed(), target, again, cache, 60)] == [s.tile for s in found] and not again.asked
    tune(formed(), target, again, TuningCache("GPU 2", tmp_path), 60)
    assert again.asked


def test_tiles_that_cannot_be_had_are_left_out(tmp_path):
    module, target = formed(), find_target("h200")
    planned = tune(module, target, Clock(best=1), TuningCache("a", tmp_path), 0)[0]
    assert planned.tile == planned.planned and not planned.times
    found = tune(module, target, Clock(best=planned.planned[0], refuse={planned.planned}), TuningCache("b", tmp_path), 60)[0]
    assert found.times and found.tile != found.planned and planned.planned not in found.times


def test_time_is_boxed_and_unfinished_stages_are_not_kept(tmp_path, monkeypatch):
    import kitsune_mlir.tuning.search as module_

    now = iter(range(10_000))
    monkeypatch.setattr(module_.time, "monotonic", lambda: float(next(now)))
    clock, cache = Clock(best=8), TuningCache("a", tmp_path)
    found = tune(formed(), find_target("h200"), clock, cache, 2.5)
    assert len(clock.asked) == 2
    assert all(cache.get(s.key) is None for s in found)


def test_keys_tell_computations_apart_but_not_names():
    def keys(module, context="t"):
        return [stage_key(s, context) for s in _stages(module.operation)]

    first = keys(formed())
    assert first == keys(formed())
    assert not set(first) & set(keys(formed(args=(torch.randn(96, 41), torch.randn(96, 41)))))
    assert not set(first) & set(keys(formed(), "another target"))


def test_a_stage_alone_is_a_program():
    module = formed()
    for stage in _stages(module.operation):
        alone = isolate(stage)
        assert alone is not None and alone.operation.verify()
        _, results = tensor_types(alone)
        assert len(results) >= 1
        after = "kitsune-place-buffers,kitsune-synchronize,kitsune-materialize,kitsune-check-progress"
        run_pipeline(alone, [replace(partition({}), target="h200"), after], target="h200")
        assert "kitsune.task" in str(alone)


def test_the_partitioner_takes_tiles_by_name():
    module = formed()
    name = next(s.attributes["sym_name"].value for s in _stages(module.operation) if "reduce" in str(s.attributes["sym_name"]))
    run_pipeline(module, [replace(partition({name: (12,), "unknown": (3,)}), target="h200")])
    tiles = {s.attributes["sym_name"].value: str(s.attributes["tile"]) for s in _stages(module.operation)}
    assert tiles[name] == "array<i64: 12>"
    with pytest.raises(PassPipelineError, match="has 1 dimensions to tile"):
        run_pipeline(formed(), [replace(partition({name: (12, 4)}), target="h200")], reproducer_dir=False)


def test_the_partitioner_takes_times_by_name():
    assert partition({}) == PartitionStreams()
    assert partition({}, "auto", {"a": 0.0125, "b": 1.0}) == PartitionStreams(times=("a:12.50", "b:1000.00"))
    assert partition({"a": (4, 8)}, "separate") == PartitionStreams(tiles=("a:4x8",), mode="separate")


def test_one_launch_unless_several_were_clearly_faster(monkeypatch):
    module, target, asked = formed(), find_target("h200"), []

    def measured(several):
        def time(module, step, *_):
            asked.append(step)
            return several if step.mode == "separate" else 1.0

        return time

    for several, wanted in ((0.9, "separate"), (0.99, "temporal"), (2.0, "temporal")):
        monkeypatch.setattr(pipeline, "measured", measured(several))
        assert pipeline.fastest_mode(module, target, pipeline.Options(), {"a": (8,)}, {}) == wanted
    assert asked[:2] == [PartitionStreams(tiles=("a:8",), mode=mode) for mode in ("temporal", "separate")]
    one = formed(torch.nn.ReLU(), (torch.randn(64, 64),))
    assert pipeline.fastest_mode(one, target, pipeline.Options(), {}, {}) == "temporal" and len(asked) == 6


def test_damaged_and_foreign_files_count_as_none(tmp_path):
    cache = TuningCache("NVIDIA H200", tmp_path)
    cache.put("k", "stage", {(64, 128): 0.5, (32, 128): 0.25})
    assert cache.get("k") == {(64, 128): 0.5, (32, 128): 0.25} and cache.get("other") is None
    file = cache.folder / "k.json"
    for text in ("", "[]", "{}", '{"format": 9, "milliseconds": {"1": 1}}', '{"format": 1, "milliseconds": {"axb": 1}}'):
        file.write_text(text)
        assert cache.get("k") is None
    assert TuningCache("x" * 500, tmp_path).folder.name != TuningCache("x" * 501, tmp_path).folder.name


WRITER = """
import sys
from kitsune_mlir.tuning.cache import TuningCache
cache = TuningCache("GPU", sys.argv[1])
for n in range(300):
    cache.put("key", "stage", {(8 * (n % 50) + 8, 4): float(n), (1, 1): 2.0})
    assert cache.get("key") is not None
"""


def test_two_processes_share_a_cache(tmp_path):
    both = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stderr=subprocess.PIPE) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    files = list(TuningCache("GPU", tmp_path).folder.iterdir())
    assert [f.name for f in files] == ["key.json"] and json.loads(files[0].read_text())["stage"] == "stage"


ECHO = """
import sys
from kitsune_mlir.workers import serve

def work(request):
    print("talk")
    if request == "leave":
        sys.exit(3)
    return request * 2 if request != "bad" else 1 / 0

serve(work)
"""


def test_compilers_answer_fail_and_are_replaced():
    compilers = Compilers([sys.executable, "-c", ECHO], count=1)
    try:
        for request in ("a", "bad", "b"):
            compilers.expect(request)
        assert compilers.answer("a") == "aa"
        with pytest.raises(CompileError, match="ZeroDivisionError"):
            compilers.answer("bad")
        assert compilers.answer("b") == "bb"
        with pytest.raises(CompileError, match="ended"):
            compilers.answer("leave")
        assert compilers.answer("c") == "cc"
        with pytest.raises(CompileError, match="not compiled within 0 s"):
            compilers.answer("d", 0)
    finally:
        compilers.close()


def test_stages_are_compiled_ahead_for_a_gpu_by_another_process(monkeypatch):
    timed = []
    monkeypatch.setattr(
        "kitsune_mlir.tuning.stage_clock.CudaRunner.from_artifacts", lambda members: timed.append(members) or "runner"
    )
    monkeypatch.setattr("kitsune_mlir.tuning.stage_clock.milliseconds", lambda runner, *_: 0.25)
    module = formed(torch.nn.ReLU(), (torch.randn(640, 64),))
    alone = isolate(_stages(module.operation)[0])
    assert alone is not None
    with StageClock(find_target("h200"), pipeline.Options(on_phase=print, matmul_precision="high")) as clock:
        clock.expect(alone, partition({}))
        assert clock.measure(alone, partition({}), 1.0) == 0.25
        with pytest.raises(CompileError):
            clock.measure(alone, PartitionStreams(mode="none"), 1.0)
    assert {"kernel.cubin", "kernel.json"} <= set(timed[0])


def test_tuning_processes_take_turns_and_learn_from_each_other(tmp_path):
    cache, other = TuningCache("a", tmp_path), TuningCache("a", tmp_path)
    with cache.turn(time.monotonic() + 5) as mine:
        assert mine
        with other.turn(time.monotonic() + 0.1) as its:
            assert not its
    with other.turn(time.monotonic()) as its:
        assert its

    class Meanwhile(Clock):
        def __call__(self, *request):
            if not self.asked:  # another process has measured everything that this one is still to measure
                for stage in tune(formed(), find_target("h200"), Clock(best=4), TuningCache("b", tmp_path), 60):
                    other.put(stage.key, stage.name, stage.times)
            return super().__call__(*request)

    clock = Meanwhile(best=8)
    expected = []
    found = tune(formed(), find_target("h200"), clock, cache, 60, expect=lambda module, text: expected.append(text))
    assert len({name for name, _ in clock.asked}) == 1 and all(stage.times for stage in found if stage.tile)
    assert len(expected) > len(clock.asked)


def test_tuning_for_real_on_the_host(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.ReLU(), torch.nn.Softmax(-1)).eval()
    x = torch.randn(500, 24)
    options = {"tune": True, "cache_dir": str(tmp_path), "threads": 1}
    program = kitsune_mlir.compile(model, (x,), target="host", options=options)
    assert "tune" in program.seconds and list(tmp_path.rglob("*.json"))
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x))
    again = kitsune_mlir.compile(model, (x,), target="host", options=options)
    assert again.seconds["tune"] < program.seconds["tune"] / 2
    # What is known of a device serves where the device is not.
    known = next(tmp_path.rglob("*.json"))
    times = json.loads(known.read_text())["milliseconds"]
    times["7"] = 0.0
    TuningCache("far away", tmp_path).put(known.stem, "stage", {tuple(map(int, t.split("x"))): ms for t, ms in times.items()})
    far = kitsune_mlir.compile(model, (x,), target="host", options={"tuned_for": "far away", "cache_dir": str(tmp_path)})
    assert far.summary["stages"][0]["tile"] == [7]


def test_steps_are_announced_in_words_or_as_a_bar(capsys):
    said = []
    with progress(said.append) as on_step:
        on_step("product_0", 2, 10)
    assert said == ["tune product_0, 3 of 10"] and not capsys.readouterr().err
    with progress() as on_step:
        on_step("product_0", 2, 10)
    assert "product_0" in capsys.readouterr().err


def test_tuning_for_a_gpu_needs_one():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(TargetError, match="no CUDA device is usable here"):
        kitsune_mlir.compile(torch.nn.ReLU(), (torch.randn(8),), target="sm_90a", options={"tune": True})
