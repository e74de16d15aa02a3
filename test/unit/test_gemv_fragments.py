"""The gemv engine's walk over shared memory, run lane by lane on the processor: what meets what, and where sums go."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kitsune_mlir.codegen.gpu.engines.gemv import multiply as gemv_multiply
from kitsune_mlir.codegen.gpu.engines.gemv.plan import CONSUMERS, Geometry
from kitsune_mlir.machine.shared_tile import PANEL_BYTES

LANES = 32


def fill(memory: np.ndarray, start: int, panel_bytes: int, matrix: np.ndarray, size: int) -> None:
    """Write the rows of a matrix as TMA does: panels of 128 bytes a row, 16-byte pieces permuted by the row."""
    for row, values in enumerate(matrix):
        for k, value in enumerate(values):
            panel, byte = divmod(k * size, PANEL_BYTES)
            place = start + panel * panel_bytes + row * PANEL_BYTES + (((byte >> 4) ^ (row & 7)) << 4) + (byte & 15)
            memory[place // size] = value


class Recorder:
    """Stands for the instructions that a lane runs: sums are numbers, products are noted for the whole warp."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: np.ndarray, partial: np.ndarray):
        self.memory, self.partial = memory, partial
        self.lane = self.warp = 0
        self.calls: list[tuple] = []
        self.values: dict[tuple[int, int], float] = {}
        for name in ("load", "offset", "unpack", "multiply_add", "store", "if_", "lane_id", "warp_id"):
            monkeypatch.setattr(gemv_multiply, name, getattr(self, name))

    def lane_id(self, thread) -> int:
        return self.lane

    def warp_id(self, thread) -> int:
        return self.warp

    def offset(self, pointer: int, bytes: int) -> int:
        return pointer + bytes

    def load(self, pointer: int, type: str) -> np.ndarray:
        assert pointer % 16 == 0
        return self.memory[pointer // 2 : pointer // 2 + 8]

    def unpack(self, words: np.ndarray) -> list[np.ndarray]:
        return [words[start : start + 2] for start in range(0, 8, 2)]

    def multiply_add(self, sums: list[int], a: list, b: list, dtype: str) -> list[int]:
        self.calls.append((tuple(sums), a, b))
        return sums

    def if_(self, condition: bool, then) -> None:
        if condition:
            then()

    def store(self, number: int, place: int) -> None:
        self.partial[place // 4] = self.values[self.lane, number]


def products(calls: list[list[tuple]]) -> dict[tuple[int, int], float]:
    """What each lane's sums are after `mma.m16n8k16` on the fragments of all lanes (PTX ISA)."""
    values: dict[tuple[int, int], float] = {}
    for together in zip(*calls, strict=True):
        a, b = np.zeros((16, 16)), np.zeros((16, 8))
        for lane, (_, parts, others) in enumerate(together):
            g, t = divmod(lane, 4)
            for number, pair in enumerate(parts):
                a[g + 8 * (number % 2), 2 * t + 8 * (number // 2) :][:2] = pair
            for number, pair in enumerate(others):
                b[2 * t + 8 * number : 2 * t + 8 * number + 2, g] = pair
        d = a @ b
        for lane, (sums, _, _) in enumerate(together):
            g, t = divmod(lane, 4)
            for number, key in enumerate(sums):
                values[lane, key] = values.get((lane, key), 0.0) + d[g + 8 * (number // 2), 2 * t + number % 2]
    return values


@pytest.mark.parametrize(
    ("rows", "pass_cols", "panels", "row_parts", "count"),
    [
        (1, 32, 8, 1, 1),
        (7, 16, 8, 1, 2),
        (16, 64, 4, 1, 1),
        (32, 112, 2, 2, 1),
        (33, 48, 4, 2, 1),
        (64, 112, 2, 4, 1),
        (64, 16, 4, 2, 2),
    ],
)
def test_every_element_is_multiplied_once(monkeypatch, rows, pass_cols, panels, row_parts, count) -> None:
    geometry = Geometry(rows, pass_cols, panels * 64, count, 2, pass_cols, panels, row_parts)
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((geometry.lines, geometry.chunk))
    inputs = generator.standard_normal((rows, geometry.chunk))
    # What no copy fills is poison: it must not get into any sum that is used. Behind the stage lie other bytes of the block.
    memory = np.full((geometry.stage_bytes + 8192) // 2, 1e30)
    fill(memory, 0, geometry.lines * PANEL_BYTES, weights, 2)
    fill(memory, geometry.weights_bytes, geometry.activations_panel, inputs, 2)
    partial = np.full(geometry.sum_bytes // 4, np.nan)
    recorder = Recorder(monkeypatch, memory, partial)
    pattern = SimpleNamespace(product=SimpleNamespace(dtype="bf16"))
    stages = SimpleNamespace(plan=SimpleNamespace(geometry=geometry, pattern=pattern), task=SimpleNamespace(thread=0), sums=0)

    sums: dict[int, dict[tuple[int, int], float]] = {}
    for warp in range(CONSUMERS):
        calls = []
        for lane in range(LANES):
            recorder.warp, recorder.lane, recorder.calls = warp, lane, []
            work = gemv_multiply.multiplier(stages)
            work._chunk(list(range(work.sums)), 0, geometry.weights_bytes)
            calls.append(recorder.calls)
        sums[warp] = products(calls)

    wanted = inputs @ weights.T
    for first_row in range(0, rows, geometry.sum_rows):
        partial[:] = np.nan
        for warp in range(CONSUMERS):
            for lane in range(LANES):
                recorder.warp, recorder.lane, recorder.values = warp, lane, sums[warp]
                work = gemv_multiply.multiplier(stages)
                work.publish(list(range(work.sums)), first_row)
        shape = (geometry.copies, geometry.sum_rows, geometry.sum_pitch)
        found = partial.reshape(shape)[:, : min(geometry.sum_rows, rows - first_row), : geometry.lines].sum(axis=0)
        np.testing.assert_allclose(found, wanted[first_row : first_row + geometry.sum_rows], rtol=1e-9, atol=1e-9)
