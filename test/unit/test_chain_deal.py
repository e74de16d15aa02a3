"""Who does which tile's rows in a chain: warpgroups of blocks walked on the processor, a thread for each."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_mlir import ir

from kitsune_mlir.codegen.gpu.emit.control_flow import if_, thread_id
from kitsune_mlir.codegen.gpu.emit.memory import offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value, i32
from kitsune_mlir.codegen.gpu.engines.chain.resident.tail_split import TailSplit
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.emulators.native import run_natively
from test.programs.compiled import planned

BLOCKS, MOST = 16, 8


@pytest.fixture(autouse=True)
def context():
    with ir.Context() as made, ir.Location.unknown():
        yield made


def walked(tiles: int, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each block and warpgroup the tiles, how often turns are passed on without one, and what is posted (halves)."""
    kernel = Kernel("k", ["pointer"] * 3, 2 * BLOCKS)
    with kernel.body() as (seen, skipped, posted):
        thread = thread_id()
        found = offset(seen, thread * (4 * MOST))
        counters = SimpleNamespace(post=lambda slot, count: store(count, offset(posted, thread * 4)))
        semaphore = SimpleNamespace(first=3)
        view = SimpleNamespace(
            tiles=tiles, grid=(tiles,), coordinates=(None,), posts=(SimpleNamespace(semaphore=semaphore, slot=0),)
        )
        state = SimpleNamespace(whole={3}, counters=counters, weight=lambda semaphore: 2)
        operands = SimpleNamespace(first_slot=lambda semaphore: 0)
        parts = {"view": view, "kernel": state, "operands": operands, "pointer": None}
        task = SimpleNamespace(first=thread // 2, blocks=i32(blocks), tiles=tiles, **parts)
        deal = TailSplit(task, thread % 2, TailSplit.may_halve(task))  # type: ignore[arg-type]

        def body(tile, count: Value) -> list[Value]:
            store(tile.number, offset(found, count * 4))
            return [count + 1]

        def walk() -> None:
            deal.for_each_tile(body, [i32(0)])
            deal.keep_turns(lambda: store(i32(1), offset(skipped, thread * 4)))
            deal.post()

        if_(thread // 2 < blocks, walk)
    arrays = [np.full((BLOCKS, 2, MOST), -1, np.int32), np.zeros((BLOCKS, 2), np.int32), np.zeros((BLOCKS, 2), np.int32)]
    run_natively(kernel, arrays)
    return arrays[0], arrays[1], arrays[2]


@pytest.mark.parametrize("tiles, blocks", [(33, 16), (40, 16), (23, 11), (48, 16), (41, 16), (9, 16), (27, 12), (17, 16)])
def test_each_half_of_each_tile_is_done_once(tiles, blocks):
    seen, skipped, posted = walked(tiles, blocks)
    rest = tiles % blocks
    spread = 0 < 2 * rest <= blocks < tiles
    for group in range(2):
        assert sorted(seen[:, group][seen[:, group] >= 0]) == list(range(tiles))
    count = (seen >= 0).sum(2)
    assert (count.max() - count.sum(1)[:blocks].min() / 2) <= (1 if rest else 0)
    assert (abs(count[:, 0] - count[:, 1]).sum() == 2 * rest) == (spread or not rest)
    assert (skipped[:blocks] == (count[:blocks] < count[:blocks].max(1, keepdims=True))).all()
    assert (posted[:blocks, 0] == count[:blocks].sum(1)).all() and posted[:blocks, 0].sum() == 2 * tiles


@pytest.mark.parametrize("rows, halves", [(17_000, True), (12_000, False), (400_000, False)])
def test_last_waves_of_few_waves_are_halved(rows, halves):
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 64)).to(torch.bfloat16)
    program = planned(model, torch.randn(rows, 64).to(torch.bfloat16))
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        (decision,) = build(ProgramView(list(module.body.operations)[0].operation), "kernel").decisions
    assert (decision.plan.engine, decision.plan.halves) == ("chain", halves)


def test_where_tiles_are_waited_for_one_by_one_blocks_have_whole_ones():
    post = SimpleNamespace(semaphore=SimpleNamespace(first=5))
    task = SimpleNamespace(kernel=SimpleNamespace(whole={3}), view=SimpleNamespace(posts=(post,)))
    assert not TailSplit.may_halve(task)  # type: ignore[arg-type]
