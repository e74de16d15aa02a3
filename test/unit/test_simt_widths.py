"""How many bytes of a tensor a thread has side by side, where the tensors' elements differ in size."""

import pytest
import torch

import kitsune_mlir
from test.gpu.unassembled import unassembled


@pytest.mark.parametrize("dtype, loads", [(torch.int64, 4), (torch.float32, 4), (torch.int32, 4)])
def test_comparisons_of_wide_numbers(dtype, loads):
    """Results of a byte each do not make vectors of 128 bytes."""
    x, y = (torch.zeros(4096, 4096, dtype=dtype) for _ in range(2))
    with unassembled():
        program = kitsune_mlir.compile(Less(), (x, y), target="sm_90a")
    text = program.ir("ptx")
    assert text.count("ld.global") == 2 * loads * text.count("st.global")  # 64 bytes of each factor a vector


class Less(torch.nn.Module):
    def forward(self, x, y):
        return x < y
