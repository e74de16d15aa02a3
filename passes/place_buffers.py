"""`kitsune-place-buffers`: give every edge a place, and every intermediate in memory an offset in one arena."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.dialects import buffer_attr
from kitsune_mlir.dialects.access import shape_of
from kitsune_mlir.dialects.attribute_table import INTO
from kitsune_mlir.dialects.edges import grid_of, producer_of, readers_of, stages_of, trace_views
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.stage_graph import inputs_of, mode_of, overwritten, results_of, yielded
from kitsune_mlir.dialects.unchanged import unchanged
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.passes.spatial.rings import RingEdge, ring_edge
from kitsune_mlir.passes.stages.rows_in_place import rows_in_place
from kitsune_mlir.passes.tile_program.scatter import handed_over

from .arena import Interval
from .base import Pass, PassFailure
from .shared_bytes import Waits, place

ALIGNMENT = 256  # bytes; what cudaMalloc gives, and more than any vector or bulk copy asks for


class _Old:
    """Who reads what stages of a pipeline write over: arguments, or what was written there.

    Args:
        stages: all of them, in order.
    """

    def __init__(self, stages: list[ir.Operation]):
        self._own = [{number for number in overwritten(stage) if number >= 0} for stage in stages]
        self._names = [ir.StringAttr(stage.attributes["sym_name"]).value for stage in stages]
        self._joined: dict[str, set[int]] = {}  # what the scatter-adds write over that a stage does
        self._readers: dict[int, list[int]] = {}
        for own, stage in zip(self._own, stages, strict=True):
            if INTO in stage.attributes:
                self._joined.setdefault(ir.StringAttr(stage.attributes[INTO]).value, set()).update(own)
        written = set().union(*self._own)
        for n, stage in enumerate(stages if written else ()):
            for number in dict.fromkeys(map(_argument_of, inputs_of(stage))):
                if number in written:
                    self._readers.setdefault(number, []).append(n)

    def readers(self, n: int) -> set[int]:
        """The stages that read what stage n, or a scatter-add that it does, writes over."""
        arguments = self._own[n] | self._joined.get(self._names[n], set())
        return {m for number in arguments for m in self._readers.get(number, ()) if m < n}


def _argument_of(value: ir.Value) -> int:
    """The argument of the function in whose memory a tensor lies, or -1."""
    source, _ = trace_views(value)
    maker, result = producer_of(source)
    return ir.BlockArgument(source).arg_number if maker is None else overwritten(maker)[result]


def _in_each_others_place(intervals: Sequence[Interval], stages: list[ir.Operation], readers) -> list[list[Interval]]:
    """The intervals in order, those together of which each is written, row by row, in the place of the one before."""
    chains: dict[tuple[int, int], list[Interval]] = {}  # by the result that is the last of each
    for mine in sorted(intervals, key=lambda i: i.stage):
        places = rows_in_place(stages, readers, mine.stage, mine.result)
        chain = next((chains.pop(p) for p in places if p in chains and chains[p][-1].size == mine.size), [])
        mine.before = chain[-1] if chain else None
        chains[mine.stage, mine.result] = [*chain, mine]
    return list(chains.values())


@dataclass(frozen=True)
class PlaceBuffers(Pass):
    """Give every result of a stage a space and, in memory, an offset in the arena by liveness.

    Values inside a stage live in registers and shared memory (the engine decides); edges between stages are `global`, or in a
    spatial pipeline `queue` where both ends go tile by tile: a ring of `rings` tiles. Buffers share bytes where that costs no
    wait: where the writer of one comes in a later launch than the writer and the readers of the other, or waits for all of what
    has waited for them. Others do when `slack` stages lie between the last reader of one and the writer of the other, which
    then waits for those readers (attribute `after`), and bytes are saved; not where all buffers take `apart` or less: they stay
    in L2 in any case, and a wait and the posts for it cost more than the bytes save. Separate launches need no slack; where all
    buffers take `apart` or less, those share of which one follows from the other. What is written over an argument waits for
    those who read what was there. Beside that, rows take the place of rows of which the tile's own waits say that nobody reads
    them any more, as in a chain of layers; that costs no waiting. Options: `slack`; `apart`; `limit`: most bytes the arena may
    take; `rings`: tiles of every ring, instead of the stages' own `ring`; `ring_limit`: most bytes that all rings may take
    together (beyond 9 MiB they spill from an H200's L2).
    """

    name: ClassVar[str] = "kitsune-place-buffers"
    only_schedules: ClassVar[bool] = True
    slack: int = 2
    apart: int = 16 << 20
    limit: int = 0
    rings: int = 0
    ring_limit: int = 9 << 20

    def run(self, module: ir.Operation) -> None:
        with module.context, ir.Location.unknown():
            for op in list(walk(module)):
                if op.name == "kitsune.pipeline":
                    with unchanged():
                        self._place(op)

    def _place(self, pipeline: ir.Operation) -> None:
        stages = stages_of(pipeline)
        number = {hash(stage): n for n, stage in enumerate(stages)}
        # A value that leaves the pipeline is written where the caller wants it.
        leaving = {producer_of(trace_views(v)[0]) for v in yielded(pipeline)}
        leaving_keys = {(hash(stage), result) for stage, result in leaving}
        leaving_keys |= {(hash(stage), result) for stage in stages for result, n in enumerate(overwritten(stage)) if n >= 0}
        intervals: list[Interval] = []
        depths = {n: self._depth(stage) for n, stage in enumerate(stages) if mode_of(pipeline) == "spatial"}
        found = {n: ring_edge(stages[n]) for n, depth in depths.items() if depth}
        rings = {n: edge for n, edge in found.items() if isinstance(edge, RingEdge)}
        readers: dict[tuple[int, int], list[int]] = {}
        names = {ir.StringAttr(stage.attributes["sym_name"]).value: n for n, stage in enumerate(stages)}
        for n, stage in enumerate(stages):
            # A scatter-add that its producer does itself begins with that producer.
            first = names[ir.StringAttr(stage.attributes[INTO]).value] if INTO in stage.attributes else n
            for result, users in readers_of(stage).items():
                readers[n, result] = sorted(number[hash(u)] for u in users)
            for result, value in enumerate(results_of(stage)):
                if (hash(stage), result) in leaving_keys or handed_over(stage, result):
                    continue
                size = max(1, tensor_bytes(value.type))
                last = max([n, *readers.get((n, result), [])])
                if n in rings:  # its bytes are nobody else's
                    size = depths[n] * rings[n].rows * size // shape_of(value)[0]
                    first, last = 0, len(stages)
                size = -(-size // ALIGNMENT) * ALIGNMENT
                intervals.append(Interval(n, result, size, first, last))
        self._check_rings([i for i in intervals if i.stage in rings], stages)
        together = sum(interval.size for interval in intervals)
        order = Waits(stages, readers, mode_of(pipeline) == "separate", free=not rings)
        slack = 0 if order.separate else self.slack
        if (slack or order.separate) and together <= min(self.apart, self.limit or self.apart):
            slack = None
        chains = [[interval] for interval in intervals]
        if slack and not rings:
            chains = _in_each_others_place(intervals, stages, readers)
        total = place(chains, slack, order)
        if self.limit and total > self.limit:
            largest = max(intervals, key=lambda i: i.size)
            raise PassFailure(
                stages[largest.stage],
                f"intermediates need {total} bytes, the limit is {self.limit}; the largest edge is result "
                f"{largest.result} of this stage with {largest.size} bytes",
            )
        pipeline.attributes["arena"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), total)
        offsets = {(i.stage, i.result): i.offset for i in intervals}
        old = _Old(stages)
        for n, stage in enumerate(stages):
            count = max(1, len(results_of(stage)))
            space = buffer_attr("queue", depths[n]) if n in rings else buffer_attr("global")
            stage.attributes["buffers"] = ir.ArrayAttr.get([space] * count)
            stage.attributes["offsets"] = ir.DenseI64ArrayAttr.get([offsets.get((n, r), -1) for r in range(count)])
            after = sorted({*(a for i in intervals if i.stage == n for a in order.after(i, intervals)), *old.readers(n)})
            stage.attributes["after"] = ir.ArrayAttr.get([ir.StringAttr(stages[a].attributes["sym_name"]) for a in after])

    def _depth(self, stage: ir.Operation) -> int:
        """Tiles of the ring that a stage's result is to have; 0 for none, as where the ring would hold all of its tiles."""
        wanted = ir.IntegerAttr(stage.attributes["ring"]).value if "ring" in stage.attributes else 0
        return self.rings or (wanted if wanted < grid_of(stage).extents[0] else 0)

    def _check_rings(self, rings: list[Interval], stages: list[ir.Operation]) -> None:
        """All rings fit their part of L2."""
        total = sum(ring.size for ring in rings)
        if total > self.ring_limit:
            largest = max(rings, key=lambda ring: ring.size)
            raise PassFailure(
                stages[largest.stage],
                f"rings need {total} bytes of L2, the limit is {self.ring_limit}; the largest is that of result "
                f"{largest.result} of this stage with {largest.size} bytes",
            )
