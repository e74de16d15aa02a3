"""Which buffers may lie where others lay: what their writers wait for in any case, and what they then wait for beside that."""

import dataclasses
from collections.abc import Mapping, Sequence

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import INTO
from kitsune_mlir.dialects.edges import waits_for_all
from kitsune_mlir.passes.tile_program.waits import complete_before

from .arena import Interval, Packing, alive, last_tenants, packings

__all__ = ["Waits", "place"]


class Waits:
    """What a pipeline's stages wait for.

    Args:
        stages: all of them, in order.
        readers: numbers of the stages that read each result, a stage's and its number.
        separate: whether they are launched one after the other, some side by side.
        free: whether anything is known of what is complete because of what stages read.
    """

    def __init__(
        self, stages: list[ir.Operation], readers: Mapping[tuple[int, int], Sequence[int]], separate: bool, free: bool
    ):
        self.separate, self._stages, self._readers = separate, stages, readers
        self._complete = complete_before(stages) if free else [0] * len(stages)
        self._earlier = _earlier_launches(stages) if separate else [0] * len(stages)

    def ended(self, interval: Interval) -> int:
        """The stages, as bits, that have ended before an interval is written, in any case."""
        return self._earlier[interval.first] | self._complete[interval.stage]

    def follow(self) -> list[int]:
        """For each stage, as bits, those that it depends on: tiles of it may wait for parts of them only."""
        before = [0] * len(self._stages)
        for (n, _), users in sorted(self._readers.items()):
            for user in users:
                before[user] |= before[n] | 1 << n
        return before

    def touching(self, interval: Interval) -> list[int]:
        """The stages that write and read an interval."""
        return [interval.stage, *self._readers.get((interval.stage, interval.result), ())]

    def after(self, mine: Interval, intervals: Sequence[Interval]) -> list[int]:
        """The stages that must have ended before an interval may be written: readers of what lay in its bytes, and its writer
        where no reader waits for all of it."""
        found: set[int] = set()
        for other in last_tenants(mine, intervals):
            if other is mine.before:
                continue
            writer, *users = self.touching(other)
            found.update(users)
            if not any(waits_for_all(self._stages[u], self._stages[writer]) for u in users):
                found.add(writer)
        return sorted(found)

    def waits(self, intervals: Sequence[Interval]) -> int:
        """How many waits the places of intervals cost."""
        return sum(not self.ended(mine) >> n & 1 for mine in intervals for n in self.after(mine, intervals))


def place(chains: Sequence[Sequence[Interval]], slack: int | None, order: Waits) -> int:
    """Give intervals their offsets, those of a chain the same; returns the bytes of the arena.

    Buffers share bytes where that costs no waits. Those with `slack` stages between them, or without a slack in separate
    launches those of which one follows from the other, also where fewer bytes are needed so, and no more waits than where these
    share what they can.
    """
    places = [dataclasses.replace(chain[0], last=max(i.last for i in chain)) for chain in chains]
    touching = {
        (place.stage, place.result): sum(1 << n for n in {n for i in chain for n in order.touching(i)})
        for place, chain in zip(places, chains, strict=True)
    }
    ended = {(place.stage, place.result): order.ended(place) for place in places}

    def free(mine: Interval, other: Interval) -> bool:
        return not touching[other.stage, other.result] & ~ended[mine.stage, mine.result]

    def far(mine: Interval, other: Interval) -> bool:
        if slack is None:
            return not touching[other.stage, other.result] & ~follow[mine.stage]
        return mine.first > other.last + slack

    def take(packing: Packing) -> int:
        for chain, offset in zip(chains, packing.offsets, strict=True):
            for interval in chain:
                interval.offset = offset
        return packing.total

    def waits(packing: Packing) -> int:
        take(packing)
        return order.waits([i for chain in chains for i in chain])

    best = packings(places, free)[-1]
    if best.total > alive(places) and (slack is not None or order.separate):
        follow = order.follow()
        plain = packings(places, far)[0]
        most = waits(plain)
        for packing in (plain, *packings(places, lambda mine, other: free(mine, other) or far(mine, other))):
            if packing.total < best.total and waits(packing) <= most:
                best = packing
    return take(best)


def _earlier_launches(stages: Sequence[ir.Operation]) -> list[int]:
    """For each stage, as bits, those of the launches before its own; a scatter-add's is its producer's where that does it."""
    names = {ir.StringAttr(stage.attributes["sym_name"]).value: n for n, stage in enumerate(stages)}
    owners = [names[ir.StringAttr(s.attributes[INTO]).value] if INTO in s.attributes else n for n, s in enumerate(stages)]
    launches = [ir.IntegerAttr(stages[owner].attributes["launch"]).value for owner in owners]
    before, every = dict[int, int](), 0
    for launch in sorted(set(launches)):
        before[launch] = every
        every |= sum(1 << n for n, its in enumerate(launches) if its == launch)
    return [before[launch] for launch in launches]
