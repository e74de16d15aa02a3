"""Which plan is tried after one that fails: smaller stages, launches of their own, or none."""

from __future__ import annotations

import pytest

from kitsune_mlir.cheaper_plans import MOST_PLANS, SPILLED, Planning
from kitsune_mlir.errors import AssemblyTimeout, BrokenOffer
from kitsune_mlir.machine.target import find_target

HOPPER = find_target("sm_90a")


def stage(name: str, **ops: int) -> dict:
    return {"name": name, "ops": ops}


def late(*stages: str) -> AssemblyTimeout:
    return AssemblyTimeout("k", 5.0, 5.0, stages)


def test_the_largest_part_is_halved_until_nothing_is_left():
    stages = [stage("map_0", generic=9), stage("product_1", product=4, generic=2), stage("product_2", product=7)]
    names = tuple(s["name"] for s in stages)
    planning = Planning("auto").cheaper(late(*names), stages, "temporal")
    assert (planning.mode, planning.cut) == ("separate", ())
    found = []
    with pytest.raises(AssemblyTimeout, match="before: kernel 'k' took ptxas more than 5 s") as caught:
        while True:
            planning = planning.cheaper(late("product_2"), stages, "separate")  # as if cutting changed nothing
            found.append(planning.cut[-1])
    assert found == ["product_2:3", "product_2:1"] and len(str(caught.value).splitlines()) == 4
    planning = Planning("spatial").cheaper(late("map_0", "product_1"), stages, "spatial")
    assert planning.cut == ("product_1:2",)  # products are the most code
    assert Planning("spatial").cheaper(late("map_0"), stages, "spatial").cut == ("map_0:4",)
    with pytest.raises(AssemblyTimeout):
        Planning("auto").cheaper(late(), stages, "temporal")


@pytest.mark.parametrize("mode", ["auto", "separate"])
def test_a_launch_of_several_stages_becomes_several_before_its_stages_are_cut(mode: str):
    stages = [stage("map_0", generic=9), stage("product_1", product=4)]
    planning = Planning(mode).cheaper(late("map_0", "product_1"), stages, "separate")
    assert (planning.mode, planning.cut, len(planning.replanned)) == (mode, (), 1)
    assert planning.cheaper(late("map_0", "product_1"), stages, "separate").cut == ("product_1:2",)  # it could not


def test_only_so_many_plans_are_tried():
    planning = Planning("separate")
    with pytest.raises(AssemblyTimeout) as caught:
        for number in range(100):
            planning = planning.cheaper(late(f"map_{number}"), [stage(f"map_{number}", generic=2)], "separate")
    assert len(planning.replanned) == MOST_PLANS == str(caught.value).count("before:")


def test_what_spills_much_is_made_of_smaller_stages():
    def kernel(bytes_: int, *tasks: str) -> dict:
        return {"name": "k", "registers": 168, "spill_store_bytes": bytes_, "tasks": tasks}

    stages = [stage("map_0", generic=2), stage("product_1", product=3, generic=5), stage("reduce_2", generic=1)]
    planning = Planning("auto")
    assert planning.lighter([kernel(SPILLED - 1, "product_1")], stages, HOPPER) is None
    assert planning.lighter([kernel(SPILLED, "reduce_2")], stages, HOPPER) is None  # of one op
    smaller = planning.lighter([kernel(0, "map_0"), kernel(100, "product_1", "reduce_2")], stages, HOPPER)
    assert smaller is not None and smaller.cut == ("product_1:1",)
    assert "kernel 'k' spills 100 bytes a thread: planned again with at most 1 product" in smaller.replanned[0]
    assert smaller.lighter([kernel(100, "product_1")], stages, HOPPER) is None  # as if cutting changed nothing


def test_many_stages_may_spill_a_little_each():
    stages = [stage(f"map_{number}", generic=2) for number in range(20)]
    names = [one["name"] for one in stages]
    spilling = {"name": "k", "registers": 168, "tasks": names}
    assert Planning("auto").lighter([{**spilling, "spill_store_bytes": 16 * 20 - 1}], stages, HOPPER) is None
    assert Planning("auto").lighter([{**spilling, "spill_store_bytes": 16 * 20}], stages, HOPPER) is not None


def test_of_many_stages_only_a_stage_that_takes_its_share_is_made_lighter():
    """Equal launches count together; a program of few stages is planned again for any kernel."""

    def spilling(name: str, *tasks: str) -> dict:
        return {"name": name, "registers": 168, "spill_store_bytes": 100, "tasks": tasks}

    def held(count: int) -> list[dict]:
        figures = {"operations": 10**9, "reads": 10**6, "writes": [10**6]}
        return [{**stage(f"map_{number}", generic=2), **figures} for number in range(count)]

    def cut(kernels: list[dict], count: int) -> tuple[str, ...]:
        plan = Planning("separate").lighter(kernels, held(count), HOPPER)
        return () if plan is None else plan.cut

    assert cut([spilling("k", "map_0")], 96) == ("map_0:1",)
    assert cut([spilling("k", "map_0")], 100) == ()
    assert cut([spilling("k", f"map_{number}") for number in range(4)], 100) == ()
    assert cut([spilling("k", f"map_{number}") for number in range(6)], 100) == ("map_0:1",)
    assert cut([spilling("k", *(f"map_{number}" for number in range(9)))], 100) == (), "whose code spills is not known"
    assert cut([spilling("j", "map_9"), *(spilling("k", f"map_{number}") for number in range(6))], 100) == ("map_0:1",)


def test_of_offers_that_break_one_stage_is_cut_and_what_cannot_be_is_settled():
    """Two cuts of one plan could not both be found: the first gives stages other names."""
    maps = [stage(name, generic=1) for name in ("map_0", "map_3")]
    stages = [*maps, stage("product_1", product=4), stage("product_2", product=8)]
    others = [BrokenOffer(name, "chain", "no") for name in ("product_1", "product_2", "map_3")]
    plan = Planning("separate").without(BrokenOffer("map_0", "chain", "no", others), stages)
    assert plan.cut == ("product_1:2",) and plan.settled == {"map_0"}
    assert [sentence.count("declines") for sentence in plan.replanned] == [1]
    every = Planning("separate").without(BrokenOffer("map_0", "chain", "no", others[-1:]), stages)
    assert every.cut == () and every.settled == {"map_0", "map_3"}


def test_what_spills_more_than_all_registers_is_cut_in_as_many_parts():
    def cut(bytes_: int, ops: int) -> tuple[str, ...]:
        kernel = {"name": "k", "registers": 168, "spill_store_bytes": bytes_, "tasks": ("map_0",)}
        plan = Planning("auto").lighter([kernel], [stage("map_0", generic=ops)], HOPPER)
        assert plan is not None
        return plan.cut

    assert cut(4 * 168 - 1, 128) == cut(SPILLED, 128) == ("map_0:64",)
    assert cut(3 * 4 * 168, 128) == ("map_0:32",)
    assert cut(10360, 128) == ("map_0:8",)
    assert cut(10360, 3) == ("map_0:1",)
