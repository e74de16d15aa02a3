"""Rows: which threads share them, how long they stay in registers, and what goes through shared memory.

The rules, in the order in which they are applied:

1. Vectors: the width with the fewest loads and stores an element, by a trial emission; the smaller one if it is close.
2. Where rows begin at addresses that allow no wide accesses, tiles go through shared memory (`simt.staging`).
3. A row that no block can keep, or one of few, is shared by the blocks of a cluster (`simt.cluster_rows`).
4. A row gets the fewest neighbouring threads (a power of two) that keep `ROW_ELEMENTS` of it in a thread's registers, half as
   many where it needs more than a warp (every reduction then costs a barrier, which only other blocks can fill).
5. A row that does not fit the registers of `MOST_THREADS` stays in shared memory between passes, and is read again from
   memory if it does not fit there either.
6. A thread has at least `BYTES_IN_FLIGHT` on the way, as far as `ROW_ELEMENTS` and the tile allow.
"""

from __future__ import annotations

import dataclasses
import math

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.simt.choose_columns import (
    BYTES_IN_FLIGHT,
    MOST_BLOCKS,
    MOST_THREADS,
    ROW_ELEMENTS,
    THREADS,
    column_schedule,
    farther,
)
from kitsune_mlir.codegen.gpu.engines.simt.dry_run import probe
from kitsune_mlir.codegen.gpu.engines.simt.graph import Graph, generic_sizes
from kitsune_mlir.codegen.gpu.engines.simt.memory import Access
from kitsune_mlir.codegen.gpu.engines.simt.row_space import RowSpace, find_rows
from kitsune_mlir.codegen.gpu.engines.simt.rows import emit_rows
from kitsune_mlir.codegen.gpu.engines.simt.schedule import RowSchedule, is_softmax, levels_of, scratch_bytes
from kitsune_mlir.codegen.gpu.engines.simt.split_rows import split_of
from kitsune_mlir.codegen.gpu.engines.simt.staging import EDGE, Staging, is_contiguous, stage
from kitsune_mlir.codegen.gpu.engines.simt.widths import best_width
from kitsune_mlir.codegen.gpu.interface.split import Split
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.sizes import element_bytes
from kitsune_mlir.dialects.tile_records import Load, Store
from kitsune_mlir.dialects.unchanged import found_once
from kitsune_mlir.dialects.verify import captures
from kitsune_mlir.errors import UnsupportedError

__all__ = ["DEFAULTS", "RowChoice", "Overrides", "choose_rows", "registers_of", "row_schedule", "shared_bytes"]

WARP = 32

LINE = 128
"""Bytes that neighbouring threads should read side by side: a line of the cache."""

MANY_LEVELS = 4
"""From so many reductions one after the other, several values of each element live at a time."""

MANY_READ, VECTOR = 4, 16
"""Of so many tensors, by vectors of so many bytes, a thread that reads rows has half as many elements: else the vectors on the
way, and what is made of them in f32, leave registers for one block of a multiprocessor."""

MANY_COLUMNS = 16384
"""Rows this long take most of a block's registers."""

NARROW = 8
"""Rows that begin at multiples of this are read and written well enough without shared memory."""

NARROW_ELEMENTS, NARROW_THREADS = 12, 16
"""Rows that begin at other addresses, of up to the product, have at most so many elements a thread, so that the threads of a
warp that have neighbouring rows read other banks."""

BLOCKS_EACH = 2
"""Blocks for each multiprocessor that a split reduction should have, in a launch of its own."""

SHARED_BYTES = 220 << 10
"""What tiles in shared memory may take."""

CROWDED = 3
"""Blocks of a multiprocessor that hide each other's loads."""


@dataclasses.dataclass(frozen=True)
class Overrides:
    """A choice to be made otherwise than the rules would; None leaves it to them.

    Attributes:
        elements: of a row that a thread has.
        threads: of a block.
        staged: whether tiles go through shared memory.
        slots: tiles in shared memory at a time.
        unroll: rows that a thread has a part of at a time.
        cluster: blocks that share a row.
    """

    elements: int | None = None
    threads: int | None = None
    staged: bool | None = None
    slots: int | None = None
    unroll: int | None = None
    cluster: int | None = None


DEFAULTS = Overrides()


@dataclasses.dataclass(frozen=True)
class RowChoice:
    """A schedule of rows, and what goes through shared memory beside it."""

    schedule: RowSchedule
    staging: Staging | None
    levels: int
    split: Split | None = None


def choose_rows(
    graph: Graph, wide: list[ir.Operation], stores: list[Store], tuning: Overrides, workers: int, more: bool = False
) -> RowChoice:
    """A schedule for reductions that threads make together, and for stores of rows.

    Args:
        more: the task has other stores, too.

    Raises:
        UnsupportedError: the reductions are not over the same columns.
    """
    space = find_rows(graph, wide, stores)
    for op in wide:
        if op not in space.shared:
            limit = "the reductions of a task are over the same columns"
            raise UnsupportedError(op.name, limit, generic_sizes(op), str(op.location))
    extent = (space.cols if space.row_major else space.rows)[-1][1]
    widths = [width for width in (1, 2, 4, 8, 16) if extent % width == 0]

    def trial(width: int) -> list[Access]:
        schedule = RowSchedule(space, THREADS, width, 1, 1, 1, True)
        return probe(graph.task, THREADS, lambda tile: emit_rows(schedule, graph, tile, probe=True))

    key = ("width of rows", *graph.key, *(graph.task.stores.index(store) for store in stores))
    width, accesses = found_once(key, lambda: best_width(widths, trial, graph))
    read = max(1, sum(access.bytes for access in accesses if not access.writes))
    levels = len(levels_of(graph, space))
    if not space.row_major:
        cluster = 1 if more else tuning.cluster
        read = max(1, sum(access.bytes for access in accesses if not (access.writes or access.once)))
        passes = levels + bool(space.full)
        columns = column_schedule(graph, space, width, read, passes, workers, cluster)
        split = _split(columns, graph, levels, workers)
        if passes == 1:
            columns = farther(columns, read, split.pieces if split else 1)
        return RowChoice(columns, None, levels, split)
    loads, writes = _rows_of_memory(graph, space)
    windows: list[Load | Store] = [*loads, *writes]
    narrow = any(_row_bytes(window, space) % NARROW for window in windows)
    blocks = 1 if more else _cluster_blocks(graph, space, windows, levels, tuning, workers)
    if blocks > 1:
        return _clustered(graph, space, width, read, loads, levels, dataclasses.replace(tuning, cluster=blocks))
    fits = -(-space.col_count // THREADS) <= 2 * ROW_ELEMENTS
    once = levels == 1 and not space.full
    # Weights come late, after the reductions: a block that stays has them in registers, and the next row on the way.
    stays = fits and levels > 1 and _reads_weights(graph, space) and space.col_count >= MANY_COLUMNS
    staged = bool(loads) and (narrow or stays or not (fits or once)) if tuning.staged is None else tuning.staged
    # Taking rows of 16-bit elements apart is half of the work: the next tile is on the way meanwhile.
    short = narrow and space.col_count <= NARROW_ELEMENTS * NARROW_THREADS
    halves = short and any(element_bytes(window.buffer.element) <= 2 for window in windows)
    staging = None
    if staged:
        ragged = [store for store in writes if _row_bytes(store, space) % NARROW]
        slots = tuning.slots or (2 if stays or halves else 1)
        staging = probe(graph.task, THREADS, lambda tile: stage(graph, tile, loads, ragged, slots))
        if staging.bytes > SHARED_BYTES // slots:
            staging = None
    softmax = any(is_softmax(graph, space, number) for number in range(levels))
    running = softmax and levels >= MANY_LEVELS and staging is None and graph.precision.approximate
    held = SHARED_BYTES // staging.bytes if staging is not None else 0
    many = read >= MANY_READ * VECTOR and width * 2 <= VECTOR
    tuning = _filled(tuning, graph, space, levels, held, short, stays, running, many)
    schedule = row_schedule(space, width, read, staging is not None, tuning, _most_threads(graph))
    schedule = dataclasses.replace(schedule, running=running and schedule.resident)
    if staging is not None:
        schedule = dataclasses.replace(schedule, scratch=staging.bytes)
        staging = _in_parts(staging, schedule)
    split = _split(schedule, graph, levels, workers) if staging is None else None
    return RowChoice(schedule, staging, levels, split)


def _filled(
    tuning: Overrides,
    graph: Graph,
    space: RowSpace,
    levels: int,
    held: int,
    short: bool,
    stays: bool,
    running: bool,
    many: bool,
) -> Overrides:
    """The choices for elements, threads and rows of a thread that were measured to be best, where `tuning` leaves them open.

    Args:
        held: blocks of a multiprocessor that shared memory has room for; 0 where nothing goes through it.
        many: a thread reads vectors of many tensors.
    """
    staged = held > 0
    elements, threads, unroll = None, None, None
    fits = -(-space.col_count // THREADS) <= 2 * ROW_ELEMENTS
    weights = _reads_weights(graph, space)
    if staged and short:
        elements, threads = NARROW_ELEMENTS, 2 * THREADS
    if staged and stays:
        elements = ROW_ELEMENTS
    if not fits and (staged or levels == 1):
        threads = MOST_THREADS if weights else MOST_THREADS // 2
        long = space.col_count > MOST_THREADS * ROW_ELEMENTS
        if held >= (2 if long else CROWDED) and levels > 1 and not weights:
            # In the registers of twice as many threads they would take a multiprocessor's; from shared memory three blocks
            # read them (a softmax's gradient, 2,048 rows of 30,528 numbers of 16 bits on an H200: 66 us, 101 before), or two
            # (4,096 rows of 50,264: 429 us with exact exponentials, and 590 by one block of 512 threads with 109 registers).
            threads = THREADS
    if running:
        # A warp has a row of 1,024 columns beside 64 registers a thread, so that 4,096 of these are one wave (stitch: 7.6 us
        # instead of 9.3 back to back).
        elements, unroll = ROW_ELEMENTS, 1
    elif levels >= MANY_LEVELS:
        elements = ROW_ELEMENTS // 2
        if weights and space.col_count > WARP * ROW_ELEMENTS:
            # Two rows for each column's weights, and for what is made of these. Of 1,024 columns two warps have one: they
            # need half the registers of one warp (four reductions: 9.3 us; a warp 10.0, four warps 10.4).
            elements, unroll = ROW_ELEMENTS // 4, 2
    elif many and space.full and not staged:
        elements = ROW_ELEMENTS // 2
    if threads is not None:
        threads = min(threads, _most_threads(graph))
    return dataclasses.replace(
        tuning,
        elements=tuning.elements or elements,
        threads=tuning.threads or threads,
        unroll=tuning.unroll or unroll,
    )


def _cluster_blocks(
    graph: Graph, space: RowSpace, windows: list[Load | Store], levels: int, tuning: Overrides, workers: int
) -> int:
    """Blocks that share each row, in a program of its own: where no block can keep a row, or rows are fewer than workers."""
    task = graph.task
    alone = task.program_tasks == 1 and not task.waits and not task.posts
    ragged = any(_row_bytes(window, space) % EDGE for window in windows)
    if not alone or levels + bool(space.full) < 2 or space.row_count > 1 or ragged:
        return 1
    if tuning.cluster:
        return tuning.cluster
    kept = sum({window.buffer.memory: _row_bytes(window, space) for window in windows if isinstance(window, Load)}.values())
    few = 2 * task.tiles <= workers and space.col_count >= MANY_COLUMNS
    return MOST_BLOCKS if few or SHARED_BYTES < kept <= MOST_BLOCKS * SHARED_BYTES else 1


def _clustered(
    graph: Graph, space: RowSpace, width: int, read: int, loads: list[Load], levels: int, tuning: Overrides
) -> RowChoice:
    """A row for the blocks of a cluster, each of which keeps its share in registers, or in shared memory."""
    threads = tuning.threads or THREADS
    schedule = RowSchedule(space, threads, width, threads, 1, 1, False, blocks=tuning.cluster or 1)
    steps = schedule.col_steps
    resident = steps * width <= (tuning.elements or 2 * ROW_ELEMENTS)
    group = steps if resident else max(1, min(steps, BYTES_IN_FLIGHT * 2 // read, ROW_ELEMENTS // width))
    schedule = dataclasses.replace(schedule, steps=group, resident=resident)
    staging = None
    if loads and (tuning.staged or (tuning.staged is None and not resident)):
        share = schedule.share
        slots = tuning.slots or 1
        staging = probe(graph.task, THREADS, lambda tile: stage(graph, tile, loads, [], slots, share))
        if staging.bytes > SHARED_BYTES:
            staging = None
    if staging is not None:
        schedule = dataclasses.replace(schedule, scratch=staging.bytes)
        staging = _in_parts(staging, schedule)
    return RowChoice(schedule, staging, levels)


def _in_parts(staging: Staging, schedule: RowSchedule) -> Staging:
    """Rows that are gone over in a loop come piece by piece."""
    if schedule.resident or schedule.space.row_count > 1:
        return staging
    return staging.in_parts(schedule.col_steps, schedule.steps, schedule.fast * schedule.width)


def _split(schedule: RowSchedule, graph: Graph, levels: int, workers: int) -> Split | None:
    """Several blocks for each tile where there are too few, and results are of rows alone and need one pass."""
    space = schedule.space
    if schedule.resident or space.full or levels > 1 or schedule.rows_at_once < space.row_count:
        return None
    kinds = sum(len(op.results) for op in space.shared)
    groups = -(-schedule.col_steps // schedule.steps)
    each = BLOCKS_EACH if graph.task.program_tasks == 1 else 1
    return split_of(graph.task.tiles, groups, kinds * space.row_count, each * workers)


def _rows_of_memory(graph: Graph, space: RowSpace) -> tuple[list[Load], list[Store]]:
    """Loads and stores of whole rows that are one piece of memory; not what is gathered by index."""
    gathered = {value for op in graph.task.work() if len(op.regions) for value in captures(op)}
    points = space.row_count * space.col_count
    loads = [
        load
        for load in graph.task.loads
        if load.tensor not in gathered
        and is_contiguous(load)
        and math.prod(shape_of(load.tensor)) == points
        and (graph.task.tiles == 1 or not all(isinstance(start, int) for start in load.offsets))
    ]
    return loads, [store for store in space.full if is_contiguous(store)]


def _most_threads(graph: Graph) -> int:
    """Threads of a block: in a kernel with other tasks, which may want many registers a thread, only `THREADS`."""
    return MOST_THREADS if graph.task.program_tasks == 1 else THREADS


def _reads_weights(graph: Graph, space: RowSpace) -> bool:
    """Whether something as long as a row, the same for all of several rows, is read."""
    if space.row_count * graph.task.tiles == 1:
        return False
    return any(math.prod(shape_of(load.tensor)) == space.col_count for load in graph.task.loads if load.whole)


def _row_bytes(window: Load | Store, space: RowSpace) -> int:
    return space.col_count * element_bytes(window.buffer.element)


def row_schedule(
    space: RowSpace, width: int, read: int, staged: bool, tuning: Overrides, most: int = MOST_THREADS
) -> RowSchedule:
    """Who shares rows.

    Args:
        width: points of a vector.
        read: bytes that a vector loads.
        staged: rows are read from shared memory.
        most: threads that a block may have.
    """
    rows, cols = space.row_count, space.col_count
    vectors = -(-cols // width)

    def enough(fast: int) -> bool:
        steps = -(-vectors // fast)
        elements = tuning.elements or (ROW_ELEMENTS if fast <= 32 or staged else ROW_ELEMENTS // 2)
        if fast >= THREADS and not tuning.elements:
            elements = 2 * ROW_ELEMENTS  # larger blocks leave too few of them to fill each other's barriers
        if fast < 32 and fast * read < LINE and not staged:
            return False
        if rows * fast < THREADS // 2 and steps > 2:
            return False  # threads would be idle
        return steps * width <= elements

    fast = 1
    while fast < most and fast < vectors and not enough(fast):
        fast *= 2
    threads = tuning.threads or max(THREADS, fast)
    fast = min(fast, threads)
    steps = -(-vectors // fast)
    slow = threads // fast
    if steps * width > 2 * ROW_ELEMENTS:
        group = max(1, min(steps, BYTES_IN_FLIGHT * 2 // read, ROW_ELEMENTS // width))
        return RowSchedule(space, threads, width, fast, 1, group, False)
    unroll = max(1, min(BYTES_IN_FLIGHT // (steps * read), ROW_ELEMENTS // (steps * width), -(-rows // slow)))
    unroll = min(tuning.unroll, -(-rows // slow)) if tuning.unroll else unroll
    return RowSchedule(space, threads, width, fast, unroll, steps, True)


def registers_of(choice: RowChoice) -> int:
    """Registers a thread: enough for the values that live from level to level, and for addresses and temporaries."""
    schedule = choice.schedule
    # The assembler is asked for less where this is too few (`cubin.assemble_best`).
    levels = 2 if schedule.resident and choice.levels > 3 and not schedule.running else 1
    alive = schedule.steps * schedule.width * schedule.unroll * levels
    most = 65536 // schedule.threads
    for registers in (40, 48, 64, 80, 128, 168):
        if alive + 28 <= registers:
            return min(registers, most)
    return min(255, most)


def shared_bytes(choice: RowChoice, graph: Graph) -> int:
    """Shared memory of a block: tiles, and what warps exchange."""
    return choice.schedule.scratch + scratch_bytes(choice.schedule, graph)[-1][1]
