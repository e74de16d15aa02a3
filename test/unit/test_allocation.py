"""The integer program that deals out multiprocessors, and the times of the modes that it is compared with."""

import dataclasses
import itertools
import math
import random
import time

import pytest

from kitsune_mlir.machine.rates import LAUNCH_GAP
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.modes.choice import MOST_IN_ONE, choose, may_be_spatial, scaled
from kitsune_mlir.passes.modes.times import MOST_STAGES, launches_of, limits_of, separate_seconds, temporal_seconds
from kitsune_mlir.passes.spatial.allocation import (
    CHOICES,
    Allocation,
    Budget,
    Flow,
    Stage,
    allocate,
    least_seconds,
    worker_choices,
)

H200 = Budget(132, 4.3e12, 7e12, 3.1e12, 9 << 20, 50 << 20, 1e-6)
US = 1e-6


def stage(name: str = "s", tiles: int = 1000, first: float = 3 * US, step: float = 2 * US, **others: float) -> Stage:
    return Stage(name, tiles, first, step, **others)  # type: ignore[arg-type]


def solved(stages: list[Stage], flows: list[Flow], budget: Budget = H200) -> Allocation:
    found = allocate(stages, flows, budget)
    assert isinstance(found, Allocation), found
    assert sum(found.workers) <= budget.workers and min(found.workers) >= 1
    return found


def test_twice_the_work_gets_twice_the_multiprocessors():
    found = solved([stage("a", 2000), stage("b", 1000)], [Flow(0, 1, 1e6, 1e3, False)])
    assert found.workers[0] / found.workers[1] == pytest.approx(2, rel=0.1)
    assert found.limits[0][0].endswith(("of a", "of b"))


def test_one_tile_needs_one_multiprocessor():
    found = solved([stage("a", 1), stage("b", 1000)], [Flow(0, 1, 1e3, 1e3, False)])
    assert found.workers[0] == 1 and found.workers[1] >= 125


def test_as_good_as_trying_everything():
    """Three stages on a small machine, every allocation by hand."""
    budget = dataclasses.replace(H200, workers=12)
    stages = [stage("a", 40), stage("b", 9, first=8 * US, step=7 * US), stage("c", 25, step=1 * US)]
    for whole in itertools.product((True, False), repeat=2):
        flows = [Flow(0, 1, 1e3, 1e2, whole[0]), Flow(1, 2, 1e3, 1e2, whole[1])]

        def last(workers: tuple[int, ...], flows: list[Flow] = flows) -> float:
            begun, done = [0.0], [stages[0].seconds(workers[0])]
            for n, flow in enumerate(flows, 1):
                start = (done[-1] if flow.whole else begun[-1] + stages[n - 1].first) + budget.hand_off
                end = start + stages[n].seconds(workers[n])
                begun.append(start)
                done.append(max(end, done[-1] + budget.hand_off + stages[n].first))
            return max(done)

        best = min(last(w) for w in itertools.product(range(1, 11), repeat=3) if sum(w) <= 12)
        assert solved(stages, flows, budget).seconds <= best * 1.02


def test_memory_bounds_the_time_and_is_named():
    found = solved([stage("a", 500, dram_bytes=4e8), stage("b", 500)], [Flow(0, 1, 1e6, 1e3, False)])
    assert found.limits[0] == ("DRAM bandwidth", pytest.approx(4e8 / 4.3e12))
    assert found.seconds == pytest.approx(4e8 / 4.3e12, rel=0.01)
    assert found.limits[1][1] < found.limits[0][1]


def test_pipes_are_separate():
    stages = [stage("a", 500, tensor=0.02, vector=0.001), stage("b", 500, tensor=0.001, vector=0.02)]
    limits = dict(solved(stages, [Flow(0, 1, 1e6, 1e3, False)]).limits)
    assert limits["tensor cores"] == pytest.approx(0.021 / 132) and limits["SIMT pipes"] == pytest.approx(0.021 / 132)


def test_large_edges_go_through_rings_that_fit():
    stages = [stage(name, 4000) for name in "abc"]
    flows = [Flow(0, 1, 4e8, 65536, False), Flow(1, 2, 4e8, 65536, False)]
    found = solved(stages, flows)
    assert sum(depth == 0 for depth in found.depths) <= 1  # both through DRAM would take 372 us, the stages 197
    held = sum(d * f.tile_bytes * found.workers[f.producer] for d, f in zip(found.depths, flows, strict=True))
    assert held <= H200.ring_bytes
    tight = dataclasses.replace(H200, ring_bytes=1 << 20)
    held = sum(
        d * f.tile_bytes * w
        for f, d, w in zip(flows, solved(stages, flows, tight).depths, solved(stages, flows, tight).workers, strict=False)
    )
    assert held <= tight.ring_bytes


def test_what_cannot_be_allocated_is_told():
    small = dataclasses.replace(H200, workers=2)
    assert allocate([stage()] * 3, [], small) == "3 stages cannot own 2 multiprocessors"


@pytest.mark.parametrize("seed", range(3))
def test_64_stages_in_two_seconds(seed: int):
    r = random.Random(seed)
    stages = [stage(f"s{n}", r.choice((1, 64, 500, 4096)), r.uniform(2, 9) * US, r.uniform(0.5, 6) * US) for n in range(64)]
    flows = [Flow(r.randrange(max(0, n - 4), n), n, 1e6, 8192, r.random() < 0.2) for n in range(1, 64)]
    start = time.process_time()
    found = solved(stages, flows)
    assert time.process_time() - start < 2
    assert found.seconds > 0 and len(found.workers) == 64


@pytest.mark.parametrize("seed", range(6))
def test_no_allocation_is_faster_than_the_bound(seed: int):
    r = random.Random(seed)
    count = r.choice((2, 5, 12))
    stages = [stage(f"s{n}", r.choice((1, 7, 64, 500)), r.uniform(2, 9) * US, r.uniform(0.5, 6) * US) for n in range(count)]
    flows = [Flow(r.randrange(n), n, 1e6, 8192, r.random() < 0.4) for n in range(1, count)]
    assert 0 < least_seconds(stages, flows, H200) <= solved(stages, flows).seconds
    assert least_seconds(stages, flows, dataclasses.replace(H200, workers=count - 1)) == math.inf


def test_layers_one_after_the_other_are_not_dealt_out():
    """What the bound knows without the solver: each of 60 stages waits for the one before, whoever has the multiprocessors."""
    stages = [stage(f"s{n}", 132, 4 * US, 3 * US) for n in range(60)]
    for whole in (True, False):
        flows = [Flow(n, n + 1, 1e6, 8192, whole) for n in range(59)]
        seconds = {"temporal": temporal_seconds(stages, flows, H200), "separate": launches_of(stages, flows, H200).seconds}
        assert not may_be_spatial(stages, flows, H200, seconds)
    apart = [stage(f"s{n}", 1, 40 * US, 40 * US) for n in range(60)]
    seconds = {"temporal": temporal_seconds(apart, [], H200) * 60, "separate": 60 * 40 * US}
    assert may_be_spatial(apart, [], H200, seconds)


def test_long_launches_win_by_what_they_cost():
    """A hundredth of 5 ms is more than 10 launches take to start; of 100 us it is not, and 4 % may be the model's error."""
    assert choose({"temporal": 5e-3, "separate": 4.95e-3}, launches=10) == "separate"
    assert choose({"temporal": 5e-3, "separate": 4.95e-3}, launches=20) == "temporal"
    assert choose({"temporal": 5e-3, "separate": 4.95e-3}) == "temporal"
    assert choose({"temporal": 100 * US, "separate": 99 * US}, launches=2) == "temporal"
    assert choose({"temporal": 100 * US, "separate": 95 * US}, launches=20) == "separate"


def test_choices_of_workers_are_those_that_change_the_rounds():
    assert worker_choices(6, 132) == [1, 2, 3, 6]
    many = worker_choices(100_000, 132)
    assert len(many) <= CHOICES + 1 and many[0] == 1 and many[-1] >= 131
    rounds = [math.ceil(500 / w) for w in worker_choices(500, 132)]
    assert rounds == sorted(set(rounds), reverse=True)


def test_a_chain_of_one_wave_layers_gains_nothing_from_either():
    """Launches with programmatic dependence cost a hand-off and no more: the model must not promise what was not measured."""
    stages = [stage(f"l{n}", 128, 6 * US, 5 * US) for n in range(4)]
    flows = [Flow(n, n + 1, 1e6, 1e4, True) for n in range(3)]
    one = temporal_seconds(stages, flows, H200)
    several = separate_seconds(stages, H200)
    assert one == pytest.approx(4 * 6 * US + 3 * US) and several == pytest.approx(4 * 6 * US + 3 * LAUNCH_GAP)
    assert choose({"temporal": one, "separate": several}) == "temporal"


def test_independent_branches_and_waves_overlap_in_one_kernel():
    stages = [stage("a", 66, 6 * US), stage("b", 66, 6 * US)]
    assert temporal_seconds(stages, [], H200) == pytest.approx(6 * US)
    waves = [stage("a", 66 * 3, 4 * US, 4 * US), stage("b", 66 * 3, 4 * US, 4 * US)]
    rows = temporal_seconds(waves, [Flow(0, 1, 1e6, 1e3, False)], H200)
    assert rows < min(temporal_seconds(waves, [Flow(0, 1, 1e6, 1e3, True)], H200), separate_seconds(waves, H200))


def test_posts_after_atomics_speak_for_separate_launches():
    """A graph network's edges: seven tiles a block, each of which waits for its additions before it posts."""
    edges = stage("edges", 7 * 132, 7 * US, 6 * US, posting=2 * US)
    nodes = stage("nodes", 157, 7 * US, 6 * US)
    flows = [Flow(0, 1, 5e6, 1e4, True)]
    budget = dataclasses.replace(H200, hand_off=2.5 * US)
    one, several = temporal_seconds([edges, nodes], flows, budget), separate_seconds([edges, nodes], budget)
    assert one - several == pytest.approx(7 * 2 * US + 2.5 * US - LAUNCH_GAP)
    assert choose({"temporal": one, "separate": several}) == "separate"


def test_a_launch_holds_stages_that_overlap_and_cuts_are_where_everything_is_waited_for():
    """Three products of one input fill the machine together; what needs all of them gains nothing from being with them."""
    stages = [*(stage(f"p{n}", 44, 5 * US) for n in range(3)), stage("all", 96, 5 * US)]
    flows = [Flow(n, 3, 1e6, 1e4, True) for n in range(3)]
    found = launches_of(stages, flows, H200)
    assert found.numbers == (0, 0, 0, 1)
    assert found.seconds == pytest.approx(5 * US + LAUNCH_GAP + 5 * US)
    assert found.seconds < min(temporal_seconds(stages, flows, H200), separate_seconds(stages, H200))


def test_launches_are_two_at_least_and_none_is_too_long():
    many = [stage(f"s{n}", 132, 2 * US) for n in range(3 * MOST_STAGES)]
    numbers = launches_of(many, [], dataclasses.replace(H200, hand_off=0.0)).numbers
    assert numbers[0] == 0 and all(b - a in (0, 1) for a, b in zip(numbers, numbers[1:], strict=False))
    assert max(numbers.count(n) for n in numbers) <= MOST_STAGES
    assert launches_of(many[:2], [], H200).numbers == (0, 1)
    assert launches_of(many[:1], [], H200).numbers == (0,)


def test_atomics_are_waited_for_inside_a_launch_only():
    edges, nodes = stage("edges", 132, 7 * US, posting=2 * US), stage("nodes", 132, 7 * US)
    flows = [Flow(0, 1, 5e6, 1e4, True)]
    cut, one = launches_of([edges, nodes], flows, H200), temporal_seconds([edges, nodes], flows, H200)
    assert cut.seconds == pytest.approx(14 * US + LAUNCH_GAP) and one == pytest.approx(16 * US + H200.hand_off)
    once = [dataclasses.replace(edges, posting=0.0, settling=3 * US), nodes]  # one post a block, for all of its tiles
    assert launches_of(once, flows, H200).seconds == cut.seconds
    assert temporal_seconds(once, flows, H200) == pytest.approx(17 * US + H200.hand_off)


def test_a_short_launch_that_reads_arguments_alone_joins_the_next_one():
    gather = stage("gather", 1875, 4.6 * US, 4.0 * US, dram_bytes=38e6, l2_bytes=186e6, crowd=4)
    cast = stage("cast", 1, 1.5 * US, 0.9 * US)
    product = stage("product", 938, 10.7 * US, 6.9 * US, dram_bytes=62e6, l2_bytes=434e6)
    flows = [Flow(0, 2, 92 << 20, 49_152.0, False), Flow(1, 2, 512, 512.0, True)]
    budget = dataclasses.replace(H200, hand_off=1.5 * US)
    found = launches_of([gather, cast, product], flows, budget)
    assert found.numbers == (0, 1, 1)
    reading = launches_of([gather, cast, product], [*flows, Flow(0, 1, 512, 512.0, True)], budget)
    assert reading.numbers == (0, 1, 2) and 0 < found.seconds - reading.seconds < US
    sharing = launches_of([gather, dataclasses.replace(cast, crowd=4), product], flows, budget)
    assert sharing.numbers == (0, 0, 1) and sharing.seconds <= found.seconds


def test_streams_of_weights_hand_over_early():
    stages = [stage("a", 132, 10 * US), stage("b", 132, 10 * US)]
    budget = dataclasses.replace(H200, hand_off=2.5 * US)
    times = [temporal_seconds(stages, [Flow(0, 1, 1e4, 1e2, True, streamed)], budget) for streamed in (True, False)]
    assert times == [pytest.approx(20 * US + 1 * US), pytest.approx(20 * US + 2.5 * US)]


def test_another_mode_must_be_clearly_faster():
    assert choose({"temporal": 10.0, "separate": 9.8}) == "temporal"
    assert choose({"temporal": 10.0, "separate": 8.0}) == "separate"
    assert choose({"temporal": 10.0, "separate": 8.0, "spatial": 7.5}) == "separate"
    assert choose({"temporal": 10.0, "separate": 8.0, "spatial": 6.0}) == "spatial"
    assert choose({"temporal": 10.0}) == "temporal"


def test_one_launch_does_not_hold_any_number_of_stages():
    assert choose({"temporal": 10.0, "separate": 12.0}, MOST_IN_ONE) == "temporal"
    assert choose({"temporal": 10.0, "separate": 12.0, "spatial": 5.0}, MOST_IN_ONE + 1) == "separate"


def test_the_limits_of_a_temporal_pipeline_come_in_order():
    limits = limits_of([stage(dram_bytes=4.3e9)], [], H200)
    assert limits[0] == ("DRAM bandwidth", pytest.approx(1e-3)) and limits[1][0] == "first tiles and hand-offs"


def test_measured_times_replace_the_models():
    h200 = find_target("h200")
    slow = scaled(stage(tiles=264), 50 * US, h200)
    assert slow.seconds(132) == pytest.approx(50 * US) and slow.first / slow.step == pytest.approx(1.5)
    assert scaled(stage(), None, h200) == stage() == scaled(stage(), -1e-6, h200)


def test_a_long_stream_has_a_launch_for_itself_where_blocks_share_multiprocessors():
    alone = Stage("update", 40_000, 5e-6, 4e-6, dram_bytes=4e9, l2_bytes=4.7e9, crowd=4)
    stages = [Stage("first", 132, 5e-6, 4e-6), alone, Stage("last", 132, 5e-6, 4e-6)]
    flows = [Flow(0, 1, 1e6, 1e3, True), Flow(1, 2, 1e6, 1e3, True)]
    found = launches_of(stages, flows, H200)
    assert found.numbers == (0, 1, 2) and found.seconds < 1.1 * 4e9 / H200.dram_rate + 20e-6
    # One block each is what its tiles take, whose loads nothing hides.
    few = launches_of([stages[0], dataclasses.replace(alone, crowd=1), stages[2]], flows, H200)
    assert few.seconds > 1.2 * found.seconds
    # Several turns are one where blocks share, whether the cache holds it or not; of one turn nothing is saved.
    gather = dataclasses.replace(alone, tiles=528, dram_bytes=2e7, l2_bytes=2e7)
    turns = launches_of([stages[0], gather], flows[:1], H200)
    assert turns.numbers == (0, 1)
    assert turns.seconds < 0.7 * launches_of([stages[0], dataclasses.replace(gather, crowd=1)], flows[:1], H200).seconds
    short = dataclasses.replace(gather, tiles=132)
    assert launches_of([stages[0], short], flows[:1], H200) == launches_of(
        [stages[0], dataclasses.replace(short, crowd=1)], flows[:1], H200
    )
