"""Message passing as libraries write it: indices that are slices or broadcast, every aggregation, attention over edges."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.modules import GraphStep, mlp

__all__ = ["EdgeConv", "GraphAttention", "MeanStep", "MeshGraphNet", "MeshSteps", "ScatterStep"]


class MeanStep(nn.Module):
    """A step whose nodes take the mean of their messages: sums, and counts of rows of one element."""

    def __init__(self, width: int):
        super().__init__()
        self.message, self.update = mlp(2 * width, width, width), mlp(2 * width, width, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index[0], edge_index[1]
        message = self.message(torch.cat([x[source], x[target]], -1))
        summed = torch.zeros_like(x).index_add(0, target, message)
        count = x.new_zeros(x.shape[0], 1).index_add(0, target, message.new_ones(message.shape[0], 1))
        return self.update(torch.cat([x, summed / count.clamp(min=1)], -1))


class ScatterStep(nn.Module):
    """GraphSAGE's layer (Hamilton et al., arXiv 1706.02216) as PyG aggregates: the index is broadcast to all columns.

    Args:
        reduce: "sum", "mean" or "amax", of `Tensor.scatter_reduce`.
    """

    def __init__(self, width: int, reduce: str):
        super().__init__()
        self.own, self.others, self.reduce = nn.Linear(width, width), nn.Linear(width, width), reduce

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        message = x[edge_index[0]]
        index = edge_index[1][:, None].expand(-1, x.shape[1])
        if self.reduce == "sum":
            gathered = torch.zeros_like(x).scatter_add(0, index, message)
        else:
            gathered = torch.zeros_like(x).scatter_reduce(0, index, message, self.reduce, include_self=False)
        return F.relu(self.own(x) + self.others(gathered))


class EdgeConv(nn.Module):
    """The largest message of each node (Wang et al., arXiv 1801.07829)."""

    def __init__(self, width: int):
        super().__init__()
        self.layers = mlp(2 * width, width, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        own = x[edge_index[1]]
        message = self.layers(torch.cat([own, x[edge_index[0]] - own], -1))
        index = edge_index[1][:, None].expand(-1, x.shape[1])
        return torch.full_like(x, -1e4).scatter_reduce(0, index, message, "amax")


class GraphAttention(nn.Module):
    """Scores of edges, a softmax over the edges of a node, a weighted sum (Veličković et al., arXiv 1710.10903)."""

    def __init__(self, width: int):
        super().__init__()
        self.project = nn.Linear(width, width, bias=False)
        self.source, self.target = nn.Linear(width, 1, bias=False), nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.project(x)
        weight = torch.exp(F.leaky_relu(self.source(h)[source] + self.target(h)[target], 0.2))
        total = x.new_zeros(x.shape[0], 1).index_add(0, target, weight)
        return F.elu(torch.zeros_like(h).index_add(0, target, h[source] * (weight / total[target])))


class MeshSteps(nn.Module):
    """Steps of MeshGraphNets one after the other (arXiv 2010.03409), the edges given as one tensor [2, edges]."""

    def __init__(self, width: int, steps: int):
        super().__init__()
        self.steps = nn.ModuleList(GraphStep(width) for _ in range(steps))

    def forward(self, nodes: Tensor, edges: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        for step in self.steps:
            nodes, edges = step(nodes, edges, edge_index[0], edge_index[1])
        return nodes, edges


class MeshGraphNet(nn.Module):
    """MeshGraphNets as a whole (Pfaff et al., arXiv 2010.03409): encoders of nodes and edges, steps, and a decoder of nodes.

    Args:
        node, edge: features of a node and of an edge.
        width: of all layers between.
        steps: of message passing.
        results: numbers that a node's answer has.
    """

    def __init__(self, node: int, edge: int, width: int, steps: int, results: int):
        super().__init__()
        self.nodes = nn.Sequential(mlp(node, width, width, width), nn.LayerNorm(width))
        self.edges = nn.Sequential(mlp(edge, width, width, width), nn.LayerNorm(width))
        self.steps, self.decoder = MeshSteps(width, steps), mlp(width, width, width, results)

    def forward(self, nodes: Tensor, edges: Tensor, edge_index: Tensor) -> Tensor:
        return self.decoder(self.steps(self.nodes(nodes), self.edges(edges), edge_index)[0])
