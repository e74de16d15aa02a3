"""Products of concatenated and gathered rows: what is read in place, what is not, and how the mma engine reads it."""

from __future__ import annotations

import types

import pytest
import torch
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.engines.mma import k_ranges as mma_ranges
from kitsune_mlir.codegen.gpu.engines.mma import producer_copy as mma_copy
from kitsune_mlir.codegen.gpu.engines.mma.operand import Sum
from kitsune_mlir.passes.stages import sum_ranges
from test.gpu.range_programs import CASES, Case, compiled


def choices(program) -> list[dict]:
    return program.summary["engines"]


@pytest.mark.rotated(2)
@pytest.mark.parametrize("name", ["odd_widths", "mixed", "computed_gathered", "long", "f32_gathered", "ragged_mixed_forced"])
def test_ranges_assemble_without_spills(name: str) -> None:
    program = compiled(CASES[name])
    kernel = program.summary["kernels"][0]
    assert not kernel["spill_store_bytes"]
    (mma,) = [choice for choice in choices(program) if choice["engine"] == "mma"]
    kinds = [(int(part[:-1]), part[-1]) for part in CASES[name].parts]
    assert mma["parameters"]["ranges"] == "+".join(f"{width}{' gathered' * (kind == 'g')}" for width, kind in kinds)


@pytest.mark.rotated(3)
@pytest.mark.parametrize(
    ("case", "stages"),
    [
        (Case(1000, 1024, ("128x", "64x")), ["mma"]),
        (Case(1000, 1024, ("128x", "64g")), ["mma"]),
        (Case(1000, 1024, ("128g",)), ["mma"]),
        (Case(1000, 1024, ("128x", "64r")), ["simt", "mma"]),  # what is computed is a stage of its own
        (Case(1000, 1024, ("128r", "64r")), ["simt", "mma"]),  # one pass makes both, and joins them
        (Case(1000, 704, ("13x", "128x")), ["simt", "mma"]),  # rows that TMA cannot read; the weight is placed with wider ones
        (Case(1000, 1024, ("128x", "64z")), ["mma"]),  # a constant is a number that is written
        (Case(16, 1024, ("128x", "64x")), ["simt", "gemv"]),  # few rows are `gemv`'s
        (Case(4096, 8192, ("128g",)), ["simt", "mma"]),  # too many tiles of columns would gather the same rows
    ],
)
def test_what_is_read_in_place(case: Case, stages: list[str]) -> None:
    assert [choice["engine"] for choice in choices(compiled(case))] == stages


class Twice(torch.nn.Module):
    """Joined rows that something else reads too."""

    def __init__(self, returned: bool):
        super().__init__()
        self.returned, self.layer = returned, torch.nn.Linear(192, 1024).bfloat16()

    def forward(self, x, y):
        joined = torch.cat([x, y], -1)
        return self.layer(joined), joined if self.returned else joined.float().sum(0)


@pytest.mark.parametrize("returned", [True, False])
def test_joined_rows_that_others_read_are_made(returned: bool) -> None:
    inputs = torch.zeros(1000, 128).bfloat16(), torch.zeros(1000, 64).bfloat16()
    program = kitsune_mlir.compile(Twice(returned), inputs, target="sm_90a")
    assert not any("ranges" in choice["parameters"] for choice in choices(program))


def test_chunks_belong_to_one_range_each(monkeypatch) -> None:
    order = Sum(("k0", 13 + 128 + 70), (), 2, ((0, 13), (13, 128), (141, 70)))
    assert (order.chunks, order.firsts, order.steps) == (1 + 2 + 2, (0, 1, 3), 4)
    assert Sum(("k0", 26), (), 2, ((0, 13), (13, 13))).steps == 1

    def if_(condition, then, otherwise=lambda: None):
        then() if condition else otherwise()

    monkeypatch.setattr(mma_ranges, "if_", if_)
    found = []
    for chunk in range(order.chunks):
        mma_ranges.by_range(order, chunk, found.append)  # type: ignore[arg-type]
    assert found == [0, 1, 1, 2, 2]
    found.clear()
    mma_ranges.by_range(Sum(("k0", 211)), 3, found.append)  # type: ignore[arg-type]
    assert found == [0]


@pytest.mark.rotated(3)
@pytest.mark.parametrize("rows", [128, 100, 7])
@pytest.mark.parametrize(("length", "threads"), [(128, 64), (72, 64), (24, 96)])
def test_rows_of_a_table_are_copied_once(monkeypatch, rows: int, length: int, threads: int) -> None:
    """Each piece of a chunk comes from the row that the index says, and is zeros beyond the range and the tile."""
    from kitsune_mlir.codegen.gpu.engines.mma.operand import Operand
    from kitsune_mlir.machine.shared_tile import SharedTile

    stride, first, shared = 2 * length, 64 if length > 64 else 0, {}
    table = types.SimpleNamespace(
        bytes=2, constant=True, stride=lambda side: {"row": length, "k0": 1}[side], align=lambda _: 16
    )
    tile, operand = SharedTile(128, 64, 2), Operand(table, "row", rows, False)  # type: ignore[arg-type]

    def copy_async(target: int, source: int, bytes: int, inside: bool) -> None:
        assert bytes == 16 and target % 16 == 0 and target not in shared
        shared[target] = source if inside else None

    replace = {
        "if_": lambda condition, then: then() if condition else None,
        "select": lambda condition, yes, no: yes if condition else no,
        "offset": lambda pointer, moved: pointer + moved,
        "i64": int,
        "i1": bool,
        "copy_async": copy_async,
    }
    for name, function in replace.items():
        monkeypatch.setattr(mma_copy, name, function)
    number = lambda row: (37 * min(row, rows - 1)) % 101  # noqa: E731
    job = mma_copy._Job(operand, tile, 64, ("k0", length), 1 << 20, threads, number=number)  # type: ignore[arg-type]
    for thread in range(threads):
        job.copy(0, first, thread)  # type: ignore[arg-type]
    assert len(shared) == 128 * 8
    for row in range(128):
        for col in range(0, 64, 8):
            exists = row < rows and first + col < length
            expected = (1 << 20) + number(row) * stride + 2 * (first + col) if exists else None
            assert shared[tile.offset(row, col)] == expected


def test_marks_are_for_rows_only() -> None:
    """A product whose columns are joined, or whose rows are joined along the rows, reads a copy."""
    text = """
    #r = affine_map<(m, n, k) -> (m, k)>
    #c = affine_map<(m, n, k) -> (n, k)>
    #o = affine_map<(m, n, k) -> (m, n)>
    func.func @main(%x: tensor<512x64xbf16>, %y: tensor<512x64xbf16>, %w: tensor<1024x128xbf16>, %z: tensor<1024x512xf32>)
        -> tensor<1024x512xf32> {
      %j = tensor.concat dim(1) %x, %y : (tensor<512x64xbf16>, tensor<512x64xbf16>) -> tensor<512x128xbf16>
      %p = linalg.generic {indexing_maps = [#r, #c, #o], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%w, %j : tensor<1024x128xbf16>, tensor<512x128xbf16>) outs(%z : tensor<1024x512xf32>) {
      ^bb0(%a: bf16, %b: bf16, %s: f32):
        %e = arith.extf %a : bf16 to f32
        %f = arith.extf %b : bf16 to f32
        %m = arith.mulf %e, %f : f32
        %t = arith.addf %s, %m : f32
        linalg.yield %t : f32
      } -> tensor<1024x512xf32>
      return %p : tensor<1024x512xf32>
    }
    """
    from kitsune_mlir.dialects import new_context
    from kitsune_mlir.machine.target import find_target
    from kitsune_mlir.passes.stages.grouping import Grouping

    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        block = module.body.operations[0].regions[0].blocks[0]
        ops = [op.operation for op in block.operations]
        grouping = Grouping(ops[:-1], list(ops[-1].operands), find_target("sm_90a"), "cost")
        grouping.run()
        assert not sum_ranges.mark_ranges(grouping)
