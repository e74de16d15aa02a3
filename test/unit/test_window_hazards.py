"""Hazards between ranges of bytes (kitsune_mlir/windows/hazards.py)."""

import random

import pytest

from kitsune_mlir.errors import ArgumentError, CompileError
from kitsune_mlir.windows import compiled_hazards
from kitsune_mlir.windows.compiled_hazards import CompiledHazards, Placed, Places, make_hazards
from kitsune_mlir.windows.hazards import BOTH, READ, WRITE, Hazards, Range, span
from test.oracles import hazard_streams
from test.oracles.hazard_streams import check_stream

BOTH_KINDS = pytest.mark.parametrize("make", [Hazards, CompiledHazards])


@BOTH_KINDS
def test_random_streams(make) -> None:
    first = random.randrange(1 << 40)
    assert sum(check_stream(first + n, make) for n in range(3000)) > 3000


@BOTH_KINDS
def test_long_streams(make) -> None:
    first = random.randrange(1 << 40)
    assert sum(check_stream(first + n, make, length=200) for n in range(40)) > 2000


def drawn(draw: random.Random, memory: int, most: int) -> list[Range]:
    """Ranges of whole tensors and of parts of them."""
    found = []
    for _ in range(draw.randrange(most + 1)):
        low = draw.randrange(memory)
        found.append((low, low + draw.choice((0, 1, 8, 8, 8, 100)), draw.choice((READ, READ, WRITE, BOTH))))
    return sorted(found, key=lambda one: one[2])


def all_bytes(ranges: list[tuple[int, int]]) -> set[int]:
    """How they are cut is left open: dropped pieces leave no cuts behind."""
    return {byte for low, high in ranges for byte in range(low, high)}


@pytest.mark.parametrize("size, memory, most", [(1, 50, 3), (64, 3000, 12), (65, 200, 40), (130, 100_000, 300), (1000, 64, 5)])
def test_compiled_hazards_are_those_of_python(size, memory, most) -> None:
    """Sets of slots of several words, more ranges and more pieces than there was room for at first."""
    draw = random.Random(random.randrange(1 << 40))
    one, other = Hazards(size), CompiledHazards(size)
    pending: dict[int, set[int]] = {}
    for _ in range(3 * min(size, 300)):
        while len(pending) == size or pending and draw.random() < 0.2:
            number = draw.choice([n for n, before in pending.items() if not before & pending.keys()])
            del pending[number]
            one.retire(number)
            other.retire(number)
        ranges = drawn(draw, memory, most) if draw.random() < 0.97 else None
        number, upstream = one.append(ranges)
        assert other.append(ranges) == (number, upstream)
        pending[number] = upstream.data | upstream.order
        asked = drawn(draw, memory, 5)
        assert other.touching(asked) == one.touching(asked)
        written = draw.choice([*pending])
        assert all_bytes(other.last_written(written)) == all_bytes(one.last_written(written))
        assert (len(other), other.oldest) == (len(one), one.oldest)
    for number in pending:
        one.retire(number)
        other.retire(number)
    assert other.pieces == one.pieces == 0


def test_ranges_that_a_call_places() -> None:
    """Of pointers that each call has, more of them than there was room for at first."""
    one, other = CompiledHazards(8), CompiledHazards(8)
    places = Places([(n, 4 * n, 4 * n + 100, WRITE if n % 50 == 49 else READ) for n in range(99)], 100)
    for number in range(8):
        placed = Placed(places, tuple(range(10 * number, 100 * 1000, 1000))[:100])
        assert list(placed) == [placed[n] for n in range(len(placed))] == [*placed][:99]
        assert one.append(placed) == other.append(list(placed))


def test_what_is_no_range_is_an_error() -> None:
    hazards = CompiledHazards(2)
    for wrong in ([(0, 1)], [(0, "1", READ)], [3], [(0, 1 << 64, READ)]):
        with pytest.raises((TypeError, SystemError, IndexError, OverflowError)):
            hazards.append(wrong)  # type: ignore[arg-type]
    assert hazards.append([(0, 1, WRITE)]) == (0, (set(), set()))
    assert hazards.append([(0, 1, READ)]) == (1, ({0}, set()))


def test_python_does_it_where_nothing_can_be_compiled(monkeypatch) -> None:
    def refuse(text: str) -> bytes:
        raise CompileError("no LLVM for this processor")

    monkeypatch.setattr(compiled_hazards, "emit_object", refuse)
    compiled_hazards._compiled.cache_clear()
    try:
        assert type(make_hazards(8)) is Hazards
    finally:
        compiled_hazards._compiled.cache_clear()
    with pytest.raises(ArgumentError, match="between 1 and 4096"):
        make_hazards(0)


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


@BOTH_KINDS
def test_read_after_write_and_the_other_two(make) -> None:
    hazards = make()
    hazards.append([(0, 8, WRITE)])
    assert hazards.append([(4, 6, READ)]) == (1, ({0}, set()))
    assert hazards.append([(0, 4, WRITE)]) == (2, (set(), {0}))
    assert hazards.append([(5, 7, WRITE)]) == (3, (set(), {0, 1}))
    assert hazards.append([(8, 9, BOTH), (3, 3, READ)]) == (4, (set(), set()))
    assert hazards.append([(0, 9, READ)])[1] == ({0, 2, 3, 4}, set())


@BOTH_KINDS
def test_work_of_unknown_accesses_is_a_barrier(make) -> None:
    hazards = make()
    hazards.append([(0, 8, READ)])
    assert hazards.append(None)[1].data == {0}
    assert hazards.append([(100, 108, READ)])[1].data == {1}
    assert hazards.touching([(200, 201, READ)]) == {1}
    hazards.retire(0)
    hazards.retire(1)
    assert hazards.append([(200, 208, READ)])[1] == (set(), set())


@BOTH_KINDS
def test_limits_are_named(make) -> None:
    with pytest.raises(ArgumentError, match="between 1 and 4096 entries, not 0"):
        make(0)
    hazards = make(1)
    hazards.append([])
    with pytest.raises(ArgumentError, match="1 entries already"):
        hazards.append([])
    with pytest.raises(ArgumentError, match="no entry 7"):
        hazards.retire(7)


def test_modes_are_those_of_a_signature() -> None:
    assert [span(16, 4, 8, mode) for mode in ("read", "both", "write")] == [(20, 28, READ), (20, 28, BOTH), (20, 28, WRITE)]
