"""Spatial programs: tasks are dealt out to their own share of the blocks, and results are those of temporal ones."""

import itertools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import block_id, grid_size
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import i32, select
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.kernel.spatial.shares import Share, ranges, shares_of
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.errors import CompileError
from test.emulators.block import Space
from test.emulators.kernel import Machine, launch
from test.gpu import cases, cases_bodies
from test.unit.test_gpu_executor import Emulated


def spatial(case: cases.Case, workers: list[int], shares: list[int] | None = None) -> cases.Case:
    """The case as a spatial program: the workers of each task, and where their shares begin if they do not just follow."""
    numbers = itertools.cycle(range(len(workers)))

    def place(found: re.Match) -> str:
        number = next(numbers)
        first = f", first = {shares[number]} : i64" if shares else ""
        return f"{found.group(0)}, workers = {workers[number]} : i64{first}"

    text = re.sub(r'engine = "\w+"', place, case.text)
    text = text.replace("kitsune.program,", 'kitsune.program, kitsune.mode = "spatial",')
    return cases.Case(case.name, text, case.inputs, case.results, case.reference, case.tolerance)


@pytest.mark.rotated(7)
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    "case",
    [
        spatial(cases.two_stages(20, 8, 5, 4), [3, 2]),
        spatial(cases.ladder(3, 64, 4, 8), [1, 2, 1, 3]),
        spatial(cases_bodies.everybody_waits(16, 4, 4, 3), [2, 1, 2]),
        spatial(cases.gather_scatter(35, 6, 3, 16), [2, 2, 2], [0, 0, 2]),
    ],
    ids=["two_stages", "ladder", "everybody_waits", "gather_scatter"],
)
def test_right_on_any_number_of_blocks_and_equal_to_temporal(case, blocks):
    emulated = Emulated(case, blocks)
    for _ in range(3):
        assert emulated.error() <= case.tolerance
    temporal = cases.Case(case.name, case.text.replace('"spatial"', '"temporal"'), *list(case.__dict__.values())[2:])
    other = Emulated(temporal, blocks)
    other.error()
    assert emulated.manifest.workers and not other.manifest.workers
    if "atomic" not in case.text:  # the order of atomic additions is free
        for one, two in zip(emulated.results, other.results, strict=True):
            assert (one.data == two.data).all()


def begins(shares: list[Share], blocks: int) -> list[tuple[int, int, int]]:
    """(begin, count, how many blocks find themselves in it) of each share, as a kernel computes them."""
    with new_context(), ir.Location.unknown():
        kernel = Kernel("k", ["pointer"], 32)
        with kernel.body() as (out,):
            for number, share in enumerate(sorted(set(shares))):
                found = ranges(shares, block_id(), grid_size())[share]
                at = offset(out, block_id() * (12 * len(set(shares))) + 12 * number)
                assert found.mine is not None
                for word, value in enumerate((block_id() - found.first, found.count, select(found.mine, i32(1), i32(0)))):
                    store(value, offset(at, 4 * word))
        machine, space = Machine(), Space(12 * len(set(shares)) * blocks, checked=False)
        needed: Any = SimpleNamespace(kernel="k", threads=32, shared_bytes=0, arrays=False)
        launch(machine, kernel.module.operation, needed, [machine.add(space)], blocks)
    count = len(set(shares))
    words = space.data.view(np.int32)[: blocks * count * 3].reshape(blocks, count, 3)
    assert (words[0, :, :2] == words[:, :, :2]).all()
    return [(int(words[0, n, 0]), int(words[0, n, 1]), int(words[:, n, 2].sum())) for n in range(count)]


@pytest.mark.parametrize("blocks", [3, 4, 7, 10, 20])
def test_shares_cover_all_blocks_without_overlap(blocks):
    shares = [Share(0, 5), Share(5, 2), Share(0, 5), Share(7, 3)]
    found = begins(shares, blocks)
    assert sum(count for _, count, _ in found) == blocks
    assert all(count == here >= 1 for _, count, here in found)
    if blocks % 10 == 0:
        assert [count for _, count, _ in found] == [5 * blocks // 10, 2 * blocks // 10, 3 * blocks // 10]


def test_fewer_blocks_than_shares_do_everything():
    assert begins([Share(0, 1), Share(1, 1), Share(2, 1)], 2) == [(0, 2, 2)] * 3


@pytest.mark.parametrize(
    "workers, shares, message",
    [([3, 0], None, "has no 'workers'"), ([3, 3], [0, 2], "overlap")],
)
def test_what_is_no_assignment_is_refused(workers, shares, message):
    case = spatial(cases.two_stages(20, 8, 5, 4), workers, shares)
    text = case.text.replace(", workers = 0 : i64", "")
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        with pytest.raises(CompileError, match=message):
            shares_of(ProgramView(module.body.operations[0].operation))


def test_tasks_of_a_stage_share_its_workers():
    case = spatial(cases.two_stages(20, 8, 5, 4), [3, 3], [0, 0])
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(case.text)
        assert shares_of(ProgramView(module.body.operations[0].operation)) == [Share(0, 3)] * 2
