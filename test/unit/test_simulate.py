"""The simulator: hand-made programs with known times, traffic, lock-ups, machines from files, and whole models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, TargetError
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.stage_cost import Work, cost_of
from kitsune_mlir.machine.target import find_machine
from kitsune_mlir.simulation import DeadlockError, simulate
from kitsune_mlir.simulation.program import SimPost, SimProgram, SimTask, SimWait, Touch
from kitsune_mlir.simulation.record import program_from, record_of
from kitsune_mlir.simulation.shared import SharedRate
from kitsune_mlir.simulation.simulate import numbers_of, simulate_program
from kitsune_mlir.simulation.traffic import traffic_of
from test.programs.planned import MLP, parse, rows, tile_program

H200 = find_machine("H200")
COST = dataclasses.replace(
    cost_of(Work("simt", 1), H200), start=1.0, finish=1.0, turn=0.5, poll=0.0, post=2.0, vector=4.0, store=0.0, load=0.0
)
SMALL = dataclasses.replace(H200, workers=2, launch_seconds=0.0)


def task(name: str, tiles: int, waits: list[SimWait] | None = None, posts: list[SimPost] | None = None, **more) -> SimTask:
    return SimTask(name, "simt", tiles, COST, waits=waits or [], posts=posts or [], **more)


def slots(count: int) -> np.ndarray:
    return np.arange(count)


def test_blocks_take_turns_and_successive_tiles_overlap() -> None:
    done = simulate_program(SimProgram("p", [task("a", 3)]), SMALL)
    # Block 0: start 1, work 4, finish 1; its second tile: turn 0.5 instead of the start (nothing hides the finish).
    assert done.blocks == 2
    assert list(done.spans.end) == pytest.approx([6.0, 6.0, 11.5])
    assert done.kernel_seconds == pytest.approx(11.5)
    assert done.occupancy == pytest.approx((11.5 + 6) / 23)


def test_a_task_of_the_same_code_begins_while_the_last_results_go_out() -> None:
    overlapping = dataclasses.replace(COST, overlaps=1.0)
    pair = [dataclasses.replace(task(name, 2), cost=overlapping, follows_on=name == "b") for name in ("a", "b")]
    done = simulate_program(SimProgram("p", pair), SMALL)
    assert list(done.spans.end) == pytest.approx([6.0, 6.0, 10.5, 10.5])  # turn 0.5, work 4, finish 1 from 5.0 on
    apart = [pair[0], dataclasses.replace(pair[1], follows_on=False)]
    assert simulate_program(SimProgram("p", apart), SMALL).kernel_seconds == pytest.approx(12.0)


def test_joined_products_follow_on_and_launches_need_no_waits() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 2048)).bfloat16().eval()
    args = (torch.randn(2048, 2048).bfloat16(),)
    one, two = (kitsune_mlir.compile(model, args, target="sm_90a", options={"schedule": m}) for m in ("temporal", "separate"))
    together, apart = (numbers_of(program, H200).tasks for program in (one, two))
    assert "joined" in one.summary["engines"][1]["parameters"] and together[1].follows_on and together[1].waits
    assert [task.launch for task in apart] == [0, 1] and not apart[1].follows_on and not apart[1].waits


def test_a_wait_ends_when_the_last_post_is_seen() -> None:
    first = task("a", 2, posts=[SimPost(0, slots(2))])
    second = task("b", 2, waits=[SimWait(0, np.zeros(2, int), np.full(2, 2), 1)])
    done = simulate_program(SimProgram("p", [first, second], [2]), SMALL)
    assert list(done.spans.begin[2:]) == pytest.approx([6.0, 6.0])
    assert list(done.spans.ready[2:]) == pytest.approx([8.0, 8.0])
    assert done.stages[1].waiting == pytest.approx(4.0) and done.stages[1].first == pytest.approx(8.0)


def test_a_lock_up_names_block_tile_and_slot() -> None:
    first = task("a", 2, waits=[SimWait(0, slots(2), slots(2) + 1, 2)], posts=[SimPost(0, slots(2))])
    with pytest.raises(DeadlockError, match=r"block 0 in @a tile 0 waits for 2 posts of slot 0 .* which has 0"):
        simulate_program(SimProgram("p", [first], [2]), SMALL)


def test_shares_and_launches() -> None:
    beside = [task("a", 2, share=(0, 1)), task("b", 2, share=(1, 1))]
    done = simulate_program(SimProgram("p", beside), SMALL)
    assert set(done.spans.block[:2]) == {0} and set(done.spans.block[2:]) == {1}
    after = simulate_program(SimProgram("p", [task("a", 1), task("b", 1, launch=1)]), SMALL)
    assert after.spans.begin[1] > after.spans.end[0]


def test_transfers_get_a_rate_in_the_order_in_which_they_ask() -> None:
    rate = SharedRate(10.0)
    rate.add(30.0, 2)
    rate.add(10.0, 1)
    assert rate.next_end() == pytest.approx(3.0)
    rate.advance(3.0)
    assert rate.pop() == 2
    assert rate.next_end() == pytest.approx(4.0)
    rate.advance(5.0)
    assert rate.pop() == 1 and rate.next_end() == float("inf")
    rate.add(10.0, 3)  # nothing was asked for since 4: it begins now
    assert rate.next_end() == pytest.approx(6.0)


def test_many_equal_tiles_use_all_of_memory() -> None:
    tiles, slow = 120, dataclasses.replace(SMALL, dram_rate=1e6)
    read = Touch(0, 0, 240_000_000, 1e6 * tiles)  # a second of memory's rate for each tile, more than L2 holds
    loading = dataclasses.replace(COST, vector=0.0)  # and two seconds in which it asks for nothing
    many = dataclasses.replace(task("a", tiles), cost=loading, touches=[read])
    done = simulate_program(SimProgram("p", [many], resident=3, streaming=True), slow, cold=True)
    assert done.dram_bytes == pytest.approx(1e6 * tiles)
    least = tiles / rates.DRAM_SHARE
    assert least <= done.kernel_seconds < 1.05 * least


def test_what_fits_the_cache_is_read_from_memory_once() -> None:
    def passes(size: int) -> list[float]:
        touch = Touch(0, 0, size, float(size))
        return [t.dram_read for t in traffic_of([task("a", 1, touches=[touch]), task("b", 1, touches=[touch])], 50 << 20)]

    assert passes(8 << 20) == [0.0, 0.0]  # it is still there from the run before
    assert traffic_of([task("a", 1, touches=[Touch(0, 0, 8 << 20, 8e6)])], 50 << 20, cold=True)[0].dram_read == 8e6
    assert passes(200 << 20) == [200 << 20, 200 << 20]
    written = [task("a", 1, touches=[Touch(0, 0, 200 << 20, 2e8, True)])]
    assert traffic_of(written, 50 << 20)[0].dram_written == pytest.approx(200 << 20)


def test_a_tile_program_runs_on_described_machines() -> None:
    module = tile_program(MLP, rows)
    times = {name: simulate(module, name).seconds for name in ("H200", "h100", "A100")}
    assert times["A100"] > times["H200"] > 0
    done = simulate(module)
    assert "multiprocessors idle" in done.table() and done.stages[0].name in done.table()
    assert done.spans.end.min() > 0 and (done.spans.ready >= done.spans.begin).all()


def test_compiled_programs_and_faster_machines() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).bfloat16().eval()
    program = kitsune_mlir.compile(model, (torch.randn(512, 256).bfloat16(),), target="sm_90a")
    done = kitsune_mlir.simulate(program)
    assert {s.engine for s in done.stages} <= {"mma", "chain", "simt"} and 1e-6 < done.seconds < 1e-3
    fast = dataclasses.replace(H200, matrix_rate=1e16, vector_rate=6e15, dram_rate=1e15, cache_rate=1e15, bulk_rate=1e15)
    assert kitsune_mlir.simulate(program, fast).seconds < done.seconds
    nothing = kitsune_mlir.compile(torch.nn.Identity(), (torch.randn(4),), target="host")
    with pytest.raises(ArgumentError, match="nothing to simulate"):
        kitsune_mlir.simulate(nothing)


def test_rings_hold_producers_back() -> None:
    from test.unit.test_rings import ringed

    def run(depth: int):
        return simulate(parse(ringed(tiles=24, depth=depth, workers=(1, 1)).text))

    short, long = run(1), run(24)
    assert short.seconds > long.seconds
    assert short.stages[0].waiting > long.stages[0].waiting
    ring = sum(t.ring for t in short.traffic)
    assert ring == 2 * 24 * 4 * 8 * 4 and "through rings" in short.table()


def test_records_give_the_same_run() -> None:
    module = tile_program(MLP, rows)
    with module.context:
        numbers = numbers_of(module, H200)
    again = program_from(json.loads(json.dumps(record_of(numbers))), H200)
    assert simulate_program(again, H200).seconds == simulate_program(numbers, H200).seconds


def test_machines_from_files(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "H100"\nworkers = 64\ndram_rate = 1e12\n')
    mine = find_machine(tmp_path / "mine.toml")
    assert (mine.name, mine.workers, mine.dram_rate, mine.matrix_rate) == ("mine", 64, 1e12, find_machine("h100").matrix_rate)
    (tmp_path / "all.json").write_text(json.dumps({**dataclasses.asdict(H200), "name": "x"}))
    assert find_machine(str(tmp_path / "all.json")) == dataclasses.replace(H200, name="x")


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.toml", 'base = "H200"\nworkerz = 3', "unknown field 'workerz'"),
        ("a.toml", 'base = "H200"\nworkers = "many"', "field 'workers' is 'many'"),
        ("a.toml", "workers = 3", "needs fast_bytes, cache_bytes"),
        ("a.json", "[1", "a.json: "),
        ("a.json", "[1]", "a machine is a table"),
    ],
)
def test_errors_in_machine_files(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TargetError, match=message):
        find_machine(tmp_path / name)


def test_unknown_machines_are_named() -> None:
    with pytest.raises(TargetError, match="unknown machine 'B200'; known: h200, h100, a100"):
        find_machine("B200")
    with pytest.raises(TargetError, match="No such file"):
        find_machine("nowhere.toml")
