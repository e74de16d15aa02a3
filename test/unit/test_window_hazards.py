"""Hazards between ranges of bytes (kitsune_mlir/windows/hazards.py)."""

import random

import pytest

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.windows.hazards import BOTH, READ, WRITE, Hazards, span
from test.oracles import hazard_streams
from test.oracles.hazard_streams import check_stream


def test_random_streams() -> None:
    first = random.randrange(1 << 40)
    assert sum(check_stream(first + n) for n in range(3000)) > 3000


def test_long_streams() -> None:
    first = random.randrange(1 << 40)
    assert sum(check_stream(first + n, length=200) for n in range(40)) > 2000


class WithoutRaw(Hazards):
    """The paper's Algorithm 1, which compares with a new entry's writes only."""

    def append(self, ranges):
        number, (data, order) = super().append(ranges)
        return number, (data if ranges is None else set(), order)


class WholeTensors(Hazards):
    """Takes every range for all of the memory."""

    def append(self, ranges):
        return super().append(ranges and [(0, hazard_streams.MEMORY, mode) for _, _, mode in ranges])


@pytest.mark.parametrize("wrong", [WithoutRaw, WholeTensors])
def test_the_oracle_finds_what_is_wrong(wrong) -> None:
    with pytest.raises(AssertionError, match="stream"):
        for seed in range(100):
            check_stream(seed, wrong)


def test_read_after_write_and_the_other_two() -> None:
    hazards = Hazards()
    hazards.append([(0, 8, WRITE)])
    assert hazards.append([(4, 6, READ)]) == (1, ({0}, set()))
    assert hazards.append([(0, 4, WRITE)]) == (2, (set(), {0}))
    assert hazards.append([(5, 7, WRITE)]) == (3, (set(), {0, 1}))
    assert hazards.append([(8, 9, BOTH), (3, 3, READ)]) == (4, (set(), set()))
    assert hazards.append([(0, 9, READ)])[1] == ({0, 2, 3, 4}, set())


def test_work_of_unknown_accesses_is_a_barrier() -> None:
    hazards = Hazards()
    hazards.append([(0, 8, READ)])
    assert hazards.append(None)[1].data == {0}
    assert hazards.append([(100, 108, READ)])[1].data == {1}
    assert hazards.touching([(200, 201, READ)]) == {1}
    hazards.retire(0)
    hazards.retire(1)
    assert hazards.append([(200, 208, READ)])[1] == (set(), set())


def test_limits_are_named() -> None:
    with pytest.raises(ArgumentError, match="between 1 and 4096 entries, not 0"):
        Hazards(0)
    hazards = Hazards(1)
    hazards.append([])
    with pytest.raises(ArgumentError, match="1 entries already"):
        hazards.append([])
    with pytest.raises(ArgumentError, match="no entry 7"):
        hazards.retire(7)


def test_modes_are_those_of_a_signature() -> None:
    assert [span(16, 4, 8, mode) for mode in ("read", "both", "write")] == [(20, 28, READ), (20, 28, BOTH), (20, 28, WRITE)]
