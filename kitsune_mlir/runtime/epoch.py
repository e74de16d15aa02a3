"""One epoch of work for an epoch kernel, put into the words that its launch takes (`runtime/epoch_manifest.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.epoch_manifest import HEAD_BYTES, RECORD, RECORD_BYTES, EpochManifest, EpochProgram
from kitsune_mlir.runtime.manifest import SLOT_STRIDE, Parameter

__all__ = ["Epoch", "Instance", "Packed"]

_UNIT = 256
"""Arenas and partial results of instances begin at multiples of so many bytes."""
_MAP_BYTES = 128
MOST_TICKETS = 1 << 28


class Instance(NamedTuple):
    """A run of a program.

    Attributes:
        program: number of the program in the kernel.
        pointers: addresses of its inputs, then of its results.
        upstream: numbers of the earlier instances that have to end before it begins.
        predicate: address of a value of `predicate_bytes` bytes; where it is zero when all that is upstream has ended, nothing
            is done. 0: there is none.
    """

    program: int
    pointers: Sequence[int]
    upstream: Sequence[int] = ()
    predicate: int = 0
    predicate_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class Packed:
    """What a launch is given: bytes that go to the device, and where in them everything begins."""

    data: np.ndarray
    tickets: int
    records: int
    upstream: int
    maps: int


class Epoch:
    """Instances in the order in which they were appended.

    Args:
        manifest: of the kernel.
        ready_first: give tickets in the order in which instances could begin if each task took the same time and blocks were
            never short (Graham's list of earliest starts), in place of the order of the appends. Blocks claim tickets in their
            order, so of chains that are appended one after the other they would hold the first ones and wait in them, while
            what they could do lies behind. An instance can begin only after those that it depends on in either order.

    Attributes:
        tickets: pieces of work.
        arena_bytes, partial_bytes: memory for intermediates and for partial results that all instances need.
        slots: counters of all instances.
    """

    def __init__(self, manifest: EpochManifest, ready_first: bool = False):
        self.manifest, self.ready_first = manifest, ready_first
        self.instances: list[Instance] = []
        self._ends: list[int] = []  # of instances, in tasks from the start of the launch on
        self.tickets = self.arena_bytes = self.partial_bytes = self.slots = 0
        self._links = self._maps = 0
        self._surely: set[int] = set()  # instances that have ended when the last one is decided
        # With loops: whether an instance ends with the one before it, if that one's condition does not hold.
        self._follows: list[bool] = []

    def __len__(self) -> int:
        return len(self.instances)

    def append(self, instance: Instance) -> int:
        """Add a run; its number in the epoch.

        Raises:
            ArgumentError: it depends on one that is not there yet, or has another number of pointers than its program takes, or
                a predicate of no size that there is.
        """
        manifest, number, upstream, ends = self.manifest, len(self.instances), instance.upstream, self._ends
        program = manifest.programs[instance.program]
        wanted = program.arguments - 1
        if len(instance.pointers) != wanted:
            raise ArgumentError(f"program {instance.program} takes {wanted} pointers, got {len(instance.pointers)}")
        begin = 0
        for other in upstream:
            if not 0 <= other < number:
                raise ArgumentError(f"instance {number} depends on instance {other}, which is not there yet")
            if ends[other] > begin:
                begin = ends[other]
        if instance.predicate and instance.predicate_bytes not in (1, 4, 8):
            raise ArgumentError(f"a predicate has 1, 4 or 8 bytes, not {instance.predicate_bytes}")
        if self.tickets + program.pieces > MOST_TICKETS:
            raise ArgumentError(f"an epoch has at most {MOST_TICKETS} pieces of work")
        if manifest.loops:
            self._follows.append(self._ends_with_last(instance))
            self._surely = self._surely | {number - 1} if self._follows[-1] else {*upstream}
        self.instances.append(instance)
        ends.append(begin + len(program.steps))
        self.tickets += program.pieces
        self.arena_bytes += _rounded(program.arena_bytes)
        self.partial_bytes += _rounded(program.partial_bytes)
        self.slots += program.slots
        self._links += len(upstream)
        self._maps += len(program.maps)
        return number

    def _ends_with_last(self, instance: Instance) -> bool:
        """Whether an instance has the condition of the last one, and nothing to wait for that has not ended when that one is
        decided, but that one: then neither is done if that one is not."""
        last = len(self.instances) - 1
        if not instance.predicate or last not in instance.upstream:
            return False
        same = self.instances[last][3:] == instance[3:]
        return same and self._surely.issuperset(other for other in instance.upstream if other != last)

    def rests(self) -> list[int]:
        """Of each instance how many behind it end with it, if its condition does not hold."""
        found = [0] * len(self.instances)
        for number in range(len(self._follows) - 1, 0, -1):
            found[number - 1] = found[number] + 1 if self._follows[number] else 0
        return found

    def order(self) -> np.ndarray:
        """The instances in the order of their tickets."""
        if not self.ready_first:
            return np.arange(len(self.instances))
        tasks = [len(self.manifest.programs[one.program].steps) for one in self.instances]
        return np.argsort(np.array(self._ends, np.int64) - np.array(tasks, np.int64), kind="stable")

    @property
    def counter_bytes(self) -> int:
        """Bytes of the counters, which are zero before the launch."""
        return HEAD_BYTES + self.slots * SLOT_STRIDE

    @property
    def packed_bytes(self) -> int:
        """Bytes of what `pack` gives."""
        return self._places()[-1]

    def _places(self) -> tuple[int, int, int, int, int]:
        """Where tickets, records, upstream and tensor maps begin, and the end of all."""
        records = self.manifest.record_bytes * len(self.instances)
        ends = [0]
        for size in (8 * self.tickets, records, 8 * self._links, _MAP_BYTES * self._maps):
            ends.append(ends[-1] + -(-size // _MAP_BYTES) * _MAP_BYTES)
        return ends[0], ends[1], ends[2], ends[3], ends[4]

    def pack(self, base: int, arena: int, encode: Callable[[Parameter, int], bytes]) -> Packed:
        """The words of a launch.

        Args:
            base: the address that they will have.
            arena: address of `arena_bytes` bytes.
            encode: gives the bytes of a tensor map of memory that begins at an address.
        """
        tickets_at, records_at, upstream_at, maps_at, size = self._places()
        data = np.zeros(size, np.uint8)
        programs, instances = self.manifest.programs, self.instances
        which = np.array([one.program for one in instances], np.int64)
        pieces = np.array([program.pieces for program in programs], np.int64)[which]

        def of(name: str) -> np.ndarray:
            return np.array([getattr(program, name) for program in programs], np.int64)[which]

        def starts(sizes: np.ndarray) -> np.ndarray:
            return np.concatenate([[0], np.cumsum(sizes)[:-1]])

        order, first = self.order(), np.zeros(len(instances), np.int64)
        first[order] = starts(pieces[order])
        tickets = data[: 8 * self.tickets].view(np.int32).reshape(-1, 2)
        tickets[:, 0] = np.repeat(order, pieces[order])
        tickets[:, 1] = np.concatenate([programs[number].words for number in which[order]])

        counts = np.array([len(program.maps) for program in programs], np.int64)[which]
        links = np.array([len(one.upstream) for one in instances], np.int64)
        slots = starts(of("slots"))
        arenas = arena + starts(_rounded(of("arena_bytes")))
        each = self.manifest.record_bytes
        whole = data[records_at : records_at + each * len(instances)].reshape(-1, each)
        records = np.zeros(len(instances), RECORD)
        done = slots + of("done") - of("first_slot")
        records["pointers"] = RECORD_BYTES - 8 * of("first_pointer")
        records["maps"] = base + maps_at + _MAP_BYTES * (starts(counts) - of("first_map"))
        records["partials"] = starts(_rounded(of("partial_bytes")))
        records["predicate"] = [one.predicate for one in instances]
        rests = self.rests()
        records["predicate_bytes"] = [one.predicate_bytes + 256 * rest for one, rest in zip(instances, rests, strict=True)]
        records["decision"] = slots + of("slots") - 1 if self.manifest.loops else 0
        records["first"], records["first_ticket"] = first - of("first_piece"), first
        records["slots"] = slots - of("first_slot")
        records["upstream"], records["upstream_count"] = starts(links), links
        records["done"], records["target"] = done, of("target")
        others = np.array([other for one in instances for other in one.upstream], np.int64)
        pairs = data[upstream_at : upstream_at + 8 * self._links].view(np.int32).reshape(-1, 2)
        pairs[:, 0], pairs[:, 1] = done[others], of("target")[others]
        whole[:, :RECORD_BYTES] = records.view(np.uint8).reshape(-1, RECORD_BYTES)
        width, rows = (each - RECORD_BYTES) // 8, list[int]()
        zeros = [[0] * (width - program.arguments) for program in programs]
        for instance, own in zip(instances, arenas.tolist(), strict=True):
            rows += instance.pointers
            rows.append(own)
            rows += zeros[instance.program]
        whole[:, RECORD_BYTES:] = np.array(rows, np.uint64).reshape(-1, width).view(np.uint8)
        if self._maps:
            maps = b"".join(
                encode(one, _start(one, programs[instance.program], instance.pointers, own))
                for instance, own in zip(instances, arenas.tolist(), strict=True)
                for one in programs[instance.program].maps
            )
            data[maps_at : maps_at + len(maps)] = np.frombuffer(maps, np.uint8)
        return Packed(data, tickets_at, records_at, upstream_at, maps_at)


def _rounded(size):  # of a number or an array
    return -(-size // _UNIT) * _UNIT


def _start(map_: Parameter, program: EpochProgram, pointers: Sequence[int], arena: int) -> int:
    """Address of a tensor map's first element."""
    first = {"input": 0, "result": len(program.input_bytes)}
    return (arena if map_.of == "arena" else pointers[first[map_.of] + map_.index]) + map_.offset
