"""Edges between stages: which tiles of a producer hold what a tile of a consumer reads."""

from dataclasses import dataclass

from torch_mlir import ir

from kitsune_mlir.errors import UnsupportedError

from .access import Along, access_of, is_tensor, shape_of
from .attribute_table import INDEXED
from .iteration import Space, is_reshape, iteration_space
from .named_rows import Named, named_rows
from .products import defining_op
from .stage_graph import inputs_of, results_of, yielded
from .unchanged import remembered
from .verify import captures


@remembered
def stage_space(stage: ir.Operation) -> Space:
    """The iteration space of a `kitsune.stage`, from its body."""
    ops = [op.operation for op in stage.regions[0].blocks[0].operations][:-1]
    if ops and ops[-1].name == "builtin.unrealized_conversion_cast":
        ops = ops[:-1]
    return iteration_space(ops, yielded(stage))


def tile_sizes(stage: ir.Operation, space: Space) -> list[int]:
    """The stage's `tile` attribute; without one, every shared dimension whole.

    Raises:
        UnsupportedError: the attribute has another number of sizes than the stage has shared dimensions.
    """
    sizes = [d.size for d in space.dims]
    if "tile" not in stage.attributes:
        return sizes
    tile = list(ir.DenseI64ArrayAttr(stage.attributes["tile"]))
    if len(tile) != len(sizes):
        limit = f"'tile' has one size for each parallel dimension that the stage's ops share (here {sizes})"
        raise UnsupportedError("kitsune.stage", limit, tile, str(stage.location))
    return tile


@dataclass(frozen=True)
class Grid:
    """The tiles of a stage: the shared dimensions that have more than one tile, and how many."""

    space: Space
    tile: list[int]

    @property
    def counts(self) -> list[int]:
        """Number of tiles of each shared dimension."""
        return [-(-d.size // t) for d, t in zip(self.space.dims, self.tile, strict=True)]

    @property
    def moving(self) -> list[int]:
        """The shared dimensions with more than one tile, in order: the coordinates of a task."""
        return [i for i, n in enumerate(self.counts) if n > 1]

    @property
    def extents(self) -> list[int]:
        """Extents of the task's grid; [1] for a stage that is one tile."""
        return [self.counts[i] for i in self.moving] or [1]

    @property
    def tasks(self) -> int:
        """How many tile tasks there are."""
        total = 1
        for n in self.extents:
            total *= n
        return total


def grid_of(stage: ir.Operation) -> Grid:
    """The tiles of a stage."""
    space = stage_space(stage)
    return Grid(space, tile_sizes(stage, space))


@dataclass(frozen=True)
class Slice:
    """What a tile reads of one tensor dimension: from `start + scale * offset(dim)` on, `size(tile)` elements.

    Where `dim` is None it is the same for every tile: `length` elements from `start`, or everything without a length. A
    dimension of which one element is read may be `dropped`: the tile's tensor is without it.
    """

    dim: int | None
    scale: int = 1
    extent: int = 1
    start: int = 0
    length: int | None = None
    dropped: bool = False

    def size(self, tile: int) -> int:
        """Elements read for a tile of the shared dimension."""
        return self.scale * (tile - 1) + self.extent


def uses_in(space: Space, value: ir.Value, counted: bool = False) -> list[list[Slice]]:
    """How each use of an outside value in a stage walks its dimensions; `counted`: only how much is read is of interest."""
    found: list[list[Slice]] = []
    rank = len(shape_of(value)) if is_tensor(value) else 0
    for n, op in enumerate(space.ops):
        access = space.accesses[n]
        for k, operand in enumerate(op.operands):
            if operand == value:
                alongs = access.operands[k] if access is not None and access.operands[k] else (Along(None),) * rank
                # A tile of a part begins elsewhere than the tile of the whole that has its number.
                walks = space.along(n, alongs)
                found.append([Slice(None) if a.part and not counted else Slice(d, a.scale, a.extent) for d, a in walks])
        if len(op.regions) and value in captures(op):
            found.append([Slice(None)] * rank)
    return found


def producer_of(value: ir.Value) -> tuple[ir.Operation | None, int]:
    """The stage, and the number of its result, that makes a pipeline-level value (looking through the tuple)."""
    maker = defining_op(value)
    if maker is not None and maker.name == "builtin.unrealized_conversion_cast":
        stage = defining_op(maker.operands[0])
        return stage, [r for r in maker.results].index(value)
    return maker, 0


def trace_views(value: ir.Value) -> tuple[ir.Value, list[int | None]]:
    """The value behind a chain of views, and for each of its dimensions the dimension of `value` that is the same, or None."""
    dims: list[int | None] = list(range(len(shape_of(value))))
    maker = defining_op(value)
    while maker is not None and is_reshape(maker):
        access = access_of(maker)
        assert access is not None
        source = []
        for along in access.operands[0]:
            match = [d for d, r in enumerate(access.results[0]) if along.loop is not None and r.loop == along.loop]
            source.append(dims[match[0]] if match else None)
        dims, value = source, maker.operands[0]
        maker = defining_op(value)
    return value, dims


@dataclass(frozen=True)
class Edge:
    """A dependence of a consumer stage on one result of a producer stage.

    `policy` as in `#kitsune.sync`. For policies other than `all` and `indexed`: the consumer's shared dimension `dim` walks the
    producer's first grid dimension, `scale`, `extent` as in `Slice`. For `indexed`: `named` are the indices of the rows read.
    """

    producer: ir.Operation
    policy: str
    dim: int = -1
    scale: int = 1
    extent: int = 1
    named: tuple[Named, ...] = ()


def edge_of(consumer: ir.Operation, space: Space, value: ir.Value) -> Edge | None:
    """The edge over which `consumer` (with its `space`) reads `value`; None for an argument of the pipeline."""
    source, dims = trace_views(value)
    producer, number = producer_of(source)
    if producer is None or producer.name != "kitsune.stage":
        return None
    grid = grid_of(producer)
    if not grid.moving:
        return Edge(producer, "all")
    made = yielded(producer)[number]
    position = {r: (n, i) for n, op in enumerate(grid.space.ops) for i, r in enumerate(op.results)}
    along = grid.space.result_dims(*position[made])
    # A sum beside a product has no columns: where these are the first dimension, all tiles make it.
    seen = dims[along.index(grid.moving[0])] if grid.moving[0] in along else None
    uses = uses_in(space, value)
    if seen is None or not uses:
        return Edge(producer, "all")
    if seen == 0 and INDEXED in consumer.attributes and producer.attributes["sym_name"] in consumer.attributes[INDEXED]:
        named = named_rows(space, value)
        return Edge(producer, "all") if named is None else Edge(producer, "indexed", named=tuple(named))
    slices = {use[seen] for use in uses}
    if len(slices) != 1:
        return Edge(producer, "all")
    part = slices.pop()
    if part.dim is None or part.size(tile_sizes(consumer, space)[part.dim]) >= grid.space.dims[grid.moving[0]].size:
        return Edge(producer, "all")  # every tile reads what all of the producer's tiles make: one counter tells it
    if part.scale != 1 or part.extent != 1:
        policy = "halo" if part.extent > 1 else "strided"
    else:
        policy = "tile" if len(grid.moving) == 1 else "row"
    return Edge(producer, policy, part.dim, part.scale, part.extent)


def waits_for_all(consumer: ir.Operation, producer: ir.Operation) -> bool:
    """Whether the tiles of `consumer` together wait for every tile of `producer`: not so where strides leave rows out."""
    space = stage_space(consumer)
    edges = (edge_of(consumer, space, value) for value in inputs_of(consumer))
    return any(edge is not None and edge.producer == producer and covers(edge, space) for edge in edges)


def covers(edge: Edge, space: Space) -> bool:
    """Whether the tiles of a consumer, with its `space`, together wait over the edge for every tile of the producer."""
    if edge.policy == "all":
        return True
    if edge.policy == "indexed":
        return False  # rows that no index names are waited for by nobody
    grid = grid_of(edge.producer)
    rows = grid.space.dims[grid.moving[0]].size
    last = edge.scale * (space.dims[edge.dim].size - 1)
    return edge.extent >= edge.scale and last + edge.extent >= rows


def stages_of(pipeline: ir.Operation) -> list[ir.Operation]:
    """The stages of a pipeline, in order."""
    return [op.operation for op in pipeline.regions[0].blocks[0].operations if op.operation.name == "kitsune.stage"]


def readers_of(stage: ir.Operation) -> dict[int, list[ir.Operation]]:
    """For each result of a stage, the stages that read it (through views)."""
    found: dict[int, list[ir.Operation]] = {}
    for number, value in enumerate(results_of(stage)):
        pending, seen = [value], found.setdefault(number, [])
        while pending:
            for use in pending.pop().uses:
                user = use.owner.operation
                if is_reshape(user):
                    pending += list(user.results)
                    continue
                while user is not None and user.name not in ("kitsune.stage", "kitsune.pipeline", "func.func"):
                    user = user.parent.operation if user.parent is not None else None
                if user is not None and user.name == "kitsune.stage" and user not in seen:
                    seen.append(user)
    return found
