"""Cases in which warpgroups have roles: tasks that specialise one after the other in one kernel, with others between."""

from __future__ import annotations

import dataclasses

from kitsune_mlir.codegen.gpu.emit.control_flow import for_, if_, sync_block, thread_id
from kitsune_mlir.codegen.gpu.emit.memory import load, offset, store
from kitsune_mlir.codegen.gpu.emit.value import Value
from kitsune_mlir.codegen.gpu.emit.vectors import load_elements
from kitsune_mlir.codegen.gpu.kernel.kernel import Kernel
from kitsune_mlir.codegen.gpu.sm90 import wgmma
from kitsune_mlir.codegen.gpu.sm90.mbarrier import Ring, Slot, initialize
from kitsune_mlir.codegen.gpu.sm90.warp_specialize import THREADS, specialize
from kitsune_mlir.machine.shared_tile import SharedTile
from test.gpu.case import Case, finish, register, tensor
from test.gpu.cases_products import load_panels, panel_map
from test.gpu.kit.fragment import Fragment
from test.gpu.kit.layouts import WgmmaAccumulator
from test.gpu.kit.matrix import GlobalMatrix

M, N, K, STAGES = 256, 256, 320, 4
A_TILE, B_TILE = SharedTile(128, 64, 2), SharedTile(N, 64, 2)
STAGE_BYTES = A_TILE.bytes + B_TILE.bytes


@dataclasses.dataclass(frozen=True)
class Block:
    """A hand-written kernel as `roles.specialize` sees it."""

    thread: Value
    threads: int = THREADS

    def sync(self) -> None:
        sync_block()


def specialised(block: Block, ring: Ring, base: Value, maps: list[Value], subtract_from: Value, target: Value) -> None:
    """target = subtract_from - A @ B^T, by one producer and two consumers of 64 rows each."""
    tiles = M // 128

    def produce() -> None:
        def chunk(number: Value, *slot: Value) -> list[Value]:
            at = Slot(*slot)
            tile, index = number // (K // 64), number % (K // 64)
            ring.empty(at.stage).wait(at.parity)
            full = ring.full(at.stage)
            full.arrive_and_expect(STAGE_BYTES)
            stage = offset(base, at.stage * STAGE_BYTES)
            load_panels(stage, maps[0], full, A_TILE, tile * 128, index * 64)
            load_panels(offset(stage, A_TILE.bytes), maps[1], full, B_TILE, 0, index * 64)
            return ring.next(at).values

        def loads() -> None:
            for_(0, tiles * (K // 64), 1, chunk, ring.producer_start().values)

        if_(block.thread == 0, loads)

    def consume(w: Value) -> None:
        local = block.thread % 128

        def multiply(sums, slot: Slot) -> list[Value]:
            ring.full(slot.stage).wait(slot.parity)
            stage = offset(base, slot.stage * STAGE_BYTES)
            a = wgmma.SharedOperand(A_TILE, stage, row=w * 64)
            b = wgmma.SharedOperand(B_TILE, offset(stage, A_TILE.bytes))
            sums = wgmma.wait(0, wgmma.multiply(sums, a, b, N))
            if_(local == 0, ring.empty(slot.stage).arrive)
            return sums

        def tile(number: Value, *state: Value) -> list[Value]:
            def step(_: Value, *carried: Value) -> list[Value]:
                slot = Slot(carried[0], carried[1])
                return [*ring.next(slot).values, *multiply(list(carried[2:]), slot)]

            slot = Slot(*state)
            sums = multiply(None, slot)
            stage, parity, *sums = for_(1, K // 64, 1, step, [*ring.next(slot).values, *sums])
            layout = WgmmaAccumulator(N)
            row = (number * 128 + w * 64) * (N * 4)
            before = GlobalMatrix(offset(subtract_from, row), "f32", N * 4, align=8).load(layout, local)
            result = before.map(lambda x, y: x - y, Fragment(layout, sums))
            GlobalMatrix(offset(target, row), "f32", N * 4, align=8).store(result, local)
            return [stage, parity]

        for_(0, tiles, 1, tile, ring.consumer_start().values)

    specialize(block, produce, consume)


def sequence(between: bool) -> Case:
    """D = X - A @ B^T; with `between`, all threads then negate D; D = D - A @ B^T: -X, or X - 2 A @ B^T without."""
    maps = [panel_map("bf16", (M, K), A_TILE), panel_map("bf16", (N, K), B_TILE)]
    kernel = Kernel("sequence", [*maps, "pointer", "pointer"], threads=THREADS)
    tiles = kernel.arena.take("stages", STAGES * STAGE_BYTES, 1024)
    spans = [kernel.arena.take(f"ring {index}", Ring.bytes(STAGES), 8) for index in range(2)]
    with kernel.body() as (a_map, b_map, x, d):
        rings = [Ring(kernel.shared(span), STAGES) for span in spans]
        initialize([barrier for ring in rings for barrier in ring.barriers(1, 2)])
        block, base = Block(thread_id()), kernel.shared(tiles)
        specialised(block, rings[0], base, [a_map, b_map], x, d)
        if between:
            registers = 64  # of each thread, all live at once

            def negate(start: Value) -> None:
                places = [offset(d, (start + block.thread + index * THREADS) * 4) for index in range(registers)]
                values = [load_elements(place, "f32", 1)[0] for place in places]
                for value, place in zip(values, places, strict=True):
                    store(-value, place)

            whole = M * N // (THREADS * registers) * (THREADS * registers)
            for_(0, whole, THREADS * registers, negate)

            def rest(index: Value) -> None:
                place = offset(d, index * 4)
                store(-load(place, "f32"), place)

            for_(block.thread + whole, M * N, THREADS, rest)
            block.sync()
        specialised(block, rings[1], base, [a_map, b_map], d, d)
    tensors = [
        tensor("A", "bf16", [M, K], "ints"),
        tensor("B", "bf16", [N, K], "ints"),
        tensor("X", "f32", [M, N], "ints"),
        tensor("D", "f32", [M, N], "nan"),
    ]
    return finish(kernel, tensors, "roles", between=between)


register("roles_sequence", lambda: sequence(between=False))
register("roles_around_others", lambda: sequence(between=True))
