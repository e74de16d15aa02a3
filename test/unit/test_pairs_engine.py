"""Dot products of pairs as one stage: what is recognised and what not, and the engine's kernels on an emulated block."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from test.emulators.vector import run_kernel
from test.emulators.warp import Warps
from test.programs.compiled import planned
from test.rotation import in_turn

BF16 = torch.bfloat16


class Interaction(nn.Module):
    """DLRM's: a dense vector and one of each table, their products below the diagonal joined with the dense vector."""

    table: Tensor
    left: Tensor
    right: Tensor

    def __init__(self, tables: int, entries: int, width: int):
        super().__init__()
        self.embeddings = nn.Parameter(torch.randn(tables, entries, width))
        self.register_buffer("table", torch.arange(tables))
        pairs = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("left", pairs[0].clone())
        self.register_buffer("right", pairs[1].clone())

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        vectors = torch.cat([x[:, None], self.embeddings[self.table[None], indices]], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return torch.cat([x, products[:, self.left, self.right]], dim=1)


def compiled(model: nn.Module, *args: Tensor):
    return planned(model.eval(), *args)


def case(samples: int, tables: int, width: int, dtype: torch.dtype = BF16):
    torch.manual_seed(samples * 100 + tables)
    model = Interaction(tables, 11, width).to(dtype)
    return model, torch.randn(samples, width).to(dtype), torch.randint(-11, 11, (samples, tables))


@pytest.mark.parametrize(
    "samples, tables, width", in_turn([(2, 3, 32), (7, 26, 128), (129, 5, 64), (40, 33, 32), (9, 48, 32), (1000, 2, 32)], 2)
)
def test_emulated_kernels_compute_what_torch_does(samples, tables, width):
    model, x, indices = case(samples, tables, width)
    program = compiled(model, x, indices)
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        view = ProgramView(list(module.body.operations)[0].operation)
        assert [task.requested_engine for task in view.tasks] == ["pairs"]
        executor = build(view, "kernel")
        assert [decision.plan.engine for decision in executor.decisions] == ["pairs"]
        held = {"embeddings": model.embeddings, "table": model.table, "left": model.left, "right": model.right}
        inputs = [held[w.name] for w in program.signature.weights] + [x, indices]
        arrays = [t.detach().contiguous().view(torch.int16).numpy() if t.dtype == BF16 else t.numpy() for t in inputs]
        with torch.no_grad():
            wanted = model.double()(x.double(), indices)
        result = np.zeros(wanted.shape, np.int16)
        run_kernel(executor.module.operation, executor.manifest, arrays, [result], 3, Warps)
    found = torch.from_numpy(result).view(BF16).double()
    assert (found - wanted).norm() <= 5e-3 * wanted.norm()
    assert torch.equal(found[:, :width], x.double())


def test_the_kernel_assembles_without_spills():
    program = compiled(*case(2048, 26, 128))
    with new_context(), ir.Location.unknown():
        code = compile_gpu(ir.Module.parse(program.ir("tiles")), "main_p0")
    assert code.resources.spill_store_bytes == 0 and "spill" not in "".join(code.warnings)
    assert [choice.engine for choice in code.engines] == ["pairs"]
    assert "mma.sync" in code.ptx


@pytest.mark.parametrize("dtype, width, reason", [(torch.float32, 32, "f32"), (BF16, 24, "24 elements")])
def test_what_the_engine_does_not_do_stays_apart(dtype, width, reason):
    program = compiled(*case(40, 5, width, dtype))
    assert "kitsune.pairs" not in program.ir("stages"), reason


def test_rows_of_products_are_tiled_on_the_host_too():
    model, x, indices = case(129, 5, 64)
    program = kitsune_mlir.compile(model.float().eval(), (x.float(), indices), target="host")
    assert '"all"' not in program.ir("stages")
    with torch.no_grad():
        assert torch.allclose(program(x.float(), indices), model(x.float(), indices), rtol=1e-4, atol=1e-4)
