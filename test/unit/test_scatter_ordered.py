"""Additions in order: the engine's code on an emulated block, its fallback, and what asks for it."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.engines.scatter import deterministic as scatter_ordered
from kitsune_mlir.codegen.gpu.engines.scatter import rows as scatter_rows
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel import executor
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.emulators.runner import EmulatedRunner
from test.emulators.vector import VectorBlock, run_kernel

WORKERS = 3
"""Blocks that the emulated kernels are planned for."""


class Block(VectorBlock):
    """With what the lanes of warps tell each other."""

    def simple(self, op, operands, mask):
        if op.name == "nvvm.match.sync":
            words = operands[1].reshape(-1, 32)
            same = (words[:, :, None] == words[:, None, :]) & mask.reshape(-1, 1, 32)
            return (
                (same.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(2).astype(np.uint32).view(np.int32).reshape(-1)
            )
        if op.name == "nvvm.shfl.sync":
            assert mask.all(), "a shuffle that not every lane reaches"
            assert "idx" in str(op.attributes["kind"])
            return operands[1][np.arange(self.threads) // 32 * 32 + operands[2]]
        if op.name == "nvvm.bar.warp.sync":
            self.phase += 1
            return None
        if op.name == "nvvm.vote.sync":
            votes = (operands[1] & mask).reshape(-1, 32)
            words = (votes.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(np.uint32).view(np.int32)
            return np.repeat(words, 32)
        if op.name == "math.ctpop":
            return np.array([bin(int(value) & 0xFFFFFFFF).count("1") for value in operands[0]], np.int32)
        return super().simple(op, operands, mask)


class Sum(torch.nn.Module):
    """Rows added at indices, to zeros or to what is given."""

    def __init__(self, rows: int, columns: int, dtype: torch.dtype):
        super().__init__()
        self.shape, self.dtype = (rows, columns), dtype

    def forward(self, updates, indices, start=None):
        if start is None:
            start = torch.zeros(self.shape, dtype=self.dtype, device=updates.device)
        return start.index_add(0, indices, updates)


def values(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of very different sizes, so that every order of additions rounds differently."""
    scale = 10.0 ** torch.randint(-3, 4, (rows, 1))
    return (
        (torch.randn(rows, columns) * scale).to(dtype) if dtype.is_floating_point else torch.randint(-99, 99, (rows, columns))
    )


def compiled(args, rows: int, **options):
    model = Sum(rows, args[0].shape[1], args[0].dtype)
    return model, kitsune_mlir.compile(model, args, target="sm_90a", options={"deterministic": True, **options})


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.contiguous().numpy()


def emulate(program, inputs: list[torch.Tensor], result: torch.Tensor) -> np.ndarray:
    out = np.zeros_like(numpy_of(result))
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        function = next(op.operation for op in module.body.operations if "kitsune.program" in op.attributes)
        view = ProgramView(function)
        assert [task.requested_engine for task in view.tasks] == ["ordered"]
        emitted = executor.build(view, view.name, KernelOptions(workers=WORKERS))
        run_kernel(emitted.module.operation, emitted.manifest, [numpy_of(x) for x in inputs], [out], WORKERS, Block)
    return out


def in_order(updates: torch.Tensor, indices: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """The sums one by one; 16-bit floats in f32, rounded at the end."""
    sums = start.float() if start.dtype == torch.bfloat16 else start.clone()
    for update, index in zip(updates, indices, strict=True):
        sums[index] += update.to(sums.dtype)
    return sums.to(start.dtype)


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "updates, columns, rows, dtype, index",
    [
        (1000, 7, 129, torch.float32, torch.int64),
        (1000, 4, 150, torch.bfloat16, torch.int64),
        (777, 3, 5, torch.float32, torch.int64),
        (129, 1, 1, torch.float32, torch.int64),
        (7, 40, 300, torch.float64, torch.int64),
    ],
)
def test_sums_in_order(updates: int, columns: int, rows: int, dtype, index) -> None:
    torch.manual_seed(0)
    args = (values(updates, columns, dtype), torch.randint(0, rows, (updates,)).to(index))
    _, program = compiled(args, rows)
    want = in_order(*args, torch.zeros(rows, columns, dtype=dtype))
    np.testing.assert_array_equal(emulate(program, list(args), want), numpy_of(want))


def test_indices_that_are_a_part_of_a_tensor_are_read_where_they_lie() -> None:
    """Of [2, edges] the second row, which begins at an odd place."""

    class OfEdges(Sum):
        def forward(self, updates, edges, start=None):
            return super().forward(updates, edges[1], start)

    torch.manual_seed(0)
    args = (values(777, 3, torch.float32), torch.randint(0, 5, (2, 777)))
    program = kitsune_mlir.compile(OfEdges(5, 3, torch.float32), args, target="sm_90a", options={"deterministic": True})
    assert [entry["engine"] for entry in program.summary["engines"]] == ["ordered"]
    want = in_order(args[0], args[1][1], torch.zeros(5, 3))
    np.testing.assert_array_equal(emulate(program, list(args), want), numpy_of(want))


class Put(torch.nn.Module):
    """Rows combined with others at indices, as `scatter_reduce` or, with `set`, `index_put` do."""

    def __init__(self, reduce: str):
        super().__init__()
        self.reduce = reduce

    def forward(self, updates, indices, start):
        if self.reduce == "set":
            return start.index_copy(0, indices, updates)
        return start.index_reduce(0, indices, updates, self.reduce)


def put_in_order(reduce: str, updates: torch.Tensor, indices: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """One by one; 16-bit floats in f32, rounded at the end."""
    wide = start.float() if start.dtype == torch.bfloat16 else start.clone()
    for update, index in zip(updates, indices, strict=True):
        wide[index] = update.to(wide.dtype) * (wide[index] if reduce == "prod" else 1)
    return wide.to(start.dtype)


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "updates, columns, rows, dtype, reduce",
    [
        (500, 7, 61, torch.float32, "prod"),
        (300, 40, 2, torch.float32, "prod"),
        (500, 7, 61, torch.float32, "set"),
        (400, 3, 5, torch.bool, "set"),
        (700, 8, 300, torch.int16, "set"),
        (129, 1, 7, torch.int64, "set"),
    ],
)
def test_other_kinds_in_order(updates: int, columns: int, rows: int, dtype, reduce: str) -> None:
    """Products one after the other; of rows that are assigned the last one stays."""
    torch.manual_seed(8)
    near_one = reduce == "prod"

    def numbers(n: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(n, columns) if near_one else 100 * torch.randn(n, columns)).to(dtype)

    args = (numbers(updates), torch.randint(0, rows, (updates,)), numbers(rows))
    program = kitsune_mlir.compile(Put(reduce), args, target="sm_90a", options={"deterministic": True})
    want = put_in_order(reduce, *args)
    np.testing.assert_array_equal(emulate(program, list(args), want), numpy_of(want))


def test_where_the_order_does_not_matter_atomics_do_it() -> None:
    args = (values(600, 72, torch.int64), torch.randint(0, 4, (600,)))
    _, program = compiled(args, 4)
    assert [e["engine"] for e in program.summary["engines"]] == ["simt", "scatter"]
    args = (values(600, 8, torch.float32), torch.randint(0, 4, (600,)), values(4, 8, torch.float32))
    program = kitsune_mlir.compile(Put("amax"), args, target="sm_90a", options={"deterministic": True})
    assert [e["engine"] for e in program.summary["engines"]] == ["simt", "scatter"]


def test_what_is_added_to_is_read_and_the_last_tile_may_be_smaller() -> None:
    torch.manual_seed(1)
    start = values(401, 6, torch.float32)  # 101 tiles of 4 rows: the last has one of its own
    args = (values(500, 6, torch.float32), torch.randint(0, 401, (500,)), start)
    _, program = compiled(args, 401)
    want = in_order(*args)
    np.testing.assert_array_equal(emulate(program, list(args), want), numpy_of(want))


def test_full_lists_take_more_rounds(monkeypatch) -> None:
    monkeypatch.setattr(scatter_ordered, "ENTRIES", 64)
    monkeypatch.setattr(scatter_rows, "LONG", 1 << 20)
    torch.manual_seed(2)
    updates, rows = 3000, 2
    indices = torch.cat([torch.zeros(1500, dtype=torch.int64), torch.randint(0, rows, (1500,))])
    args = (values(updates, 4, torch.float32), indices)
    _, program = compiled(args, rows)
    want = in_order(*args, torch.zeros(rows, 4))
    np.testing.assert_array_equal(emulate(program, list(args), want), numpy_of(want))


@pytest.mark.rotated(2)
@pytest.mark.parametrize(
    "columns, dtype", [(4, torch.float32), (8, torch.bfloat16), (300, torch.float32), (600, torch.bfloat16)]
)
def test_many_additions_to_one_row_are_done_by_the_whole_block(columns: int, dtype) -> None:
    torch.manual_seed(5)
    rows, indices = 40, torch.randint(0, 40, (700,))
    indices[100:400:2] = 37
    indices[::9] = 3
    args = (values(700, columns, dtype), indices, values(rows, columns, dtype))
    _, program = compiled(args, rows)
    want = in_order(*args)
    np.testing.assert_array_equal(emulate(program, list(args), want), numpy_of(want))


def test_more_rows_than_the_bins_of_all_blocks_have(monkeypatch) -> None:
    monkeypatch.setattr(scatter_ordered, "KEYS", 8)
    torch.manual_seed(6)
    args = (values(200, 4, torch.float32), torch.randint(0, 100, (200,)))
    _, program = compiled(args, 100)
    want = in_order(*args, torch.zeros(100, 4))
    np.testing.assert_array_equal(emulate(program, list(args), want), numpy_of(want))
    monkeypatch.setattr(scatter_ordered, "MOST_KEYS", 9)
    _, program = compiled(args, 100)
    (engine,) = program.summary["engines"]
    assert engine["engine"] == "generic" and "100 rows" in str(engine["declined"])


def test_indices_of_no_row_are_left_out() -> None:
    torch.manual_seed(7)
    indices = torch.randint(0, 50, (300,))
    args = (values(300, 4, torch.float32), indices)
    _, program = compiled(args, 50)
    indices[::7], indices[1::7] = 50, -1
    kept = (indices >= 0) & (indices < 50)
    want = in_order(args[0][kept], indices[kept], torch.zeros(50, 4))
    np.testing.assert_array_equal(emulate(program, list(args), want), numpy_of(want))


def test_the_host_adds_in_the_same_order() -> None:
    torch.manual_seed(3)
    args = (values(1000, 5, torch.float32), torch.randint(0, 20, (1000,)))
    model, _ = compiled(args, 20)
    host = kitsune_mlir.compile(model, args, target="host")
    torch.testing.assert_close(host(*args), in_order(*args, torch.zeros(20, 5)), rtol=0, atol=0)


def test_other_engines_do_it_as_a_loop_in_order() -> None:
    torch.manual_seed(4)
    args = (values(300, 5, torch.float32), torch.randint(0, 20, (300,)))
    _, program = compiled(args, 20)
    result = torch.zeros(20, 5)
    arena = torch.zeros(16, dtype=torch.uint8)
    EmulatedRunner(program.ir("tiles")).run([t.data_ptr() for t in (*args, result, arena)], 0)
    torch.testing.assert_close(result, in_order(*args, torch.zeros(20, 5)), rtol=0, atol=0)


def test_no_spills_and_no_atomics() -> None:
    args = (values(120000, 128, torch.bfloat16), torch.randint(0, 20000, (120000,)))
    _, program = compiled(args, 20000)
    assert "red.relaxed" not in program.ir("ptx") and "atom." not in program.ir("ptx")
    assert program.summary["kernels"][0]["spill_store_bytes"] == 0
    assert program.summary["engines"][0]["parameters"] == {"pieces": 132, "bins": 132, "rows": 152, "width": 8}


def test_torchs_setting_asks_for_it() -> None:
    args = (values(100, 4, torch.float32), torch.randint(0, 20, (100,)))
    engines = []
    for wanted in (False, True):
        torch.use_deterministic_algorithms(wanted)
        try:
            program = kitsune_mlir.compile(Sum(20, 4, torch.float32), args, target="sm_90a")
        finally:
            torch.use_deterministic_algorithms(False)
        engines.append([e["engine"] for e in program.summary["engines"]])
    assert engines == [["simt", "scatter"], ["ordered"]]
    _, program = compiled(args, 20, deterministic=False)
    assert [e["engine"] for e in program.summary["engines"]] == ["simt", "scatter"]


def test_a_chain_does_not_add_its_rows_itself() -> None:
    from bench.models import make

    model, args = make("mgn", size="small", dtype=torch.bfloat16)
    for wanted in (False, True):
        program = kitsune_mlir.compile(model, args, target="sm_90a", options={"deterministic": wanted})
        engines = [e["engine"] for e in program.summary["engines"]]
        assert ("ordered" in engines) == wanted
        assert ("red.relaxed.gpu.global.add" in program.ir("ptx")) != wanted
