"""Offsets in the arena: what may share bytes, and what a writer then waits for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_mlir import ir

from kitsune_mlir.dialects.edges import stages_of
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.arena import Interval, Packing, Rule, alive, last_tenants, packings
from kitsune_mlir.passes.base import PassFailure
from kitsune_mlir.passes.check_progress import CheckProgress
from kitsune_mlir.passes.materialize import Materialize
from kitsune_mlir.passes.place_buffers import ALIGNMENT, PlaceBuffers
from kitsune_mlir.passes.synchronize import Synchronize
from test.programs.planned import MLP, parse, plan, rows


def interval(size: int, first: int, last: int) -> Interval:
    return Interval(first, 0, size, first, last)


def later(slack: int) -> Rule:
    return lambda mine, other: mine.first > other.last + slack


def take(packing: Packing, intervals: list[Interval]) -> int:
    """Gives the intervals their offsets."""
    for one, offset in zip(intervals, packing.offsets, strict=True):
        one.offset = offset
    return packing.total


def allocate(intervals: list[Interval], slack: int) -> int:
    """The bytes of the smallest packing, which the intervals get."""
    return take(packings(intervals, later(slack))[-1], intervals)


def test_nothing_needs_nothing() -> None:
    assert allocate([], 0) == 0 == alive([])


def test_buffers_that_are_never_alive_together_share_bytes() -> None:
    a, b, c = interval(256, 0, 1), interval(256, 1, 2), interval(256, 2, 3)
    assert allocate([a, b, c], 0) == 512
    assert a.offset == c.offset != b.offset


def test_a_buffer_is_alive_in_the_stages_of_its_writer_and_its_last_reader() -> None:
    """Stage 1 reads a while it writes b."""
    a, b = interval(256, 0, 1), interval(256, 1, 2)
    assert allocate([a, b], 0) == 512


@pytest.mark.parametrize(("slack", "total"), [(0, 512), (1, 768), (2, 1024), (9, 1536)])
def test_slack_keeps_stages_between(slack: int, total: int) -> None:
    """Six buffers in a chain: with slack s, s + 2 of them are kept apart."""
    assert allocate([interval(256, n, n + 1) for n in range(6)], slack) == total


def test_a_small_buffer_fits_in_a_gap() -> None:
    big, small, late = interval(1024, 0, 5), interval(256, 0, 1), interval(512, 3, 5)
    after = interval(256, 3, 5)
    assert allocate([big, small, late, after], 0) == 1024 + 512 + 256
    assert small.offset in (late.offset, after.offset)


def placed(offset: int, size: int, first: int, last: int) -> Interval:
    return Interval(first, 0, size, first, last, offset)


def test_only_the_last_tenants_of_a_place_are_waited_for() -> None:
    mine = placed(0, 1024, 9, 10)
    early, left, right = placed(0, 1024, 0, 1), placed(0, 512, 3, 4), placed(512, 256, 5, 6)
    live, elsewhere, later = placed(0, 256, 8, 9), placed(2048, 256, 0, 1), placed(0, 256, 12, 13)
    # The last quarter still shows what lay there first.
    assert last_tenants(mine, [early, left, right, live, elsewhere, later, mine]) == [right, left, early]
    full = placed(768, 256, 2, 3)
    assert last_tenants(mine, [early, left, right, full]) == [right, left, full]
    assert last_tenants(mine, [early]) == [early] and last_tenants(mine, []) == []


INTERVALS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 12), st.integers(0, 6)).map(
        lambda t: interval(t[0] * ALIGNMENT, t[1], t[1] + t[2])
    ),
    max_size=24,
)


@settings(max_examples=150, deadline=None)
@given(INTERVALS, st.integers(0, 3))
def test_live_buffers_never_overlap(intervals: list[Interval], slack: int) -> None:
    found = packings(intervals, later(slack))
    assert [p.total for p in found] == sorted({p.total for p in found}, reverse=True)
    total = take(found[-1], intervals)
    for item in intervals:
        assert 0 <= item.offset <= total - item.size and item.offset % ALIGNMENT == 0
    for a, b in itertools.combinations(intervals, 2):
        together = a.first <= b.last + slack and b.first <= a.last + slack
        assert not together or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    # No better than what is alive at one time, no worse than everything side by side.
    at_once = [sum(i.size for i in intervals if i.first <= t <= i.last) for t in range(20)]
    assert max(at_once) == alive(intervals) <= total <= sum(i.size for i in intervals)


def test_other_orders_fill_what_the_largest_first_leave() -> None:
    """The largest two lie one upon the other, the third at the bottom: the fourth, alive with two of them, lies above all."""
    first, second, third = interval(600, 2, 3), interval(500, 0, 1), interval(400, 1, 2)
    fourth = interval(700, 3, 4)
    sizes = [packing.total for packing in packings([first, second, third, fourth], later(0))]
    assert (sizes[0], sizes[-1]) == (1700, 1300) and alive([first, second, third, fourth]) == 1300


# Passes over whole stage graphs.


def stages(module: ir.Module) -> list[ir.Operation]:
    pipelines = [op for op in walk(module.operation) if op.name == "kitsune.pipeline"]
    return stages_of(pipelines[0])


def names(stage: ir.Operation, attribute: str) -> list[str]:
    return [ir.StringAttr(a).value for a in ir.ArrayAttr(stage.attributes[attribute])]


def offsets(stage: ir.Operation) -> list[int]:
    return list(ir.DenseI64ArrayAttr(stage.attributes["offsets"]))


def test_results_of_the_pipeline_take_no_bytes() -> None:
    module = plan(MLP, rows, slack=9)
    leaving = [s for s in stages(module) if -1 in offsets(s)]
    assert len(leaving) == 2 and all(offsets(s) == [-1] for s in leaving)
    placed = [offsets(s)[0] for s in stages(module) if s not in leaving]
    assert len(set(placed)) == len(placed) and all(o % ALIGNMENT == 0 for o in placed)
    assert all(names(s, "after") == [] for s in stages(module))


def test_a_writer_waits_for_the_readers_of_what_lay_there() -> None:
    module = plan(MLP, rows, slack=0)
    by_offset: dict[int, list[ir.Operation]] = {}
    for stage in stages(module):
        if offsets(stage) != [-1]:
            by_offset.setdefault(offsets(stage)[0], []).append(stage)
    shared = [group for group in by_offset.values() if len(group) > 1]
    assert shared
    assert all(names(group[0], "after") == [] and names(group[1], "after") != [] for group in shared)


def test_the_limit_names_the_largest_edge() -> None:
    with pytest.raises(PassFailure, match=r"intermediates need \d+ bytes, the limit is 512; the largest edge is result 0"):
        PlaceBuffers(limit=512).run(plan(MLP, rows).operation)


def mapped(name: str, source: str, rows_: int, out: int, map_: str = "#id") -> str:
    """A stage %name that copies rows of %source, a tensor of `rows_` rows, through `map_` into `out` rows; tiles of one row."""
    type_ = f"tensor<{out}x64xf32>"
    return f"""
    %{name} = "kitsune.stage"() ({{
      %e = tensor.empty() : {type_}
      %r = linalg.generic {{indexing_maps = [{map_}, #id], iterator_types = ["parallel", "parallel"]}}
          ins(%{source} : tensor<{rows_}x64xf32>) outs(%e : {type_}) {{
      ^bb0(%i: f32, %o: f32):
        linalg.yield %i : f32
      }} -> {type_}
      "kitsune.yield"(%r) : ({type_}) -> ()
    }}) {{sym_name = "{name}", tile = array<i64: 1, 64>}} : () -> {type_}"""


def chain(step: str) -> ir.Module:
    """a -> b -> c -> d, where c may lie where a lay; b reads rows of a through the map `step`."""
    return parse(
        f"""#id = affine_map<(i, j) -> (i, j)>
    func.func @main(%x: tensor<7x64xf32>) -> tensor<4x64xf32> {{
      %p = "kitsune.pipeline"() ({{
        {mapped("a", "x", 7, 7)}
        {mapped("b", "a", 7, 7 if step == "#id" else 4, step)}
        {mapped("c", "b", 7 if step == "#id" else 4, 4, "#id" if step != "#id" else "affine_map<(i, j) -> (i * 2, j)>")}
        {mapped("d", "c", 4, 4)}
        "kitsune.yield"(%d) : (tensor<4x64xf32>) -> ()
      }}) {{sym_name = "main_p0"}} : () -> tensor<4x64xf32>
      return %p : tensor<4x64xf32>
    }}"""
    )


def test_a_reader_that_has_waited_for_all_of_a_buffer_stands_for_its_writer() -> None:
    module = chain("#id")
    PlaceBuffers(slack=0).run(module.operation)
    a, _, c, _ = stages(module)
    assert offsets(a) == offsets(c) and names(c, "after") == ["b"]


def test_a_writer_whose_tiles_nobody_reads_is_waited_for() -> None:
    """b reads every second row of a, and waits for no more: some tiles of a may run when all of b is done."""
    module = chain("affine_map<(i, j) -> (i * 2, j)>")
    PlaceBuffers(slack=0).run(module.operation)
    a, _, c, _ = stages(module)
    assert offsets(a) == offsets(c) and names(c, "after") == ["a", "b"]
    Synchronize().run(module.operation)
    Materialize().run(module.operation)
    CheckProgress().run(module.operation)


def test_bytes_are_shared_only_with_what_is_waited_for_in_any_case() -> None:
    """Two chains, a stage of each at a time: a buffer lies where one of its own chain lay, though the other's ended first."""
    chains = [interval(256, n, n + 2) for n in range(8)]
    assert packings(chains)[-1].total == 3 * 256
    found = packings(chains, lambda mine, other: mine.first % 2 == other.first % 2)[-1]
    assert found.total == 4 * 256 and [at // 256 % 4 for at in found.offsets] == [0, 1, 2, 3] * 2


def two_chains(launches: str) -> ir.Module:
    """x -> a -> b -> c -> e, y -> k -> l -> e, in the order a, b, k, c, l, e, each in the launch with its digit."""
    number = dict(zip("abkcle", launches, strict=True))
    made = {"a": "x", "b": "a", "k": "y", "c": "b", "l": "k", "e": "c"}
    bodies = [
        mapped(name, source, 7, 7).replace(f'sym_name = "{name}"', f'sym_name = "{name}", launch = {number[name]}')
        for name, source in made.items()
    ]
    one = "ins(%c : tensor<7x64xf32>)"
    bodies[-1] = bodies[-1].replace("[#id, #id]", "[#id, #id, #id]").replace("(%i: f32,", "(%i: f32, %i1: f32,")
    bodies[-1] = bodies[-1].replace(one, "ins(%c, %l : tensor<7x64xf32>, tensor<7x64xf32>)")
    return parse(
        f"""#id = affine_map<(i, j) -> (i, j)>
    func.func @main(%x: tensor<7x64xf32>, %y: tensor<7x64xf32>) -> tensor<7x64xf32> {{
      %q = "kitsune.pipeline"() ({{
        {"".join(bodies)}
        "kitsune.yield"(%e) : (tensor<7x64xf32>) -> ()
      }}) {{sym_name = "main_p0", mode = "separate"}} : () -> tensor<7x64xf32>
      return %q : tensor<7x64xf32>
    }}"""
    )


@pytest.mark.parametrize(
    ("launches", "places"),
    [
        ("012345", "01021"),  # k lies where a lay: the launch of b, which read that, has ended
        ("011223", "01203"),  # k would have to wait for b in their launch; c and l come after that
    ],
)
def test_launches_that_follow_each_other_share_bytes(launches: str, places: str) -> None:
    module = two_chains(launches)
    PlaceBuffers().run(module.operation)
    found = [offsets(s)[0] for s in stages(module)][:-1]
    assert "".join(str(offset // (7 * 256)) for offset in found) == places
    Synchronize().run(module.operation)
    Materialize().run(module.operation)
    CheckProgress().run(module.operation)
