"""The proof that an epoch ends (`runtime/epoch_check.py`), beside launches played step by step (`test/oracles/epochs.py`)."""

import dataclasses
import random

import numpy as np
import pytest

from kitsune_mlir.runtime.epoch import Epoch, Instance, Packed
from kitsune_mlir.runtime.epoch_check import EpochFault, check_epoch
from test.oracles.epochs import ARENA, BASE, Hang, TooEarly, faulty, packed, play, random_epoch, records_of, steps


def test_random_epochs_are_proved_and_end_in_order():
    draw = random.Random(0)
    for _ in range(200):
        epoch = random_epoch(draw)
        words = packed(epoch)
        check_epoch(epoch, words, BASE, ARENA)
        assert sorted(play(epoch, words, draw.randint(1, 6), draw)) == list(range(len(epoch)))


def test_every_seeded_fault_is_found():
    draw = random.Random(1)
    for _ in range(300):
        epoch = random_epoch(draw)
        with pytest.raises(EpochFault):
            check_epoch(epoch, faulty(epoch, packed(epoch), draw), BASE, ARENA)


def _two(upstream: list[int]) -> tuple[Epoch, Packed]:
    """Two instances, of which the second may depend on the first."""
    draw = random.Random(2)
    manifest = random_epoch(draw).manifest
    epoch = Epoch(manifest)
    program = manifest.programs[0]
    pointers = [8] * (len(program.input_bytes) + len(program.result_bytes))
    epoch.append(Instance(0, pointers))
    epoch.append(Instance(0, pointers, upstream))
    return epoch, packed(epoch)


def test_a_wait_for_oneself_hangs_and_is_named():
    """The second instance waits for its own end: no number of blocks helps."""
    epoch, words = _two([0])
    data = words.data.copy()
    links = data[words.upstream : words.maps].view(np.int32)
    links[0] += epoch.manifest.programs[0].slots
    wrong = dataclasses.replace(words, data=data)
    with pytest.raises(EpochFault, match="instance 1 waits for counters"):
        check_epoch(epoch, wrong, BASE, ARENA)
    with pytest.raises(Hang):
        play(epoch, wrong, 3, random.Random(0))


def test_a_wait_that_is_left_out_is_too_early_and_is_named():
    epoch, words = _two([0])
    data = words.data.copy()
    records_of(epoch, data, words)["upstream_count"][1] = 0
    wrong = dataclasses.replace(words, data=data)
    with pytest.raises(EpochFault, match="instance 1 waits for counters"):
        check_epoch(epoch, wrong, BASE, ARENA)
    with pytest.raises(TooEarly):
        for seed in range(50):
            play(epoch, wrong, 6, random.Random(seed))


def test_a_loop_ends_at_once_only_where_nobody_else_is_waited_for():
    """The second of two instances with one condition waits for one that need not have ended when the first is decided."""
    draw = random.Random(3)
    while not (manifest := random_epoch(draw).manifest).loops:
        pass
    pointers = [8] * (manifest.programs[0].arguments - 1)
    epoch = Epoch(manifest)
    for upstream, predicate in (([], 0), ([], 64), ([0, 1], 64), ([2], 64), ([3], 72), ([4], 72), ([5], 0)):
        epoch.append(Instance(0, pointers, upstream, predicate, 4 if predicate else 0))
    assert epoch.rests() == [0, 0, 1, 0, 1, 0, 0]
    words = packed(epoch)
    check_epoch(epoch, words, BASE, ARENA)
    records_of(epoch, words.data, words)["predicate_bytes"][1] += 2 * 256  # the second ends with the first, too
    with pytest.raises(EpochFault, match=r"instance 2 ends with instance 1, when instances \[0\] may not have ended"):
        check_epoch(epoch, words, BASE, ARENA)
    with pytest.raises(TooEarly, match="with others"):
        for seed in range(100):
            play(epoch, words, 6, random.Random(seed))


@pytest.mark.parametrize("chains, length, blocks", [(40, 9, 16), (7, 1, 3), (1, 12, 8)])
def test_chains_appended_one_after_the_other_keep_all_blocks_busy_where_what_is_ready_comes_first(
    chains: int, length: int, blocks: int
):
    """In the order of the appends blocks hold a chain's entries and wait in them: as many chains go on as they hold ends of."""
    draw = random.Random(chains)
    while len((program := random_epoch(draw).manifest.programs[0]).steps) > 1 or program.pieces > 1:
        pass
    manifest = dataclasses.replace(random_epoch(draw).manifest, programs=(program,))
    taken: dict[bool, int] = {}
    for ready_first in (False, True):
        epoch = Epoch(manifest, ready_first)
        for _ in range(chains):
            for place in range(length):
                pointers = [8] * (program.arguments - 1)
                epoch.append(Instance(0, pointers, [len(epoch) - 1] if place else []))
        words = packed(epoch)
        check_epoch(epoch, words, BASE, ARENA)
        assert len(play(epoch, words, blocks, draw)) == chains * length
        taken[ready_first] = steps(epoch, words, blocks)
    rounds = -(-chains // blocks) * length
    assert taken[True] <= rounds and (min(chains, blocks) < 4 or length < 4 or taken[False] > 3 * rounds)
