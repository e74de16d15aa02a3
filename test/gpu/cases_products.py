"""Cases with wgmma: every operand form, chains through registers and shared memory, pipelines with TMA."""

from __future__ import annotations

import itertools

from kitsune_mlir.codegen.gpu.emit.control_flow import (
    block_id,
    cluster_rank,
    for_,
    grid_size,
    if_,
    set_max_registers,
    sync_block,
    thread_id,
    warp_id,
)
from kitsune_mlir.codegen.gpu.emit.memory import offset
from kitsune_mlir.codegen.gpu.emit.value import Value, maximum
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.sm90 import tma, wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import (
    Barrier,
    NamedBarrier,
    Ring,
    Slot,
    fence_async_shared,
    initialize,
    sync_cluster,
)
from kitsune_mlir.codegen.gpu.sm90.tensor_map import TensorMap
from kitsune_mlir.machine.shared_tile import SharedTile
from test.gpu.case import Case, finish, register, tensor
from test.gpu.kit.bulk import drain
from test.gpu.kit.fragment import Fragment
from test.gpu.kit.layouts import WgmmaA, WgmmaAccumulator
from test.gpu.kit.matrix import GlobalMatrix, GlobalVector

ELEMENT_BYTES = {"bf16": 2, "f16": 2, "tf32": 4}


def stored(dtype: str) -> str:
    """The type in memory of what wgmma multiplies as `dtype`."""
    return "f32" if dtype == "tf32" else dtype


def load_panels(target, tensor_map, barrier, tile: SharedTile, row: Value | int = 0, col: Value | int = 0) -> None:
    """TMA-load all panels of a tile; the box of the map is one panel."""
    for panel in range(tile.panels):
        tma.load_tile(offset(target, panel * tile.panel_bytes), tensor_map, barrier, [row, col + panel * tile.panel_cols])


def panel_map(dtype: str, shape: tuple[int, int], tile: SharedTile) -> TensorMap:
    return TensorMap.contiguous(dtype, shape, (tile.rows, tile.panel_cols), tile.swizzle)


def product(n: int, dtype: str, k: int, a_form: str, b_transposed: bool, swizzle: int = 128) -> Case:
    """D[64, n] = A[64, k] @ B: one warpgroup, everything resident. a_form: "shared", "transposed" or "registers"."""
    size, memory = ELEMENT_BYTES[dtype], stored(dtype)
    a_tile = SharedTile(k, 64, size) if a_form == "transposed" else SharedTile(64, k, size, swizzle)
    wide = -(-n // 64) * 64  # whole panels of a transposed B; the rest is zero and not multiplied
    b_tile = SharedTile(k, wide, size) if b_transposed else SharedTile(n, k, size, swizzle)
    a_shape = (k, 64) if a_form == "transposed" else (64, k)
    b_shape = (k, n) if b_transposed else (n, k)
    maps = [panel_map(memory, a_shape, a_tile), panel_map(memory, b_shape, b_tile)]
    kernel = Kernel("product", [*maps, "pointer", "pointer"], threads=128)
    spans = [kernel.arena.take(name, tile.bytes, 1024) for name, tile in (("A", a_tile), ("B", b_tile))]
    full = kernel.arena.take("full", 8, 8)
    with kernel.body() as (a_map, b_map, d, a_pointer):
        barrier = Barrier(kernel.shared(full))
        initialize([(barrier, 1)])
        a, b = (kernel.shared(span) for span in spans)
        thread = thread_id()

        def fetch() -> None:
            barrier.arrive_and_expect(a_tile.bytes + b_tile.bytes)
            load_panels(a, a_map, barrier, a_tile)
            load_panels(b, b_map, barrier, b_tile)

        if_(thread == 0, fetch)
        barrier.wait(0)
        if a_form == "registers":
            source = GlobalMatrix(a_pointer, memory, k * size)
            if dtype == "tf32":
                row, col = WgmmaAccumulator(8).thread_row(thread), thread % 4
                operand = [
                    load_elements(source.address(row + 8 * (i % 2), col + 8 * step + 4 * (i // 2)), "i32", 1)[0]
                    for step in range(k // 8)
                    for i in range(4)
                ]
            else:
                operand = source.load(WgmmaA(k), thread).as_a_operand(dtype)
        else:
            operand = wgmma.SharedOperand(a_tile, a, transposed=a_form == "transposed")
        b_operand = wgmma.SharedOperand(b_tile, b, transposed=b_transposed)
        accumulators = wgmma.wait(0, wgmma.multiply(None, operand, b_operand, n, dtype))
        GlobalMatrix(d, "f32", n * 4, align=8).store(Fragment(WgmmaAccumulator(n), accumulators), thread)
    tensors = [
        tensor("A", memory, list(a_shape), "ints"),
        tensor("B", memory, list(b_shape), "ints"),
        tensor("D", "f32", [64, n], "nan"),
        tensor("A", memory, list(a_shape), "ints"),
    ]
    return finish(kernel, tensors, "product", a_transposed=a_form == "transposed", b_transposed=b_transposed)


def chain(second: str, vector: int, relu: bool) -> Case:
    """D = act(A @ B1^T + bias) @ B2^T: the middle goes through registers, or swizzled shared memory; B1's rows permuted."""
    k, middle, n = 128, 128, 64
    a_tile, b1_tile, b2_tile = SharedTile(64, k, 2), SharedTile(middle, k, 2), SharedTile(n, middle, 2)
    maps = [
        panel_map("bf16", (64, k), a_tile),
        panel_map("bf16", (middle, k), b1_tile),
        panel_map("bf16", (n, middle), b2_tile),
    ]
    kernel = Kernel("chain", [*maps, "pointer", "pointer"], threads=128)
    tiles = [a_tile, b1_tile, b2_tile]
    spans = [kernel.arena.take(f"tile {index}", tile.bytes, 1024) for index, tile in enumerate(tiles)]
    middle_tile = SharedTile(64, middle, 2)
    staging = kernel.arena.take("middle", middle_tile.bytes, 1024)
    full = kernel.arena.take("full", 8, 8)
    layout = WgmmaAccumulator(middle, vector)
    with kernel.body() as (a_map, b1_map, b2_map, bias, d):
        barrier = Barrier(kernel.shared(full))
        initialize([(barrier, 1)])
        thread = thread_id()
        a, b1, b2 = (kernel.shared(span) for span in spans)

        def fetch() -> None:
            barrier.arrive_and_expect(sum(tile.bytes for tile in tiles))
            for target, tensor_map, tile in zip((a, b1, b2), (a_map, b1_map, b2_map), tiles, strict=True):
                load_panels(target, tensor_map, barrier, tile)

        if_(thread == 0, fetch)
        barrier.wait(0)
        first = wgmma.multiply(None, wgmma.SharedOperand(a_tile, a), wgmma.SharedOperand(b1_tile, b1), middle)
        hidden = Fragment(layout, wgmma.wait(0, first))
        columns = GlobalVector(bias, "bf16").columns(layout, thread)
        hidden = hidden.map(lambda x, y: x + y, columns)
        if relu:
            hidden = hidden.map(lambda x: maximum(x, 0.0))
        if second == "registers":
            operand = hidden.as_a_operand("bf16")
        else:
            pointer = kernel.shared(staging)
            hidden.store_swizzled(thread, middle_tile, pointer, "bf16")
            fence_async_shared()
            sync_block()
            operand = wgmma.SharedOperand(middle_tile, pointer)
        second_product = wgmma.multiply(None, operand, wgmma.SharedOperand(b2_tile, b2), n)
        result = Fragment(WgmmaAccumulator(n), wgmma.wait(0, second_product))
        GlobalMatrix(d, "f32", n * 4, align=8).store(result, thread)
    tensors = [
        tensor("A", "bf16", [64, k], "signs"),
        tensor("B1", "bf16", [middle, k], "signs"),
        tensor("B2", "bf16", [n, middle], "signs"),
        tensor("bias", "bf16", [middle], "ints"),
        tensor("D", "f32", [64, n], "nan"),
    ]
    # Accumulator position p holds column order[p] of the layout. Through registers, position p is also A's position along k.
    order = [layout.column_of_position(position) for position in range(middle)]
    return finish(kernel, tensors, "chain", order=order, through=second, relu=relu)


def pipeline(
    cluster: int, m: int, n: int, k: int, block_n: int = 128, stages: int = 4, blocks: int = 8, timed: bool = False
) -> Case:
    """D = A @ B^T, persistent: a TMA producer and two consumer warpgroups, setmaxnreg, multicast in clusters, clipped edges."""
    block_m, block_k = 128, 64
    a_tile, b_tile = SharedTile(block_m, block_k, 2), SharedTile(block_n, block_k, 2)
    b_part = SharedTile(block_n // cluster, block_k, 2)  # each block of the cluster loads a part for all
    out_tile = SharedTile(64, block_n, 2)
    maps = [
        panel_map("bf16", (m, k), a_tile),
        panel_map("bf16", (n, k), b_part),
        panel_map("bf16", (m, n), SharedTile(64, 64, 2)),
    ]
    kernel = Kernel("pipeline", maps, threads=384, cluster=cluster if cluster > 1 else None)
    stage_bytes = a_tile.bytes + b_tile.bytes
    slots = kernel.arena.take("slots", stages * stage_bytes, 1024)
    out = kernel.arena.take("out", 2 * out_tile.bytes, 1024)
    barriers = kernel.arena.take("ring", Ring.bytes(stages), 8)
    m_tiles, n_tiles, k_tiles = -(-m // (block_m * cluster)), -(-n // block_n), -(-k // block_k)
    with kernel.body() as (a_map, b_map, d_map):
        ring = Ring(kernel.shared(barriers), stages)
        initialize(ring.barriers(1, 2 * cluster), cluster=cluster > 1)
        thread = thread_id()
        group = warp_id(thread, 4)
        rank = cluster_rank() if cluster > 1 else 0
        base = kernel.shared(slots)

        def tiles(body, carried):
            first, step = block_id() // cluster, grid_size() // cluster
            return for_(first, m_tiles * n_tiles, step, body, carried)

        def place(tile):
            return ((tile // n_tiles) * cluster + rank) * block_m, (tile % n_tiles) * block_n

        def produce() -> None:
            def tile_body(tile, *state):
                row, col = place(tile)

                def chunk(index, *inner):
                    slot = Slot(*inner)
                    ring.empty(slot.stage).wait(slot.parity)
                    full = ring.full(slot.stage)
                    full.arrive_and_expect(stage_bytes)
                    target = offset(base, slot.stage * stage_bytes)
                    tma.load_tile(target, a_map, full, [row, index * block_k])
                    part = offset(offset(target, a_tile.bytes), rank * b_part.bytes)
                    where = [col + rank * (block_n // cluster), index * block_k]
                    tma.load_tile(part, b_map, full, where, (1 << cluster) - 1 if cluster > 1 else None)
                    return ring.next(slot).values

                return for_(0, k_tiles, 1, chunk, list(state))

            end = tiles(tile_body, ring.producer_start().values)
            if cluster > 1:
                drain(ring, Slot(*end))

        def producer() -> None:
            set_max_registers(40, grow=False)
            if_(thread == 0, produce)

        def consumer() -> None:
            set_max_registers(232, grow=True)
            local = thread % 128
            which = group - 1
            staging = offset(kernel.shared(out), which * out_tile.bytes)

            def release(stage) -> None:
                if cluster == 1:
                    if_(local == 0, ring.empty(stage).arrive)
                else:
                    if_(local < cluster, lambda: ring.empty(stage).arrive_at(local))

            def chunk(accumulators, slot):
                ring.full(slot.stage).wait(slot.parity)
                target = offset(base, slot.stage * stage_bytes)
                a = wgmma.SharedOperand(a_tile, target, row=which * 64)
                b = wgmma.SharedOperand(b_tile, offset(target, a_tile.bytes))
                return wgmma.multiply(accumulators, a, b, block_n)

            def tile_body(tile, *state):
                row, col = place(tile)
                slot = Slot(*state)
                accumulators = chunk(None, slot)

                def step(index, *inner):
                    previous = Slot(inner[0], inner[1])
                    current = ring.next(previous)
                    started = chunk(list(inner[2:]), current)
                    wgmma.wait(1, [])
                    release(previous.stage)
                    return [*current.values, *started]

                stage, parity, *accumulators = for_(1, k_tiles, 1, step, [*slot.values, *accumulators])
                result = Fragment(WgmmaAccumulator(block_n), wgmma.wait(0, accumulators))
                release(stage)
                if_(local == 0, lambda: tma.wait(0, read=True))
                meet()
                result.store_swizzled(local, out_tile, staging, "bf16")
                fence_async_shared()
                meet()

                def write() -> None:
                    for panel in range(out_tile.panels):
                        tma.store_tile(
                            d_map, offset(staging, panel * out_tile.panel_bytes), [row + which * 64, col + panel * 64]
                        )
                    tma.commit()

                if_(local == 0, write)
                return ring.next(Slot(stage, parity)).values

            meet = NamedBarrier(which + 1, 128).sync
            tiles(tile_body, ring.consumer_start().values)
            if_(local == 0, lambda: tma.wait(0))

        if_(group == 0, producer, consumer)
        if cluster > 1:
            sync_cluster()
    tensors = [
        tensor("A", "bf16", [m, k], "normal"),
        tensor("B", "bf16", [n, k], "normal"),
        tensor("D", "bf16", [m, n], "nan"),
    ]
    return finish(kernel, tensors, "matmul_bf16", blocks=blocks, operations=2 * m * n * k if timed else 0)


for n, (dtype, k) in itertools.product((8, 72, 128, 256), (("bf16", 128), ("f16", 64), ("tf32", 64))):
    register(f"product_{dtype}_n{n}", lambda n=n, dtype=dtype, k=k: product(n, dtype, k, "shared", False))
for n, dtype in itertools.product((64, 72, 256), ("bf16", "f16")):
    register(f"product_{dtype}_n{n}_bt", lambda n=n, dtype=dtype: product(n, dtype, 64, "shared", True))
for dtype, swizzle in itertools.product(("bf16", "tf32"), (32, 64)):
    k = 2 * swizzle // ELEMENT_BYTES[dtype]
    register(f"product_{dtype}_swizzle{swizzle}", lambda d=dtype, s=swizzle, k=k: product(40, d, k, "shared", False, s))
for dtype in ("bf16", "f16", "tf32"):
    register(f"product_{dtype}_registers", lambda dtype=dtype: product(128, dtype, 64, "registers", False))
register("product_bf16_at", lambda: product(64, "bf16", 128, "transposed", False))
register("product_bf16_at_bt", lambda: product(128, "bf16", 64, "transposed", True))
register("product_bf16_registers_bt", lambda: product(192, "bf16", 128, "registers", True))
for second, vector in itertools.product(("registers", "shared"), (2, 4, 8)):
    register(f"chain_{second}_v{vector}", lambda s=second, v=vector: chain(s, v, relu=v != 4))
register("pipeline", lambda: pipeline(1, 512, 512, 512))
register("pipeline_edges", lambda: pipeline(1, 200, 328, 200))
register("pipeline_cluster2", lambda: pipeline(2, 768, 256, 448))
register("pipeline_large", lambda: pipeline(1, 8192, 8192, 4096, block_n=256, stages=3, blocks=132, timed=True))
register("pipeline_wide", lambda: pipeline(1, 300, 520, 328, block_n=256, stages=3))
