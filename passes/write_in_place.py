"""`kitsune-write-in-place`: a result that is nothing but an argument's new value is written where the argument lies."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.dialects.attribute_table import INTO, MUTATES, ORDER, ORDERED, OVERWRITES, PADDED, UPDATES
from kitsune_mlir.dialects.edges import grid_of, producer_of, readers_of, stages_of, trace_views
from kitsune_mlir.dialects.same_place import made_in_place
from kitsune_mlir.dialects.sizes import HALF_TYPES
from kitsune_mlir.dialects.stage_graph import inputs_of, mode_of, overwritten, results_of, yielded
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.layouts.argument_orders import attributes_of, result_attributes
from kitsune_mlir.passes.tile_program.scatter import Scatter, scatter_of
from kitsune_mlir.passes.tile_program.waits import stages_by_name

from .base import Pass
from .remarks import remark

SMALLEST = 4
"""Tiles that become even may be so many times smaller."""
RUN = 64
"""Elements that lie side by side in tiles of another shape, at least: a line of memory of 16-bit numbers."""
MAPS = (
    *("linalg.generic", "linalg.fill", "tensor.empty", "tensor.splat", "arith.constant", "builtin.unrealized_conversion_cast"),
    "tensor.extract_slice",  # of something else: `made_in_place` takes none of the old value
)


@dataclass(frozen=True)
class WriteInPlace(Pass):
    """Write the new value of an argument that the model changes where the argument lies, where that is safe; else it has memory
    of its own, and the runtime copies it.

    Safe is what no reader of the old value can see. Stages that read it come before, and the writer waits for them. The writer
    itself may read it where each element of the result is made of the same element, by element-wise operations only, in tiles
    that do not overlap (they take another shape for that, and become up to four times smaller); or as the destination of a
    scatter, which then touches the rows that its indices name, and no others. Scatters one after the other (two slices of a
    cache) all write there.
    Options: `target`.
    """

    name: ClassVar[str] = "kitsune-write-in-place"
    only_schedules: ClassVar[bool] = True
    target: str = "host"

    def run(self, module: ir.Operation) -> None:
        atomics = find_target(self.target).is_gpu
        with module.context, ir.Location.unknown():
            for op in list(walk(module)):
                if op.name == "kitsune.pipeline":
                    _Results(op.parent.operation, op, atomics).place()


@dataclass(frozen=True)
class _Link:
    """A stage's result that is written over an argument; a scatter's is over `original`."""

    stage: ir.Operation
    result: int
    scatter: Scatter | None

    @property
    def name(self) -> str:
        return _name(self.stage)


class _Results:
    """The results of one pipeline. On a target without atomics the tile of a scatter that is written in place is all of it."""

    def __init__(self, function: ir.Operation, pipeline: ir.Operation, atomics: bool):
        self.function, self.pipeline, self.atomics = function, pipeline, atomics
        self.stages = stages_of(pipeline)
        # By name: an operation's hash is another one when its attributes change.
        self.order = {_name(stage): number for number, stage in enumerate(self.stages)}
        self.inputs = {_name(stage): [(value, trace_views(value)[0]) for value in inputs_of(stage)] for stage in self.stages}
        self.readers: dict[ir.Value, list[ir.Operation]] = {}
        for stage in self.stages:
            for source in {source for _, source in self.inputs[_name(stage)]}:
                self.readers.setdefault(source, []).append(stage)
        self.returned = [trace_views(value)[0] for value in yielded(pipeline)]

    def place(self) -> None:
        for number, value in enumerate(yielded(self.pipeline)):
            said = result_attributes(self.function, number)
            if MUTATES not in said:
                continue
            argument = ir.IntegerAttr(said[MUTATES]).value
            problem = self._place(value, argument, said)
            if problem:
                remark(self.pipeline, f"result {number} is copied to argument {argument}: {problem}")

    def _place(self, value: ir.Value, argument: int, said: dict[str, ir.Attribute]) -> str:
        """Write a returned value over an argument; what is in the way, "" if nothing is."""
        old = self.function.regions[0].blocks[0].arguments[argument]
        lies = {item.name: item.attr for item in attributes_of(self.function, argument)}
        if old.type != value.type or str(lies.get(ORDER)) != str(said.get(ORDER)) or PADDED in lies:
            return "they do not lie in memory in the same way"
        if mode_of(self.pipeline) == "spatial":
            return "stages of a spatial pipeline run at the same time"
        if old in self.returned:
            return "its old value is returned"
        links = self._links(value, old)
        if not links:
            return "no stage makes it"
        problem = ""
        while links:
            problem = self._problem(links, old)
            if not problem:
                self._write(links, argument, old)
                return ""
            links = links[:-1]
        return problem

    def _links(self, value: ir.Value, old: ir.Value) -> list[_Link]:
        """The stages that change the argument, the last one first, as far as each changes what the next one has made."""
        links: list[_Link] = []
        while True:
            source, _ = trace_views(value)
            stage, result = producer_of(source)
            if stage is None or stage.name != "kitsune.stage":
                return links
            scatter = scatter_of(stage) if ORDERED not in stage.attributes else None
            if scatter is not None and not self.atomics and _rounds(scatter):
                scatter = None
            links.append(_Link(stage, result, scatter))
            if scatter is None or scatter.start is not None:
                return links
            value = scatter.original

    def _problem(self, links: list[_Link], old: ir.Value) -> str:
        """Why these stages must not write over the argument `old`; "" if they may. The last link has no other before it."""
        made = [results_of(link.stage)[link.result] for link in links]
        if self.returned.count(made[0]) > 1 or any(value in self.returned for value in made[1:]):
            return "it is returned as a tensor of its own, too"
        for link, later in zip(links[1:], links, strict=False):
            problem = self._early_readers(readers_of(link.stage)[link.result], later, results_of(link.stage)[link.result])
            if problem:
                return problem
        first = links[-1]
        problem = self._early_readers(self.readers.get(old, []), first, old)
        if problem or (first.scatter is not None and trace_views(first.scatter.original)[0] == old):
            return problem
        read = self._looks(first.stage, old)
        return self._map_problem(first, read) if read else ""

    def _early_readers(self, readers: list[ir.Operation], link: _Link, old: ir.Value) -> str:
        """What keeps a link from writing over the value `old`: who reads it not before the link, or otherwise than as what the
        link itself changes."""
        begins = min(self.order[_name(stage)] for stage in self._doers(link))
        for reader in readers:
            if reader == link.stage:
                read = self._looks(reader, old)
                if link.scatter is not None and (read != [link.scatter.original] or _read_twice(link.scatter)):
                    return f"{link.name} reads its old value beside changing it"
            elif self.order[_name(reader)] >= begins:
                return f"{_name(reader)} reads its old value after {link.name} has begun"
        return ""

    def _doers(self, link: _Link) -> list[ir.Operation]:
        """The stage, and the one whose tasks do it."""
        if INTO not in link.stage.attributes:
            return [link.stage]
        return [link.stage, stages_by_name(self.stages)[ir.StringAttr(link.stage.attributes[INTO]).value]]

    def _looks(self, stage: ir.Operation, old: ir.Value) -> list[ir.Value]:
        """The inputs of a stage that are a value, or views of it."""
        return [value for value, source in self.inputs[_name(stage)] if source == old]

    def _map_problem(self, link: _Link, read: list[ir.Value]) -> str:
        """Why a stage that reads the argument must not write over it."""
        block = link.stage.regions[0].blocks[0]
        result = yielded(link.stage)[link.result]
        maps = all(op.operation.name in (*MAPS, "kitsune.yield") for op in block.operations)
        if link.scatter is not None or len(read) > 1 or not maps or not made_in_place(result, read[0], block):
            return f"{link.name} reads its old value elsewhere than where it writes"
        if read[0].type != result.type:
            return f"{link.name} sees its old value in another shape"
        return "" if _even_tiles(link.stage) is not None else f"tiles of {link.name} overlap, and would change an element twice"

    def _write(self, links: list[_Link], argument: int, old: ir.Value) -> None:
        for link in links:
            places = [argument if n == link.result else before for n, before in enumerate(overwritten(link.stage))]
            link.stage.attributes[OVERWRITES] = ir.DenseI64ArrayAttr.get(places)
            if link.scatter is None and self._looks(link.stage, old) and (even := _even_tiles(link.stage)) is not None:
                link.stage.attributes["tile"] = ir.DenseI64ArrayAttr.get(even)
            if link.scatter is not None and not self.atomics:
                rows = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), link.scatter.rows)
                link.stage.attributes[UPDATES] = rows
            remark(link.stage, f"result {link.result} is written over argument {argument}")


def _name(stage: ir.Operation) -> str:
    return ir.StringAttr(stage.attributes["sym_name"]).value


def _even_tiles(stage: ir.Operation) -> list[int] | None:
    """The tile of a stage of maps, or another one that divides its sizes; None where that is much smaller. Empty for a stage
    without dimensions, which is one tile."""
    grid = grid_of(stage)
    sizes = [dim.size for dim in grid.space.dims]
    even = [max(n for n in _divisors(size) if n <= tile) for size, tile in zip(sizes, grid.tile, strict=True)]
    if SMALLEST * math.prod(even) < math.prod(grid.tile):
        even = max([even, *_other_shapes(sizes, grid.tile)], key=math.prod)
    return even if SMALLEST * math.prod(even) >= math.prod(grid.tile) else None


def _other_shapes(sizes: Sequence[int], tile: Sequence[int]) -> Iterator[list[int]]:
    """Tiles that divide the sizes, no larger than `tile`, with longer sides along one dimension and shorter ones along the
    last, of at least `RUN` elements. (50,257 rows of 768, in tiles of 10 x 768: 29 is the next divisor, and 29 x 256 fits.)"""
    *rest, last = map(_divisors, sizes)
    for dim, divisors in enumerate(rest):
        others = [max(n for n in its if n <= side) for its, side in zip(rest, tile[:-1], strict=True)]
        for side in divisors:
            others[dim] = side
            run = max((n for n in last if n * math.prod(others) <= math.prod(tile)), default=0)
            if run >= min(tile[-1], RUN):
                yield [*others, run]


def _divisors(size: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(size) + 1) if size % n == 0]
    return sorted({*small, *(size // n for n in small)})


def _rounds(scatter: Scatter) -> bool:
    """Whether each number that is added or multiplied rounds to 16 bits; the host does so once, with a copy in 32."""
    element = str(ir.ShapedType(scatter.original.type).element_type)
    return element in HALF_TYPES and scatter.kind in ("addf", "mulf")


def _read_twice(scatter: Scatter) -> bool:
    """Whether what a scatter puts there is a part of what it changes."""
    return trace_views(scatter.original)[0] in (trace_views(scatter.updates)[0], trace_views(scatter.indices)[0])
