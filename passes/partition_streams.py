"""`kitsune-partition-streams`: choose an engine and tile sizes for each stage."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.dialects.access import access_of, is_tensor, iterator_kinds, loop_sizes
from kitsune_mlir.dialects.attribute_table import GROUPS, INTO, ORDERED, UPDATES
from kitsune_mlir.dialects.contraction import contraction_dims
from kitsune_mlir.dialects.edges import stage_space, stages_of
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.products import is_contraction, is_projected_product
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.passes.modes.choice import set_mode
from kitsune_mlir.passes.stages.grouping import inner_elements
from kitsune_mlir.passes.tile_program.scatter import producer_that_adds, scatter_add_of
from kitsune_mlir.passes.tiles.attention import attention_tile
from kitsune_mlir.passes.tiles.column_groups import column_groups
from kitsune_mlir.passes.tiles.conv import conv_tile
from kitsune_mlir.passes.tiles.fill_idle import tile_for_idle
from kitsune_mlir.passes.tiles.gemv import gemv_tile
from kitsune_mlir.passes.tiles.mma import beats_gemv, mma_tile, operand_bytes, sum_terms
from kitsune_mlir.passes.tiles.simt import simt_tile
from kitsune_mlir.passes.tiles.sizes import even, fit, spread

from .base import Pass, PassFailure
from .fuse_pairs import pairs_tile
from .modes import gathers
from .remarks import remark
from .stages import gemm_chains as gpu_chains

HOST_TILE_ELEMENTS = 16384  # 64 KiB of f32: a tile and its neighbours stay in a core's second-level cache
GPU_TILE_ELEMENTS = 8192  # 32 elements a thread of a 256-thread block: enough loads in flight for a multiprocessor
UPDATE_ROWS = 64  # rows of a scatter-add a task
HOST_ROWS, HOST_COLUMNS = 64, 256
WINDOW_TERMS = 64  # of a convolution's sum, up to which simt does it
CHOICES = ("auto", "temporal", "spatial", "separate")


def is_dot(op: ir.Operation) -> bool:
    """Whether a contraction has neither rows nor columns: sums of products of two vectors, which tensor cores do badly."""
    if not is_projected_product(op):
        return False
    dims, sizes = contraction_dims(op), loop_sizes(op)
    return all(sizes[loop] == 1 for loop in (*dims.m, *dims.n))


def is_short_window(op: ir.Operation) -> bool:
    """Whether a contraction slides over its input and sums so few terms that a thread makes a result alone (depthwise, ...)."""
    access = access_of(op)
    if access is None or is_projected_product(op):
        return False
    kinds = iterator_kinds(op)
    return math.prod(size for size, kind in zip(access.sizes, kinds, strict=True) if kind == "reduction") <= WINDOW_TERMS


def engine_of(space: Space) -> str:
    """The engine that a stage asks for; an engine that cannot do the task declines and the next one takes it."""
    products = [op for op in space.ops if is_contraction(op) and not is_dot(op)]
    if any(not _columns_tiled(space, op) for op in products) and isinstance(gpu_chains.layers_of(space), list):
        return "chain"
    if any(is_projected_product(op) for op in products):
        return "mma"
    if products and all(is_short_window(op) for op in products) and not _opaque(space, padded=False):
        return "simt"
    if products or _opaque(space):
        return "generic"
    return "simt"


def _columns_tiled(space: Space, product: ir.Operation) -> bool:
    """Whether each parallel loop of a product is one that its stage is tiled along."""
    n = space.ops.index(product)
    access = space.accesses[n]
    tiled = {d.loops.get(n) for d in space.dims}
    kinds = enumerate(iterator_kinds(product))
    return access is None or all(loop in tiled or access.sizes[loop] == 1 for loop, kind in kinds if kind == "parallel")


def _opaque(space: Space, padded: bool = True) -> bool:
    """Whether some op on tensors is no loop nest that we know (sort, scan, scatter, ...), or, with `padded`, pads."""
    pads = [op.name == "tensor.pad" for op in space.ops]
    return (padded and any(pads)) or any(
        access is None and any(is_tensor(r) for r in op.results) and op.name not in ("arith.constant", "tensor.pad")
        for op, access in zip(space.ops, space.accesses, strict=True)
    )


def choose_tile(space: Space, engine: str, target: Target, alone: bool = False) -> list[int]:
    """Tile sizes of a stage's shared dimensions; `alone`: it is the only stage of its pipeline."""
    sizes = [d.size for d in space.dims]
    if not sizes:
        return []
    if engine == "chain":
        return [gpu_chains.tile_rows(sizes[0], target)]
    product = next((n for n, op in enumerate(space.ops) if is_contraction(op) and not is_dot(op)), None)
    if product is None and target.is_gpu:
        return simt_tile(space, target, alone)
    if product is None or (target.is_gpu and engine != "mma"):
        elements = GPU_TILE_ELEMENTS if target.is_gpu else HOST_TILE_ELEMENTS
        inner = 1 if product is not None else inner_elements(space)
        tile = fit(sizes, elements // inner)
        least = [1] * len(sizes)
        if len(sizes) > 1 or inner == 1:
            least[-1] = min(tile[-1], 256)  # 32 lanes times a 16-byte vector of bf16: whole warps read whole lines
        return even(sizes, spread(sizes, tile, 2 * target.workers, least))
    kinds = _roles(space, product)
    if target.is_gpu:
        op = space.ops[product]
        products = sum(is_contraction(op) for op in space.ops)
        return mma_tile(sizes, kinds, sum_terms(op), target, operand_bytes(op), products)
    tile, columns = [], {"m": HOST_ROWS, "n": HOST_COLUMNS, "batch": 1}
    for size, kind in zip(sizes, kinds, strict=True):
        tile.append(min(size, columns[kind]))
    least = [{"m": 16, "n": 64, "batch": 1}[k] for k in kinds]
    return even(sizes, spread(sizes, tile, 4 * target.workers, [min(x, t) for x, t in zip(least, tile, strict=True)]))


def _roles(space: Space, product: int) -> list[str]:
    """What each dimension of a stage is to one of its products: "m", "n" (a convolution's pixels, too), or "batch"."""
    dims = contraction_dims(space.ops[product])
    return [dims.role(d.loops[product]) or "n" if product in d.loops else "batch" for d in space.dims]


def _groups(space: Space, tile: list[int], target: Target) -> int:
    """Groups of a product's columns that are counted apart."""
    number = next(number for number, op in enumerate(space.ops) if is_contraction(op))
    counts = [-(-dim.size // size) for dim, size in zip(space.dims, tile, strict=True)]
    return column_groups(_roles(space, number), counts, target)


@dataclass(frozen=True)
class PartitionStreams(Pass):
    """Choose engine and tile sizes of every stage, and the pipeline's mode: who runs which stage.

    Tile sizes follow from capacity: a tile and its neighbours stay close to a worker, and there are enough tiles for all
    workers. The mode is the one of the least time by the stages' costs (`passes/modes/choice.py`), temporal unless another is
    clearly faster; multiprocessors are dealt out by an integer program (`passes/spatial/allocation.py`). `--remarks` prints the
    choices, the bottleneck, and what would be the next one. Options: `target`; `tiles`, sizes that replace the choice for
    stages by name, as in `tiles=product_0:64x128,reduce_1:8` (what `kitsune_mlir.tuning` measured); `times`, microseconds that
    stages take alone in a launch, instead of the model's, as in `times=product_0:12.5`; `mode`: `temporal` (all stages take
    turns on all multiprocessors), `spatial` (each stage has its own), `separate` (several launches, cut where that pays: each
    holds one stage or a few), or `auto`; `deterministic`: results are the same bits on every run, so rows are added at indices
    in order instead of by atomics; `gathers`: what tiles wait for that read another stage's rows by index, `all` of it, the
    `rows` that the indices name, or `auto`.
    """

    name: ClassVar[str] = "kitsune-partition-streams"
    target: str = "host"
    tiles: tuple[str, ...] = ()
    mode: str = "auto"
    times: tuple[str, ...] = ()
    deterministic: bool = False
    gathers: str = "auto"

    def run(self, module: ir.Operation) -> None:
        target = find_target(self.target)
        if self.mode not in CHOICES:
            raise KitsuneError(f"option 'mode' of {self.name} is {', '.join(CHOICES)}, not '{self.mode}'")
        if self.gathers not in gathers.CHOICES:
            raise KitsuneError(f"option 'gathers' of {self.name} is {', '.join(gathers.CHOICES)}, not '{self.gathers}'")
        with module.context, ir.Location.unknown():
            for op in list(walk(module)):
                if op.name == "kitsune.pipeline":
                    stages = stages_of(op)
                    for before, stage in zip([None, *stages], stages, strict=False):
                        self._schedule(stage, target, len(stages) == 1, before)
                    gathers.mark_gathers(op, self.gathers, target)
                    set_mode(op, self.mode, target, self._times())

    def _schedule(self, stage: ir.Operation, target: Target, alone: bool, before: ir.Operation | None) -> None:
        space = stage_space(stage)
        engine = engine_of(space)
        few_rows = gemv_tile(space, target) if target.is_gpu and engine == "mma" and not beats_gemv(space) else None
        engine, tile = ("gemv", few_rows) if few_rows else (engine, choose_tile(space, engine, target, alone))
        attention = attention_tile(space, target)
        engine, tile = ("attention", attention) if attention else (engine, tile)
        pairs = pairs_tile(stage, space, target)
        engine, tile = ("pairs", pairs) if pairs else (engine, tile)
        convolved = conv_tile(space, target) if target.is_gpu else None
        engine, tile = convolved or (engine, tile)
        if engine == "simt":
            tile = tile_for_idle(stage, space, tile, before, target) or tile
        tile = self._given(stage, tile)
        stage.attributes["engine"] = ir.StringAttr.get(engine)
        stage.attributes["tile"] = ir.DenseI64ArrayAttr.get(tile)
        if target.is_gpu and engine == "mma" and (groups := _groups(space, tile, target)) > 1:
            stage.attributes[GROUPS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), groups)
        scatter = scatter_add_of(stage) if target.is_gpu else None
        if scatter is not None and self.deterministic:
            rows = ir.RankedTensorType(scatter.original.type).shape[0]
            stage.attributes[ORDERED] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), rows)
            remark(stage, f"{scatter.rows} rows are added in order, by all blocks together")
        elif scatter is not None:
            producer = producer_that_adds(stage, scatter)
            if producer is not None and ir.StringAttr(producer.attributes["engine"]).value == "chain":
                stage.attributes[INTO] = producer.attributes["sym_name"]
                remark(stage, f"rows are added by {producer.attributes['sym_name']} as it makes them")
            rows = max(1, min(UPDATE_ROWS, -(-scatter.rows // (2 * target.workers))))
            stage.attributes[UPDATES] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), rows)
            remark(stage, f"rows are added with atomics, {rows} a task")
        sizes = "x".join(str(d.size) for d in space.dims) or "nothing parallel"
        remark(stage, f"engine {engine}, tiles of {'x'.join(map(str, tile)) or 'everything'} over {sizes}")

    def _times(self) -> dict[str, float]:
        """Seconds of stages by name, as option `times` has them."""
        pairs = [item.partition(":") for item in self.times]
        try:
            return {name: float(microseconds) * 1e-6 for name, _, microseconds in pairs}
        except ValueError as error:
            raise KitsuneError(f"option 'times' of {self.name} has a time that is no number: {error}") from error

    def _given(self, stage: ir.Operation, chosen: list[int]) -> list[int]:
        """The tile that option `tiles` has for a stage, else the chosen one."""
        for item in self.tiles:
            name, _, sizes = item.partition(":")
            if name == ir.StringAttr(stage.attributes["sym_name"]).value:
                tile = [int(size) for size in sizes.split("x") if size.isdigit()]
                if len(tile) != len(chosen) or not all(tile):
                    raise PassFailure(stage, f"has {len(chosen)} dimensions to tile; option 'tiles' says {item}")
                return tile
        return chosen
