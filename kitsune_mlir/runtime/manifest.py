"""What a compiled program needs at a launch, as plain data: written by the compiler, read by the runtime.

The kernel's parameters are pointers and tensor maps. One of them is the *workspace*, device memory that belongs to one
stream's launches of the program and must be zero before the first of them:

    0                    one word a block: which of the two arrays of counters the next run uses (0 or 1)
    COUNTERS             the first array: `slots` counters, SLOT_STRIDE bytes apart
    COUNTERS + n         the second array
    then                 in a debug build: REPORT_BYTES that say whether a wait gave up, and as much for each block
    then                 `scratch_bytes` for each block
    then                 for each block, the start and the end of each task (builds with timestamps)
    then                 for each block, how long it waited in each task: two words that take turns as counters do (the same)

A kernel that counts nothing, and has nothing else there, has no workspace: its pointer is not followed.

A run counts in one array and clears the other for the next run, so that repeated launches and replays of a captured
graph need nothing between them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from kitsune_mlir.runtime.plain import shown

__all__ = [
    "COUNTERS",
    "MAX_BLOCKS",
    "REPORT_BYTES",
    "REPORT_FIELDS",
    "REQUEST_HEADER",
    "SLOT_STRIDE",
    "TIMESTAMP_BYTES",
    "WAITS_BYTES",
    "Manifest",
    "Parameter",
    "parameters_problem",
]

FORMAT = 1

REQUEST_HEADER = 64
"""Bytes at the start of a table of requests: words of 64 bits, the number of requests, the addresses of the workspace and of
all tensor maps (a request's one after the other). A row for each request follows: the pointers but that to the workspace."""

MAX_BLOCKS = 8192
COUNTERS = 4 * MAX_BLOCKS
SLOT_STRIDE = 32
"""Bytes between counters: one sector of L2 each, so that atomics on different counters do not queue up."""

REPORT_BYTES = 32
REPORT_FIELDS = ("gave_up", "task", "slot", "seen", "wanted")
"""The words of a block's report: the first of its waits that was not satisfied; `gave_up` is 1 if there is one."""

TIMESTAMP_BYTES = 16
"""Two 64-bit times in nanoseconds of the device's clock: a block's start and end of a task."""

WAITS_BYTES = 16
"""Two 64-bit sums of nanoseconds: what a block spent in the waits of a task, in this run and in the one before."""


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One kernel parameter, in order.

    Attributes:
        kind: "input", "result", "arena" or "workspace" (a pointer), or "tensor_map". Pointers come first, the workspace last of
            them; tensor maps follow.
        index: which input or result; 0 for the arena and the workspace. A tensor map describes memory of `of` number `index`.
        of: for a tensor map, whose memory it describes: "input", "result" or "arena".
        offset: bytes from the beginning of that memory to where the pointer shows, or the tensor map's first element is.
        map: for a tensor map, its description for `runtime.tensormap.encode`.
    """

    kind: str
    index: int = 0
    of: str = ""
    offset: int = 0
    map: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A compiled program's kernel.

    Attributes:
        kernel: symbol of the kernel in the cubin.
        chip: processor that the cubin is for ("sm_90a").
        parameters: the kernel's parameters, in order.
        threads: threads per block.
        shared_bytes: dynamic shared memory per block.
        slots: number of semaphore counters.
        scratch_bytes: global memory per block.
        partial_bytes: global memory for partial results of tiles that several blocks share.
        streaming: nothing in the kernel waits, and every tile gets a block of its own.
        timestamps: whether every block writes when it began and ended each task.
        follows: the kernel waits itself for the end of the kernel before it, so that it may be started earlier.
        workers: blocks that the tasks of a spatial program are dealt out to; 0 for a temporal one.
        least_blocks: fewer blocks at the same time cannot run it, because these wait for each other:
        together: the ends of a ring, the pieces of a tile, a cluster.
        cluster: blocks of a cluster, which do each tile together; `tiles` counts every tile that often.
        selected: the kernel takes pointers to what it uses only, and to places in the arena, as `parameters` has them; others
            take one to each input and result and to the arena.
        arrays: the kernel takes two parameters, an array of all pointers and one of all tensor maps, each in their order.
        arena_bytes: size of the arena (of a request).
        input_bytes, result_bytes: size of each input and result.
        requests: most requests of a launch. More than 1: the kernel takes one parameter, a pointer to a table of requests
            (`REQUEST_HEADER`), and not those that `parameters` has. `slots` and `partial_bytes` are those of all requests.
        least_requests: fewest requests of a launch that the kernel is for; those before it in a program are for fewer.
        overwrites: for each result the input whose memory it must be given, and whose values it holds before; -1 for none.
            Empty is none at all.
        tiles: more blocks than this have nothing to do: tiles of all tasks together, or fewer where tasks follow each other.
        tasks: for messages: [name, engine, tiles] of each task, in order.
        debug: whether waits are bounded and report into the workspace.
        counters: of a debug build, for messages: what each counter counts ("tile (2, 1) of stage 'relu'").
    """

    kernel: str
    chip: str
    parameters: tuple[Parameter, ...]
    threads: int
    shared_bytes: int
    slots: int
    scratch_bytes: int
    arena_bytes: int
    input_bytes: tuple[int, ...]
    result_bytes: tuple[int, ...]
    tiles: int
    tasks: tuple[tuple[str, str, int], ...]
    debug: bool = False
    counters: tuple[str, ...] = ()
    partial_bytes: int = 0
    streaming: bool = False
    timestamps: bool = False
    follows: bool = False
    workers: int = 0
    least_blocks: int = 1
    together: str = "a launch"
    cluster: int = 1
    arrays: bool = False
    selected: bool = False
    overwrites: tuple[int, ...] = ()
    requests: int = 1
    least_requests: int = 1

    @property
    def counter_bytes(self) -> int:
        """Size of one of the two arrays of counters, a multiple of 256."""
        return -(-self.slots * SLOT_STRIDE // 256) * 256

    @property
    def arena_stride(self) -> int:
        """Bytes from one request's arena to the next one's."""
        return self.arena_bytes if self.requests == 1 else -(-self.arena_bytes // 256) * 256

    @property
    def debug_offset(self) -> int:
        """Where the debug report is in the workspace."""
        return COUNTERS + 2 * self.counter_bytes

    @property
    def partials_offset(self) -> int:
        """Where partial results are in the workspace."""
        return self.debug_offset + (REPORT_BYTES * (MAX_BLOCKS + 8) if self.debug else 0)

    @property
    def scratch_offset(self) -> int:
        """Where the scratch of block 0 is in the workspace."""
        return self.partials_offset + self.partial_bytes

    def timestamps_offset(self, blocks: int) -> int:
        """Where the timestamps of block 0 are in the workspace of a grid of `blocks`."""
        return self.scratch_offset + blocks * self.scratch_bytes

    def workspace_bytes(self, blocks: int) -> int:
        """Size of the workspace for a grid of `blocks`; 0 where the kernel touches none of it."""
        if not (self.slots or self.debug or self.timestamps or self.partial_bytes or self.scratch_bytes):
            return 0
        each = TIMESTAMP_BYTES + WAITS_BYTES if self.timestamps else 0
        return self.timestamps_offset(blocks) + blocks * len(self.tasks) * each

    def waits_offset(self, blocks: int) -> int:
        """Where the waits of block 0 are in the workspace of a grid of `blocks`."""
        return self.timestamps_offset(blocks) + blocks * len(self.tasks) * TIMESTAMP_BYTES

    @property
    def cleared_bytes(self) -> int:
        """How much of the workspace must be zero before the first launch; nothing, where nothing is counted.

        Partial results too, where nothing was counted in a run before: their marks would be others' (`contraction.split_k`).
        """
        return self.scratch_offset if self.slots or self.debug else 0

    def to_json(self) -> str:
        """The manifest as JSON text."""
        fields = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }  # `asdict` would copy all numbers
        return json.dumps({"format": FORMAT, **fields}, default=dataclasses.asdict)


def parameters_problem(manifest: Manifest) -> str:
    """What is wrong with the order of a kernel's parameters; "" if nothing is.

    Pointers are to all inputs, results and the arena in this order, or where they are selected, to some of them in any order,
    each place once; then the workspace; tensor maps follow.
    """
    inputs, results = len(manifest.input_bytes), len(manifest.result_bytes)
    all_of_them = [("input", n) for n in range(inputs)] + [("result", n) for n in range(results)] + [("arena", 0)]
    found = [(parameter.kind, parameter.index) for parameter in manifest.parameters]
    pointers = found[: next((n for n, (kind, _) in enumerate(found) if kind == "tensor_map"), len(found))]
    maps = found[len(pointers) :]
    taken = [(p.kind, p.index, p.offset) for p in manifest.parameters[: len(pointers)]]
    some = {*pointers[:-1]} <= {*all_of_them} and len({*taken}) == len(taken)
    known = some if manifest.selected else pointers[:-1] == all_of_them
    if not known or pointers[-1:] != [("workspace", 0)] or any(kind != "tensor_map" for kind, _ in maps):
        return f"its parameters are in an unknown order: {shown(found)}"
    return ""
