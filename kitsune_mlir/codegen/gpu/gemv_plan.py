"""Planning products of few rows: what a stage of the ring holds, how deep the ring is, where the activations stay.

A tile has all rows and some columns of the product. The block walks it in *passes* of a few columns over the whole sum; a
stage of the ring has a *chunk* of the sum for all columns of a pass, of every product. The weights of a stage are rows of
shared memory, one for each column of the product, as they are in global memory. Rows are `pitch` bytes apart, half a line of
128 bytes more than they are long, so that the eight lanes that read at a time, two rows of 64 bytes, hit different banks.
"""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.engine import Limits, Plan
from kitsune_mlir.codegen.gpu.gemv_match import GemvPattern, match_products
from kitsune_mlir.codegen.gpu.mma_match import Mismatch
from kitsune_mlir.codegen.gpu.mma_window import Window
from kitsune_mlir.codegen.gpu.tasks import TaskView, element_bytes

__all__ = ["CONSUMERS", "Geometry", "GemvPlan", "make_plan"]

MOST_ROWS = 64
CONSUMERS = 8
"""Warps that multiply; one more loads."""
THREADS = 32 * (CONSUMERS + 1)
REGISTERS = 168
CHUNK_BYTES = (1024, 512)
"""Bytes of one row of weights in a stage: long runs of DRAM, in sixteens for each lane of eight warps."""
PASS_BLOCKS = (2, 1)
"""Columns of a pass and product, in blocks of 16 (tensor cores) or 8 (f32), from the best on."""
MOST_SUMS = {2: 128, 4: 64}
"""By element size: most rows times blocks of columns of a pass, which take registers."""
ENOUGH_STAGES, LEAST_STAGES, MOST_STAGES = 4, 3, 16
RESIDENT_BYTES = 64 << 10
"""Activations up to this size stay in shared memory even if every one is used once."""
SUM_ROWS = 16
"""Rows whose partial sums are exchanged at a time."""


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Sizes of a task.

    Attributes:
        rows, cols: of the tile.
        depth: length of the sum.
        products: number of products that share the input.
        bytes: of an element.
        pass_cols: columns of a pass, of each product.
        chunk: elements of the sum in a stage.
        resident: the activations stay in shared memory for the whole task; else each stage brings its part.
        stages: of the ring.
    """

    rows: int
    cols: int
    depth: int
    products: int
    bytes: int
    pass_cols: int
    chunk: int
    resident: bool
    stages: int

    @property
    def tensor_cores(self) -> bool:
        """Whether elements are 16-bit floats, which tensor cores multiply exactly."""
        return self.bytes == 2

    @property
    def lines(self) -> int:
        """Rows of weights in a stage: the columns of a pass, of one product after the other."""
        return self.products * self.pass_cols

    @property
    def passes(self) -> int:
        """Passes of a tile."""
        return -(-self.cols // self.pass_cols)

    @property
    def chunks(self) -> int:
        """Chunks of a pass."""
        return -(-self.depth // self.chunk)

    @property
    def ragged(self) -> bool:
        """Whether the last chunk is shorter than the others."""
        return self.depth % self.chunk != 0

    @property
    def pitch(self) -> int:
        """Bytes from a row of a stage to the next."""
        return self.chunk * self.bytes + 64

    @property
    def row_pitch(self) -> int:
        """Bytes from a row of resident activations to the next."""
        return -(-self.depth * self.bytes // 128) * 128 + 64

    @property
    def resident_bytes(self) -> int:
        """Shared memory of resident activations. Tail lanes may look, masked, a chunk beyond the last row."""
        return -(-(self.rows * self.row_pitch + self.chunk * self.bytes) // 1024) * 1024 if self.resident else 0

    @property
    def weights_bytes(self) -> int:
        """Shared memory of a stage's weights."""
        return self.lines * self.pitch

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return self.weights_bytes + (0 if self.resident else self.rows * self.pitch)

    @property
    def copies(self) -> int:
        """Partial sums of one element that warps hand to each other: on tensor cores each warp has a part of every chunk."""
        return CONSUMERS if self.tensor_cores else 1

    @property
    def sum_rows(self) -> int:
        """Rows whose partial sums are in shared memory at a time."""
        return min(SUM_ROWS, -(-self.rows // 8) * 8)

    @property
    def sum_pitch(self) -> int:
        """f32 elements from a row of partial sums to the next: 4 more than a multiple of 16, against bank conflicts."""
        return -(-self.lines // 16) * 16 + 4

    @property
    def sum_bytes(self) -> int:
        """Shared memory of the partial sums."""
        return self.copies * self.sum_rows * self.sum_pitch * 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of everything."""
        return self.resident_bytes + self.stages * self.stage_bytes + self.sum_bytes


@dataclasses.dataclass(frozen=True)
class GemvPlan:
    """What the engine decided.

    Attributes:
        pattern: the body.
        geometry: sizes.
        input: where the activations are.
        weights: where each product's weights are.
        sums: side of the sum in `input` and in each of `weights`.
    """

    pattern: GemvPattern
    geometry: Geometry
    input: Window
    weights: tuple[Window, ...]
    sums: tuple[str, ...]


def make_plan(engine: str, task: TaskView, limits: Limits) -> Plan:
    """Plan a task.

    Raises:
        Mismatch: it is no product of few rows, or one whose operands bulk copies cannot read.
    """
    pattern = match_products(task)
    product = pattern.product
    if product.rows > MOST_ROWS:
        raise Mismatch(f"a tile of {product.rows} rows; up to {MOST_ROWS} are done")
    sums = tuple(f"k{one.sums[0][0]}" for one in pattern.products)
    inputs = [_window(pattern, number, pattern.products[number].a, sums[number]) for number in range(len(sums))]
    weights = tuple(_window(pattern, number, pattern.products[number].b, sums[number]) for number in range(len(sums)))
    geometry = _choose(pattern, inputs[0], limits)
    gemv = GemvPlan(pattern, geometry, inputs[0], weights, sums)
    return Plan(
        engine=engine,
        task=task,
        shared_bytes=geometry.shared_bytes,
        threads=THREADS,
        registers=REGISTERS,
        barriers=(1,) * geometry.stages + (CONSUMERS,) * geometry.stages + (1,),
        async_reads=any(not window.constant for window in (inputs[0], *weights)),
        parameters={
            "tile": [geometry.rows, geometry.cols, geometry.depth],
            "products": geometry.products,
            "pass": [geometry.lines, geometry.chunk],
            "stages": geometry.stages,
            "activations": "in shared memory" if geometry.resident else "in the stages",
            "instruction": f"m16n8k16 {product.dtype}" if geometry.tensor_cores else "fma f32",
        },
        private=gemv,
    )


def _window(pattern: GemvPattern, number: int, operand: int, inner: str) -> Window:
    """The window of an operand of a product, if bulk copies can read runs along the sum."""
    op = pattern.products[number].op
    load = pattern.task.load_of(op.operands[operand])
    assert load is not None
    window = Window.of(load, pattern.operand_sides(op, operand))
    if window.stride(inner) != 1:
        raise Mismatch("neighbours along the sum are not neighbours in memory")
    length = next(dim.size for dim in window.dims if dim.side == inner)
    if window.align((inner,)) < 16 or length * window.bytes % 16:
        raise Mismatch("rows along the sum are no multiples of 16 bytes")
    return window


def _choose(pattern: GemvPattern, source: Window, limits: Limits) -> Geometry:
    product = pattern.product
    size = element_bytes(source.buffer.element)
    rows, depth = product.rows, product.sums[0][1]
    moving = any(not isinstance(dim.start, int) for dim in source.dims)
    block = 16 if size == 2 else 8
    geometries = []
    for resident in (True, False):
        for blocks in PASS_BLOCKS:
            sums = blocks * len(pattern.products) * rows
            if blocks > 1 and ((blocks - 1) * block >= product.cols or sums > MOST_SUMS[size]):
                continue
            for chunk_bytes in CHUNK_BYTES:
                start = Geometry(
                    rows, product.cols, depth, len(pattern.products), size, blocks * block, chunk_bytes // size, resident, 0
                )
                stages = min(MOST_STAGES, (limits.shared_bytes - start.shared_bytes) // start.stage_bytes)
                found = dataclasses.replace(start, stages=stages)
                if stages >= LEAST_STAGES and not (resident and moving):
                    geometries.append(found)
    if not geometries:
        raise Mismatch(f"{rows} rows and a sum of {depth} leave no room for a ring of {LEAST_STAGES} stages")
    return min(geometries, key=_badness)


def _badness(geometry: Geometry) -> tuple:
    """Order of preference: a ring that is deep enough; activations read once; wide passes, long runs."""
    wasteful = geometry.resident and geometry.passes == 1 and geometry.rows * geometry.depth * geometry.bytes > RESIDENT_BYTES
    return (geometry.stages < ENOUGH_STAGES, geometry.resident == wasteful, -geometry.lines, -geometry.chunk)
