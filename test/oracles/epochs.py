"""Launches of epochs, step by step: blocks that claim tickets, wait and post in any interleaving, from the launch's words.

    python -m test.oracles.epochs [--epochs N] [--seed N]

Random epochs of random programs are packed and proved (`runtime/epoch_check.py`), and run with random numbers of blocks: each
must end, and no piece may begin before what its instance depends on has ended. Then a word is changed: the proof must find it.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from kitsune_mlir.runtime.epoch import Epoch, Instance, Packed
from kitsune_mlir.runtime.epoch_check import EpochFault, check_epoch
from kitsune_mlir.runtime.epoch_manifest import RECORD, EpochManifest, EpochProgram, EpochStep

__all__ = ["BASE", "Hang", "TooEarly", "faulty", "packed", "play", "random_epoch", "records_of", "steps"]

_OFFSETS = [RECORD.fields[name][1] for name in RECORD.names or ()]  # pyright: ignore
BASE, ARENA = 1 << 40, 1 << 41


class Hang(AssertionError):
    """No block can go on."""


class TooEarly(AssertionError):
    """A piece begins while what its instance depends on has not ended."""


def random_programs(draw: random.Random, loops: bool = False) -> list[EpochProgram]:
    """Programs whose tasks follow each other: a piece of a later task waits for all pieces of the one before."""
    programs: list[EpochProgram] = []
    pointers = slots = pieces = steps = 0
    for number in range(draw.randint(1, 4)):
        tasks = [
            EpochStep(steps + n, f"task {number}.{n}", "none", draw.randint(1, 4), root=not n)
            for n in range(draw.randint(1, 3))
        ]
        inputs, results = draw.randint(0, 3), draw.randint(1, 2)
        programs.append(
            EpochProgram(
                digest=str(number),
                first_pointer=pointers,
                first_map=0,
                first_slot=slots,
                first_piece=pieces,
                input_bytes=(4,) * inputs,
                result_bytes=(4,) * results,
                arena_bytes=draw.choice((0, 1, 300)),
                maps=(),
                slots=len(tasks) + loops,
                partial_bytes=draw.choice((0, 0, 256)),
                done=slots + len(tasks) - 1,
                target=tasks[-1].pieces,
                steps=tuple(tasks),
            )
        )
        pointers, slots, steps = pointers + inputs + results + 1, slots + len(tasks), steps + len(tasks)
        pieces += programs[-1].pieces
    return programs


def random_epoch(draw: random.Random, size: int = 12) -> Epoch:
    """An epoch of random programs, in either order; some of its instances have predicates."""
    loops = draw.random() < 0.5
    manifest = EpochManifest("epoch", "", 32, 0, 0, 1, tuple(random_programs(draw, loops)), loops=loops)
    epoch = Epoch(manifest, ready_first=draw.random() < 0.5)
    for number in range(draw.randint(1, size)):
        which = draw.randrange(len(epoch.manifest.programs))
        program = epoch.manifest.programs[which]
        pointers = [draw.randrange(1, 1 << 40) for _ in (*program.input_bytes, *program.result_bytes)]
        upstream = draw.sample(range(number), min(number, draw.choice((0, 1, 1, 2, 5))))
        predicate = (draw.randrange(1, 1 << 40), draw.choice((1, 4, 8))) if draw.random() < 0.2 else (0, 0)
        if number and epoch.instances[-1].predicate and draw.random() < 0.7:  # one more of a loop
            predicate = epoch.instances[-1][3:]
            upstream = sorted({number - 1, *draw.choice(((), (), epoch.instances[-1].upstream, upstream))})
        epoch.append(Instance(which, pointers, upstream, *predicate))
    return epoch


def packed(epoch: Epoch) -> Packed:
    """An epoch's words."""
    return epoch.pack(BASE, ARENA, lambda parameter, address: bytes(128))


def records_of(epoch: Epoch, data: np.ndarray, words: Packed) -> np.ndarray:
    """The records' fields among a launch's words, to be read and changed."""
    size = epoch.manifest.record_bytes
    formats = [RECORD[name] for name in RECORD.names or ()]
    fields: Any = {"names": RECORD.names, "formats": formats, "offsets": _OFFSETS, "itemsize": size}
    return data[words.records : words.records + size * len(epoch)].view(np.dtype(fields))


class Launch:
    """A launch of an epoch's words: what blocks hold and what was counted.

    Attributes:
        held: of each block the ticket that it does and the one that it has claimed ahead; with two, it holds on to one.
        ended: instances, in the order in which they ended.
    """

    def __init__(self, epoch: Epoch, words: Packed, blocks: int, skipped: Sequence[bool]):
        self._epoch, self._programs, self._skipped = epoch, epoch.manifest.programs, skipped
        self._tickets = words.data[words.tickets : words.tickets + 8 * epoch.tickets].view(np.int32).reshape(-1, 2)
        self._records = records_of(epoch, words.data, words)
        self._links = words.data[words.upstream : words.maps].view(np.int32).reshape(-1, 2)
        self._counters = np.zeros(epoch.slots + 1, np.int64)
        self._left = [self._programs[instance.program].pieces for instance in epoch.instances]
        self._head, self.ended = 0, list[int]()
        self.held: list[list[int]] = [[] for _ in range(blocks)]
        for block in range(blocks):
            self.claim(block)

    def claim(self, block: int) -> None:
        """Let a block have the next ticket."""
        self.held[block].append(self._head)
        self._head += 1

    def at_work(self) -> list[int]:
        """The blocks that have a ticket."""
        return [block for block, own in enumerate(self.held) if own[0] < len(self._tickets)]

    def ready(self, block: int) -> bool:
        """Whether all that a block's ticket waits for was counted."""
        number, place = self._tickets[self.held[block][0]].tolist()
        record, program = self._records[number], self._programs[self._epoch.instances[number].program]
        if self._epoch.manifest.loops and record["predicate"] and self.held[block][0] != record["first_ticket"]:
            if self._counters[record["decision"]] != 1:
                return bool(self._counters[record["decision"]])
        elif place & 1 or record["predicate"]:
            pairs = self._links[record["upstream"] : record["upstream"] + record["upstream_count"]]
            if any(self._counters[slot] < posts for slot, posts in pairs.tolist()):
                return False
        step = (place >> 1) - program.steps[0].step
        before = int(record["slots"]) + program.first_slot + step - 1
        idle = self._skipped[number] and not (self._epoch.manifest.loops and record["predicate"])
        return idle or place & 1 == 1 or bool(self._counters[before] >= program.steps[step - 1].pieces)

    def do(self, block: int) -> None:
        """Let a block do its ticket, and have the next one.

        Raises:
            TooEarly: see there.
        """
        ticket, left = self.held[block].pop(0), self._left
        number = int(self._tickets[ticket, 0])
        record = self._records[number]
        decides = self._epoch.manifest.loops and bool(record["predicate"])
        if decides and self._counters[record["decision"]] == 2:
            pass
        elif early := [other for other in self._epoch.instances[number].upstream if left[other]]:
            raise TooEarly(f"ticket {ticket} of instance {number} begins before instances {early} have ended")
        elif decides and not self._counters[record["decision"]] and self._skipped[number]:
            self._end(range(number, number + 1 + (int(record["predicate_bytes"]) >> 8)))
        elif decides:
            self._counters[record["decision"]] = 1
            self._count(ticket)
        else:
            self._count(ticket)
        if not self.held[block]:
            self.claim(block)

    def _end(self, numbers: Sequence[int]) -> None:
        """End instances at once, of which none is done."""
        for number in numbers:
            record = self._records[number]
            others = [other for other in self._epoch.instances[number].upstream if other not in numbers]
            if early := [other for other in others if self._left[other]]:
                raise TooEarly(f"instance {number} ends, with others, before instances {early} have ended")
            self._counters[record["decision"]] = 2
            self._counters[record["done"]] += int(record["target"])
            self._left[number] = 0
            self.ended.append(number)

    def _count(self, ticket: int) -> None:
        left, (number, place) = self._left, self._tickets[ticket].tolist()
        record, program = self._records[number], self._programs[self._epoch.instances[number].program]
        decides = self._epoch.manifest.loops and bool(record["predicate"])
        if decides or not self._skipped[number]:
            self._counters[int(record["slots"]) + program.first_slot + (place >> 1) - program.steps[0].step] += 1
        elif ticket == record["first_ticket"]:
            self._counters[record["done"]] += int(record["target"])
            left[number] = 1  # its other tickets do nothing
        if decides or not self._skipped[number] or ticket == record["first_ticket"]:
            left[number] -= 1
        if not left[number] and number not in self.ended:
            self.ended.append(number)


def play(epoch: Epoch, words: Packed, blocks: int, draw: random.Random) -> list[int]:
    """Run the words on so many blocks; the instances in the order in which they ended.

    Raises:
        Hang, TooEarly: see these.
    """
    launch = Launch(epoch, words, blocks, [bool(one.predicate) and draw.random() < 0.5 for one in epoch.instances])
    while order := launch.at_work():
        draw.shuffle(order)
        going = next((block for block in order if launch.ready(block)), None)
        if going is None:
            raise Hang(f"blocks hold tickets {[launch.held[block][0] for block in order]}, and none can go on")
        if len(launch.held[going]) < 2 and draw.random() < 0.7:
            launch.claim(going)  # ahead
        launch.do(going)
    return launch.ended


def steps(epoch: Epoch, words: Packed, blocks: int) -> int:
    """How many steps the words take on so many blocks if each piece of work takes one, and claims and waits none.

    Raises:
        Hang, TooEarly: see these.
    """
    launch, count = Launch(epoch, words, blocks, [False] * len(epoch)), 0
    while order := launch.at_work():
        going = [block for block in order if launch.ready(block)]
        if not going:
            raise Hang(f"blocks hold tickets {[launch.held[block][0] for block in order]}, and none can go on")
        for block in going:
            launch.do(block)
        count += 1
    return count


def faulty(epoch: Epoch, words: Packed, draw: random.Random) -> Packed:
    """The same words, with one that a launch reads changed."""
    data = words.data.copy()
    tickets = data[words.tickets : words.tickets + 8 * epoch.tickets].view(np.int32)
    records = records_of(epoch, data, words)
    links = data[words.upstream : words.maps].view(np.int32)[: 2 * sum(len(i.upstream) for i in epoch.instances)]
    kind = draw.choice(("ticket", "record", "record", "link", "order"))
    if kind == "order" and epoch.tickets > 1:
        a, b = draw.sample(range(epoch.tickets), 2)
        pairs = tickets.reshape(-1, 2)
        if (pairs[a] == pairs[b]).all():
            return faulty(epoch, words, draw)
        pairs[[a, b]] = pairs[[b, a]]
    elif kind == "link" and len(links):
        links[draw.randrange(len(links))] += draw.choice((-1, 1, 7))
    elif kind == "record":
        unread = ("maps",) if epoch.manifest.loops else ("predicate_bytes", "maps", "decision")  # where there is none
        name = draw.choice([one for one in RECORD.names or () if one not in unread])
        which = draw.randrange(len(epoch))
        size = {"pointers": 8, "partials": 256, "predicate_bytes": 256}.get(name, 1)
        program = epoch.manifest.programs[epoch.instances[which].program]
        if (name == "partials" and not program.partial_bytes) or (name == "upstream" and not epoch.instances[which].upstream):
            return faulty(epoch, words, draw)
        before = _pairs(links, records[which])
        records[name][which] += draw.choice((1, 2)) * size
        if name == "upstream" and _pairs(links, records[which]) == before:  # those of another, which are the same
            return faulty(epoch, words, draw)
    else:
        tickets[draw.randrange(len(tickets))] += draw.choice((-1, 1, 2))
    return dataclasses.replace(words, data=data)


def _pairs(links: np.ndarray, record: np.void) -> list[list[int]]:
    own = links.reshape(-1, 2)[record["upstream"] : record["upstream"] + record["upstream_count"]]
    return sorted(own.tolist())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run random epochs; 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    draw, missed = random.Random(asked.seed), 0
    for _ in range(asked.epochs):
        epoch = random_epoch(draw)
        words = packed(epoch)
        check_epoch(epoch, words, BASE, ARENA)
        assert len(play(epoch, words, draw.randint(1, 6), draw)) == len(epoch)
        try:
            check_epoch(epoch, faulty(epoch, words, draw), BASE, ARENA)
            missed += 1
        except EpochFault:
            pass
    print(f"{asked.epochs} epochs ran in order to their ends; of as many with a word changed, {missed} were taken for right")
    return min(1, missed)


if __name__ == "__main__":
    sys.exit(main())
