"""Recommenders: bags of embeddings, crosses of features, odd widths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.modules import mlp

__all__ = ["DIEN", "BagDLRM", "CrossNetwork", "DeepFM", "TableDLRM"]


class BagDLRM(nn.Module):
    """DLRM with an `EmbeddingBag` a table, as published (Naumov et al., arXiv 1906.00091)."""

    pairs: Tensor

    def __init__(self, tables: int, rows: int, width: int):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom, self.top = mlp(13, 512, 256, width), mlp(width + (tables + 1) * tables // 2, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1))

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """dense: [n, 13]; indices: [tables, n, bag]."""
        x = F.relu(self.bottom(dense))
        vectors = torch.stack([x, *(bag(indices[i]) for i, bag in enumerate(self.bags))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


class TableDLRM(nn.Module):
    """The same with an `nn.Embedding` a table, and no products of pairs."""

    def __init__(self, tables: int, rows: int, width: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom, self.top = mlp(13, 512, 256, width), mlp((tables + 1) * width, 512, 256, 1)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = F.relu(self.bottom(dense))
        return torch.sigmoid(self.top(torch.cat([x, *(t(indices[:, i]) for i, t in enumerate(self.tables))], 1)))


class CrossNetwork(nn.Module):
    """DCN v2 (Wang et al., arXiv 2008.13535): each layer multiplies a linear map of the features with the first features."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.crosses, self.deep = nn.ModuleList(nn.Linear(width, width) for _ in range(depth)), mlp(width, 768, 512, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for cross in self.crosses:
            h = x * cross(h) + h
        return torch.sigmoid(self.deep(h))


class DeepFM(nn.Module):
    """A factorisation machine beside a network on the same embeddings (Guo et al., arXiv 1703.04247)."""

    offset: Tensor

    def __init__(self, fields: int, rows: int, width: int):
        super().__init__()
        self.first, self.factors = nn.Embedding(fields * rows, 1), nn.Embedding(fields * rows, width)
        self.deep = mlp(fields * width, 400, 400, 1)
        self.register_buffer("offset", torch.arange(fields) * rows)

    def forward(self, indices: Tensor) -> Tensor:
        """indices: [n, fields]."""
        index = indices + self.offset
        v = self.factors(index)
        pairs = 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.first(index).sum(1) + pairs + self.deep(v.flatten(1)))


class DIEN(nn.Module):
    """Interests that evolve: a GRU over what was seen, attention of the candidate, a network (arXiv 1809.03672, shortened)."""

    def __init__(self, rows: int, width: int, hidden: int):
        super().__init__()
        self.items, self.gru = nn.Embedding(rows, width), nn.GRU(width, hidden, batch_first=True)
        self.score, self.top = mlp(2 * hidden, 64, 1), mlp(hidden + width, 200, 80, 1)
        self.query = nn.Linear(width, hidden)

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        """history: [n, length]; item: [n]."""
        states, _ = self.gru(self.items(history))
        candidate = self.items(item)
        query = self.query(candidate)[:, None].expand(-1, states.shape[1], -1)
        weights = torch.softmax(self.score(torch.cat([states, query], -1)), 1)
        return torch.sigmoid(self.top(torch.cat([(weights * states).sum(1), candidate], 1)))
