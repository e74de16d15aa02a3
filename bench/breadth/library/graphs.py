"""Graph networks of torch_geometric: two layers on 20,000 nodes, and SchNet on molecules.

Layers do not add self-loops: they first remove those that are there, after which the number of edges depends on data.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.breadth.library.made import Build, Draw, case, imported
from bench.case import BenchCase
from bench.models import Maker

__all__ = ["graphs"]

NODES, EDGES, WIDTH = 20_000, 120_000, 64
ATOMS, MOLECULES = 512, 16


class TwoLayers(nn.Module):
    """Two layers of a kind with ReLU between them, as in the library's examples."""

    def __init__(self, first: nn.Module, second: nn.Module):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.relu(self.first(x, edge_index)), edge_index)


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def _layers(kind: str, heads: int = 1, **settings: Any) -> Build:
    def build() -> nn.Module:
        make = getattr(imported("torch_geometric.nn"), kind)
        if kind in ("GINConv", "EdgeConv"):
            return TwoLayers(*(make(_mlp(WIDTH * (1 + (kind == "EdgeConv"))), **settings) for _ in range(2)))
        many = {"heads": heads} if heads > 1 else {}
        return TwoLayers(make(WIDTH, WIDTH // heads, **many, **settings), make(WIDTH, WIDTH, **settings))

    return build


def _graph(nodes: int = NODES, edges: int = EDGES) -> Draw:
    return lambda m: {"x": m.normal(nodes, WIDTH), "edge_index": m.below(nodes, 2, edges)}


def _schnet() -> nn.Module:
    """What would depend on data is given: the edges, which it looks for by radius, and how many molecules there are."""

    class Given(nn.Module):
        def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
            edges = self.edges
            return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=-1)

    class Sum(nn.Module):
        def forward(self, x: Tensor, index: Tensor, dim: int) -> Tensor:
            return x.new_zeros(MOLECULES, x.shape[1]).index_add(dim, index, x)

    given = Given()
    given.register_buffer("edges", torch.randint(0, ATOMS, (2, 16 * ATOMS)))
    model = imported("torch_geometric.nn").SchNet(num_interactions=3, interaction_graph=given)
    model.readout = Sum()
    return model


def _molecules(m: Maker) -> dict[str, Tensor]:
    return {"z": m.below(90, ATOMS), "pos": m.normal(ATOMS, 3), "batch": m.places(ATOMS) * MOLECULES // ATOMS}


def graphs() -> list[BenchCase]:
    """All of them."""
    degrees = torch.tensor([0, 0, 100, 1000, 4000, 8000, 5000, 1500, 400])
    pna = {
        "aggregators": ["mean", "min", "max", "std"],
        "scalers": ["identity", "amplification", "attenuation"],
        "deg": degrees,
    }
    kinds = {
        "gcn": _layers("GCNConv", add_self_loops=False),
        "gat": _layers("GATConv", heads=4, add_self_loops=False),
        "gatv2": _layers("GATv2Conv", heads=4, add_self_loops=False),
        "sage": _layers("SAGEConv"),
        "sage_max": _layers("SAGEConv", aggr="max"),
        "gin": _layers("GINConv"),
        "pna": _layers("PNAConv", **pna),
        "edge_conv": _layers("EdgeConv"),
        "transformer_conv": _layers("TransformerConv", heads=4),
    }
    f32 = {"gcn", "gin", "sage"}
    pyg = "torch_geometric"
    return [
        *(case(f"pyg_{name}", pyg, build, _graph()) for name, build in kinds.items()),
        *(case(f"pyg_{name}_f32", pyg, build, _graph(), "f32") for name, build in kinds.items() if name in f32),
        case("pyg_gcn_2k", pyg, kinds["gcn"], _graph(2708, 10_556)),
        case("pyg_schnet_f32", pyg, _schnet, _molecules, "f32"),
    ]
