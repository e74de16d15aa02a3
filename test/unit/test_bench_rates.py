"""Measuring rates without a GPU: kernels compile, what they leave is checked, a record gives back what it was made from."""

import numpy as np
import pytest
from torch_mlir import ir

from bench.rate_findings import RATE, TIME, findings, in_use, table
from bench.rate_kernels import BLOCKS, NOTES, PROBES, STRIDE
from bench.rates import COUNTERS, DEPTHS, TILES, TURNS, complaint, noted, products
from bench.rates import NOTES as NOTED
from bench.rates import STRIDE as APART
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.rates import DISAGREEMENTS


@pytest.mark.parametrize("name", [name for name in PROBES if not name.endswith(("_64k", "_96k"))])
def test_kernels_fit_registers_and_have_a_multiprocessor_for_themselves(name):
    probe = PROBES[name]
    with ir.Context(), ir.Location.unknown():
        made = probe.make(probe).compile()
    assert all(kernel.spill_store_bytes == 0 for kernel in made.cubin.kernels.values())
    assert 114 << 10 < made.manifest["shared_bytes"] <= 227 << 10
    assert all(1 <= grid <= BLOCKS for grid in probe.grids)


def test_the_device_s_side_knows_what_kernels_leave():
    assert (NOTED, APART) == (NOTES, STRIDE) and COUNTERS >= 2 * BLOCKS


def facts(name: str, **more) -> dict:
    probe = PROBES[name]
    return {**vars(probe), "kind": probe.make.__name__, **more}


def test_a_hand_off_that_came_too_early_is_seen():
    some = facts("hand_off_bulk", rounds=3)
    counters = np.array([3, 3, 4, 4, 0])
    memory = np.array([6.0, 6.0, 5.0, 5.0], np.float32).view(np.uint32) >> 16
    memory = np.repeat(memory << 16 | memory, 8).astype(np.int32)
    assert complaint(some, 4, counters, memory) is None
    assert complaint(some, 4, counters + 1, memory) == "posts are missing"
    memory[5] -= 1
    assert complaint(some, 4, counters, memory) == "a block read what was not written yet"


def test_an_exchange_is_added_up():
    some = facts("exchange_4_32k", rounds=5)
    seen = [sum(rank + number for rank in range(4) for number in range(5)) * (32 << 10) // 4 // 4] * 8
    assert complaint(some, 8, np.array(seen), None) is None
    assert complaint(some, 8, np.array([*seen[1:], 0]), None) == "sums are wrong"


def test_what_writes_leave():
    some = facts("writes", rounds=8)
    memory = np.zeros((BLOCKS, 4, some["bytes"] // 4), np.int32)
    memory[:7] = np.arange(4, 8)[None, :, None]
    assert complaint(some, 7, np.zeros(7), memory.reshape(-1)) is None
    assert complaint(some, 8, np.zeros(8), memory.reshape(-1)) == "not all was written"


def test_a_hop_is_what_is_left_of_a_round():
    # Two pairs, 10 rounds of 2000 ns at 2 cycles a nanosecond; a block's own work is 300 + 100 + 150 + 50 ns.
    notes = np.zeros((4, NOTES), np.int64)
    notes[:, 1], notes[:, 2], notes[:, 3:7] = 20_000, 40_000, np.array([300, 100, 150, 50]) * 2 * 10
    found = noted(facts("hand_off_product", rounds=10), notes)
    assert found["round"] == 2000 and found["clock"] == 2 and found["all"] == 2000
    assert [found[part] for part in ("hop", "load", "product", "finish", "settle")] == [400, 300, 100, 150, 50]


def kernel_case(grid: int, bytes: int, **notes: float) -> dict:
    return {"ok": True, "bytes": bytes, "grids": {str(grid): {note: {"median": value} for note, value in notes.items()}}}


def test_a_record_gives_back_what_it_was_made_from():
    hop = {"hop": 700.0, "p10": 650.0, "p90": 800.0, "load": 500.0, "product": 100.0, "finish": 300.0, "settle": 100.0}
    cases = {f"hand_off_{way}": kernel_case(BLOCKS, 0, **hop) for way in ("post", "tile", "product", "bulk")}
    cases["reads_tile"] = kernel_case(1, 16384, round=160.0)
    cases["reads_tile"]["grids"] |= kernel_case(BLOCKS, 16384, round=200.0, all=210.0)["grids"]
    for bytes in (0, 32 << 10, 64 << 10, 96 << 10):
        cases[f"exchange_2_{bytes >> 10}k"] = kernel_case(BLOCKS, bytes, round=900 + 2 * bytes / 50)
    for rows, cols in TILES:
        # A turn of 0.2 us, and one microsecond for 128 x 128 results.
        steps = {depth: 0.2 + rows * cols / 16384 + depth / 256 for depth in DEPTHS}
        times = {f"k{depth}_{turns}": {"median": 5 + steps[depth] * turns} for depth in DEPTHS for turns in TURNS}
        cases[f"step_{rows}x{cols}"] = {"ok": True, "microseconds": times}
    cases["writes"] = {"ok": False, "problem": "not all was written"}
    found = {each.quantity: each.value for each in findings(cases)}
    expected = {
        "from a post to the end of the wait for it (0.65 to 0.80 by the pair)": 0.7,
        "from the last store to another block's operands by TMA, stores by TMA": 1.3,
        "from a sum to another block's sum of it, stores by TMA": 1.7,
        "L2 to one multiprocessor, alone: TMA, boxes of a matrix": 102.4,
        "L2 to all multiprocessors: TMA, boxes of a matrix": 16384 * BLOCKS / 210,
        "2 blocks meet, without data": 0.9,
        "2 blocks meet, beside their partial results": 0.9,
        "partial results of 2 blocks, written and read, each": 50.0,
        "a tile of 128 x 128 more, sums of 64": 1.45,
        "a tile of 128 x 256 more, beside its products": 2.2,
        "from a tile to the next, beside products and what grows with the tile": 0.2,
    }
    assert {quantity: found[quantity] for quantity in expected} == pytest.approx(expected)
    assert table(cases)[-1] == "Failed: writes."


def test_rates_in_use_are_in_one_unit():
    assert in_use("POST", TIME) == pytest.approx(1e6 * rates.POST)
    assert in_use("MEET", TIME) == pytest.approx(1e6 * rates.MEET)
    assert in_use("MMA_LOAD_RATE", RATE) == pytest.approx(rates.MMA_LOAD_RATE / 1e3)
    assert in_use("ENGINES['mma'].load_rate", RATE) == 175 and in_use("Target.cache_rate", RATE) == 7000
    for each in DISAGREEMENTS:
        for name in each.used:
            if name != "DRAM_SHARE":
                assert any(0.01 < in_use(name, unit) < 1e5 for unit in (TIME, RATE) if fits(name, unit))


def fits(name: str, unit: str) -> bool:
    return not name.startswith("ENGINES") or (unit == TIME) == name.endswith("turn")


def test_programs_of_a_case_differ_in_what_is_measured():
    found = products()
    assert len(found) == len(TILES) * (len(DEPTHS) * len(TURNS) + 2)
    for (rows, cols), m, n, _ in found.values():
        assert (m // rows) * (n // cols) % (BLOCKS // 4) == 0
