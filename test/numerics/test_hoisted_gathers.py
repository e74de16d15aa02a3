"""Rows multiplied before they are gathered: planned for the GPU, run on the host, against float64."""

import pytest
import torch

from test.numerics.compare import exact, problems
from test.programs.compiled import planned_for_gpu


class Edges(torch.nn.Module):
    """A layer on [edge, node[source], node[target]], as in a graph network's edge model."""

    def __init__(self, width: int, columns: int):
        super().__init__()
        self.layer = torch.nn.Linear(3 * width, columns)

    def forward(self, edge, node, source, target):
        return torch.relu(self.layer(torch.cat([edge, node[source], node[target]], -1)))


def inputs_of(edges: int, nodes: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    source, target = (torch.randint(-nodes, nodes, (edges,)) for _ in range(2))
    return torch.randn(edges, width, dtype=dtype), torch.randn(nodes, width, dtype=dtype), source, target


@pytest.mark.rotated(1)
@pytest.mark.parametrize("edges, nodes, width, columns", [(20000, 63, 512, 512), (20001, 7, 511, 641)])
def test_against_float64(edges: int, nodes: int, width: int, columns: int) -> None:
    model = Edges(width, columns).to(torch.bfloat16)
    args = inputs_of(edges, nodes, width, torch.bfloat16)
    remarks: list[str] = []
    program = planned_for_gpu(model, *args, on_remark=lambda r: remarks.append(str(r)))
    assert any("2 of 3 parts of its rows are multiplied before they are gathered" in r for r in remarks)
    fresh = inputs_of(edges, nodes, width, torch.bfloat16)
    assert problems(program(*fresh), exact(model, fresh), model(*fresh)) == []
