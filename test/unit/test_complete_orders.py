"""Which tasks come after which as wholes (`Order.after`), beside runs of all tiles in which one of them hangs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kitsune_mlir.dialects.tile_records import Post, Semaphore, Wait
from kitsune_mlir.dialects.tile_regions import Task
from kitsune_mlir.passes.progress.order import Order
from kitsune_mlir.passes.progress.trace import Replay


def program_of(*tasks: tuple[int, list[tuple[int, list[int], list[int]]]]) -> SimpleNamespace:
    """Tasks that post to a slot a tile: extents, and for each wait the task that is waited for, its first and last slots."""
    signals = [Semaphore(None, number, extent) for number, (extent, _) in enumerate(tasks)]  # type: ignore[arg-type]
    made = []
    for number, (extent, waits) in enumerate(tasks):
        found = [Wait(None, signals[of], np.array(lo), np.array(hi), 1, None, of) for of, lo, hi in waits]
        posts = [Post(None, signals[number], np.arange(extent))]
        made.append(Task(None, number, f"t{number}", (extent,), waits=found, posts=posts))
    return SimpleNamespace(tasks=made, semaphores=signals)


def test_what_a_row_by_row_reader_covers_comes_before_who_waits_for_the_reader() -> None:
    """No tile waits for all of the first task, but every tile of it is waited for by one that the last task waits for."""
    rows = [[0, 1, 2, 3], [1, 2, 3, 4]]
    program = program_of((4, []), (4, [(0, *rows)]), (4, [(1, *rows)]), (1, [(2, [0], [4])]))
    assert Order(program).after == [set(), set(), set(), {0, 1, 2}]
    some = program_of((4, []), (3, [(0, rows[0][:3], rows[1][:3])]), (1, [(1, [0], [3])]))  # the last tile is not waited for
    assert Order(some).after == [set(), set(), {1}]


@pytest.mark.parametrize("seed", range(12))
def test_every_order_that_is_found_holds_in_all_runs(seed: int) -> None:
    """A tile of a later task never begins while a tile of a task that is said to come before hangs."""
    random = np.random.default_rng(seed)
    tasks: list[tuple[int, list[tuple[int, list[int], list[int]]]]] = []
    for number in range(7):
        extent, waits = int(random.integers(1, 5)), []
        for of in random.permutation(number)[: int(random.integers(0, 3))]:
            slots = tasks[of][0]
            low = random.integers(0, slots + 1, extent)
            high = np.minimum(low + random.integers(0, slots + 1, extent), slots)
            whole = random.random() < 0.3
            waits.append((int(of), [0] * extent if whole else list(low), [slots] * extent if whole else list(high)))
        tasks.append((extent, waits))
    program = program_of(*tasks)
    replay, found = Replay(program), Order(program).after
    for later, before in enumerate(found):
        for earlier in before:
            pairs = [(c, d) for c in range(tasks[later][0]) for d in range(tasks[earlier][0])]
            assert not any(replay.can_begin((later, c), (earlier, d)) for c, d in pairs), (earlier, later)
