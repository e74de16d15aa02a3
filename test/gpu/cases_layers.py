"""Stacks of equal layers: tasks that differ only in their operands, and share code (`codegen/gpu/kernel/task_equality.py`)."""

from __future__ import annotations

from test.gpu.tile_text import (
    BOTH,
    Case,
    buffer,
    generic,
    offset,
    post,
    program,
    rows,
    semaphore,
    store_rows,
    task,
    wait_all,
    wait_one,
    whole,
    yielding,
)

__all__ = ["LAYER_CASES", "layers"]


def layers(count: int = 12, m: int = 1000, n: int = 24, tile: int = 8, engine: str = "generic") -> Case:
    """Layers of two tasks: rows times a weight of their own layer; then half of that plus the rows before.

    Activations go to and fro between two buffers; a layer waits for all of the one before.
    """
    tiles = m // tile
    inputs = (((m, n), "f32", "normal"), *(((1, n), "f32", "normal") for _ in range(count)))
    results = (((m, n), "f32"),)
    size = -(-4 * m * n // 256) * 256
    arena = 3 * size
    body = "".join(buffer(name, size * place, (m, n), "f32", arena) for place, name in enumerate(("h", "p0", "p1")))
    for layer in range(count):
        body += semaphore(f"s{layer}", tiles) + semaphore(f"t{layer}", tiles)
    for layer in range(count):
        source = f"p{layer % 2}" if layer else "x0"
        target = f"p{(layer + 1) % 2}" if layer < count - 1 else "y0"
        first = offset(tile) + (wait_all(f"t{layer - 1}", tiles) if layer else "")
        first += rows("x", source, (m, n), tile, "f32") + whole("w", f"x{layer + 1}", (1, n), "f32")
        first += generic(
            "r",
            [("x", BOTH, (tile, n), "f32"), ("w", "affine_map<(d0, d1) -> (0, d1)>", (1, n), "f32")],
            (BOTH, (tile, n), "f32"),
            yielding("%r = arith.mulf %a0, %a1 : f32"),
        )
        first += store_rows("r", "h", (m, n), tile, "f32") + post(f"s{layer}")
        body += task(f"scale{layer}", [tiles], first, engine)
        second = offset(tile) + wait_one(f"s{layer}")
        second += rows("a", "h", (m, n), tile, "f32") + rows("b", source, (m, n), tile, "f32")
        second += generic(
            "r",
            [("a", BOTH, (tile, n), "f32"), ("b", BOTH, (tile, n), "f32")],
            (BOTH, (tile, n), "f32"),
            yielding("%c = arith.constant 0.5 : f32", "%t = arith.mulf %a0, %c : f32", "%r = arith.addf %t, %a1 : f32"),
        )
        second += store_rows("r", target, (m, n), tile, "f32") + (post(f"t{layer}") if layer < count - 1 else "")
        body += task(f"add{layer}", [tiles], second, engine)

    def reference(torch, x, *weights):
        x = x.double()
        for weight in weights:
            x = 0.5 * x * weight.double() + x
        return (x,)

    return Case(
        f"layers_{count}_{engine}",
        program(f"layers_{count}_{engine}", inputs, results, body, arena),
        inputs,
        results,
        reference,
    )


LAYER_CASES = (lambda: layers(12), lambda: layers(32, engine="simt"))
