"""What launches of an epoch kernel need (`codegen/gpu/kernel/epochs.py`), as plain data: written by the compiler, read here.

A launch does one *epoch*: runs of the kernel's programs (*instances*), each with memory of its own. It is given, in device
memory, pointers to

    tickets     for each piece of work, in the order in which blocks claim them, two words: the instance's number in the
                epoch, and `2 * step + root` (below)
    records     `record_bytes` for each instance: the fields of RECORD, then the pointers to its arguments
    upstream    pairs of words, of all instances one after the other: a counter, and the count from which on a run has ended
    counters    zero before the launch: HEAD_BYTES, of which the first word is the number of tickets claimed; then the
                counters of all instances, SLOT_STRIDE bytes apart
    partials    partial results of all instances
    scratch     `scratch_bytes` for each block
    report      of a debug build: REPORT_BYTES that say whether a wait gave up, and as much for each block

and how many tickets there are. A *step* is a task of one of the programs; it is a *root* if it has to look itself whether what
the instance depends on has ended: not every tile of it waits for an earlier task of its own program, or it reads what the
instance is given, which some engines do before they wait.
"""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np

from kitsune_mlir.runtime.manifest import Parameter

__all__ = ["HEAD_BYTES", "RECORD", "RECORD_BYTES", "EpochManifest", "EpochProgram", "EpochStep", "record_bytes"]

FORMAT = 1
HEAD_BYTES = 128

RECORD = np.dtype(
    [
        ("maps", "<u8"),  # address of its tensor maps, less those of programs before
        ("partials", "<i8"),  # where its partial results are, in bytes
        ("predicate", "<u8"),  # address of what has to differ from zero; 0: nothing has to
        ("pointers", "<i4"),  # where its pointers begin in the record, less 8 bytes for each argument of programs before
        ("predicate_bytes", "<i4"),  # 1, 4 or 8, and 256 times how many instances behind it end with it (`EpochManifest.loops`)
        ("first", "<i4"),  # its first ticket, less the pieces of programs before
        ("slots", "<i4"),  # number of its first counter, less those of programs before
        ("upstream", "<i4"),  # its first pair among all of `upstream`
        ("upstream_count", "<i4"),
        ("done", "<i4"),  # the counter that says when it has ended,
        ("target", "<i4"),  # and the count from which on it has
        ("first_ticket", "<i4"),
        ("decision", "<i4"),  # the counter that says what was decided (`EpochManifest.loops`): 1 it is done, 2 it is not
    ]
)
RECORD_BYTES = RECORD.itemsize


def record_bytes(arguments: int) -> int:
    """Bytes from one record to the next where a program has so many arguments at most, its arena included."""
    return -(-(RECORD_BYTES + 8 * arguments) // 32) * 32


@dataclasses.dataclass(frozen=True)
class EpochStep:
    """A task of a program.

    Attributes:
        step: its number among the tasks of all programs.
        name, engine: for messages.
        pieces: of work.
        root: whether it looks for the end of what its instance depends on.
    """

    step: int
    name: str
    engine: str
    pieces: int
    root: bool


@dataclasses.dataclass(frozen=True)
class EpochProgram:
    """One of an epoch kernel's programs.

    Attributes:
        digest: of the program's own code, by which a `Program` is recognised.
        first_pointer, first_map, first_slot, first_piece: how many of programs before there are.
        input_bytes, result_bytes: size of each input and result, whose pointers come in this order, then the arena's.
        arena_bytes: size of the arena; 0 for none.
        maps: its tensor maps.
        slots: counters of an instance.
        partial_bytes: partial results of an instance, a multiple of 256.
        done, target: the counter (from `first_slot` on) that says when an instance has ended, and the count.
        steps: its tasks in order.
    """

    digest: str
    first_pointer: int
    first_map: int
    first_slot: int
    first_piece: int
    input_bytes: tuple[int, ...]
    result_bytes: tuple[int, ...]
    arena_bytes: int
    maps: tuple[Parameter, ...]
    slots: int
    partial_bytes: int
    done: int
    target: int
    steps: tuple[EpochStep, ...]

    @functools.cached_property
    def arguments(self) -> int:
        """Pointers that a run is given, the arena's included."""
        return len(self.input_bytes) + len(self.result_bytes) + 1

    @functools.cached_property
    def pieces(self) -> int:
        """Pieces of work of an instance: so many tickets it takes."""
        return sum(step.pieces for step in self.steps)

    @functools.cached_property
    def words(self) -> np.ndarray:
        """The second words of an instance's tickets."""
        return np.concatenate([np.full(step.pieces, 2 * step.step + step.root, np.int32) for step in self.steps])


@dataclasses.dataclass(frozen=True)
class EpochManifest:
    """An epoch kernel.

    Attributes:
        kernel: symbol of the kernel in the cubin.
        chip: processor that the cubin is for.
        threads: threads per block.
        shared_bytes: dynamic shared memory per block.
        scratch_bytes: global memory per block.
        least_blocks: fewer blocks at the same time cannot run it: the pieces of a tile wait for each other.
        programs: what it can run.
        debug: whether waits are bounded and report.
        loops: whether a condition is looked at once for all pieces of an instance, and instances behind it that have the same
            condition, and nothing else to wait for, end with one of which it does not hold. The last counter of each instance
            is that of the decision.
    """

    kernel: str
    chip: str
    threads: int
    shared_bytes: int
    scratch_bytes: int
    least_blocks: int
    programs: tuple[EpochProgram, ...]
    debug: bool = False
    loops: bool = False

    @functools.cached_property
    def record_bytes(self) -> int:
        """Bytes from one record to the next."""
        return record_bytes(max(program.arguments for program in self.programs))

    def to_json(self) -> str:
        """The manifest as JSON text."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)})

    @staticmethod
    def from_json(text: str) -> EpochManifest:
        """The manifest of a JSON text; ValueError, TypeError or KeyError if it is none."""
        fields = json.loads(text)
        if fields.pop("format") != FORMAT:
            raise ValueError(f"the manifest of an epoch kernel has format {FORMAT}")
        programs = []
        for one in fields.pop("programs"):
            one["maps"] = tuple(Parameter(**parameter) for parameter in one["maps"])
            one["steps"] = tuple(EpochStep(**step) for step in one["steps"])
            one |= {key: tuple(one[key]) for key in ("input_bytes", "result_bytes")}
            programs.append(EpochProgram(**one))
        return EpochManifest(**fields, programs=tuple(programs))
