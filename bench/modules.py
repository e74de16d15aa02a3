"""The zoo's networks, as a user of PyTorch would write them; `bench.models` gives them sizes, weights and inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "DLRM",
    "BertLayer",
    "GptMLP",
    "GraphStep",
    "LlamaLayer",
    "MixtureOfExperts",
    "NeRF",
    "ResidualBlock",
    "Stitch",
    "mlp",
]


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of the given widths with ReLU between them, none after the last."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(zip(widths, widths[1:], strict=False)):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(fan_in, fan_out)]
    return nn.Sequential(*layers)


class NeRF(nn.Module):
    """The radiance field of Mildenhall et al. (arXiv 2003.08934): 8 layers, the input once more before the sixth."""

    def __init__(self, position: int, direction: int, width: int):
        super().__init__()
        self.before = nn.ModuleList([nn.Linear(position if i == 0 else width, width) for i in range(5)])
        self.after = nn.ModuleList([nn.Linear(width + position if i == 0 else width, width) for i in range(3)])
        self.sigma = nn.Linear(width, 1)
        self.feature = nn.Linear(width, width)
        self.view = nn.Linear(width + direction, width // 2)
        self.rgb = nn.Linear(width // 2, 3)

    def forward(self, position: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        h = position
        for layer in self.before:
            h = F.relu(layer(h))
        h = torch.cat([h, position], dim=-1)
        for layer in self.after:
            h = F.relu(layer(h))
        sigma = self.sigma(h)
        view = F.relu(self.view(torch.cat([self.feature(h), direction], dim=-1)))
        return self.rgb(view), sigma


class DLRM(nn.Module):
    """The recommender of Naumov et al. (arXiv 1906.00091): dot products between embeddings, one index a table."""

    table: Tensor
    left: Tensor
    right: Tensor

    def __init__(self, dense: int, tables: int, rows: int, width: int, bottom: tuple[int, ...], top: tuple[int, ...]):
        super().__init__()
        vectors = tables + 1
        self.bottom = mlp(dense, *bottom, width)
        self.top = mlp(width + vectors * (vectors - 1) // 2, *top, 1)
        self.embeddings = nn.Parameter(torch.empty(tables, rows, width))
        self.register_buffer("table", torch.arange(tables))
        pairs = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("left", pairs[0].clone())
        self.register_buffer("right", pairs[1].clone())

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = F.relu(self.bottom(dense))
        sparse = self.embeddings[self.table[None], indices]
        vectors = torch.cat([x[:, None], sparse], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return torch.sigmoid(self.top(torch.cat([x, products[:, self.left, self.right]], dim=1)))


class GraphStep(nn.Module):
    """One message-passing step of MeshGraphNets (arXiv 2010.03409) and, wider, of GraphCast (arXiv 2212.12794)."""

    def __init__(self, width: int):
        super().__init__()
        self.edge_mlp = mlp(3 * width, width, width, width)
        self.edge_norm = nn.LayerNorm(width)
        self.node_mlp = mlp(2 * width, width, width, width)
        self.node_norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, edges: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        edges = edges + self.edge_norm(self.edge_mlp(torch.cat([edges, nodes[source], nodes[target]], dim=-1)))
        gathered = torch.zeros_like(nodes).index_add(0, target, edges)
        nodes = nodes + self.node_norm(self.node_mlp(torch.cat([nodes, gathered], dim=-1)))
        return nodes, edges


class GptMLP(nn.Module):
    """The eighth of GPT-3's feed-forward block that one of eight GPUs holds, as cuSync measures it (arXiv 2305.13450)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class AttentionBlock(nn.Module):
    """One tensor-parallel slice of GPT-3's attention, as cuSync measures it: QKV product, causal attention, output product."""

    def __init__(self, width: int, heads: int, head_width: int):
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.qkv = nn.Linear(width, 3 * heads * head_width)
        self.output = nn.Linear(heads * head_width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, self.head_width)
        q, k, v = (qkv[:, :, number].transpose(1, 2) for number in range(3))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(a.transpose(1, 2).reshape(batch, tokens, self.heads * self.head_width))


class LlamaLayer(nn.Module):
    """A Llama-3 layer without rotary embedding: grouped-query attention, SwiGLU, RMSNorm.

    Called with a cache of keys and values it decodes; without, it is a causal prefill.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, heads * self.head_width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.o = nn.Linear(heads * self.head_width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(
        self, x: Tensor, past_keys: Tensor | None = None, past_values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, width = x.shape
        h = self.attention_norm(x)
        q = self.q(h).view(batch, tokens, self.heads, self.head_width).transpose(1, 2)
        new_k = self.k(h).view(batch, tokens, self.kv_heads, self.head_width).transpose(1, 2)
        new_v = self.v(h).view(batch, tokens, self.kv_heads, self.head_width).transpose(1, 2)
        k, v = new_k, new_v
        if past_keys is not None and past_values is not None:
            k = torch.cat([past_keys, new_k], dim=2)
            v = torch.cat([past_values, new_v], dim=2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=past_keys is None, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, tokens, width))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), new_k, new_v


class LlamaStack(nn.Module):
    """Llama-3 layers one after the other; `past` holds the keys and values of each layer in turn."""

    def __init__(self, layers: int, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv_heads, hidden) for _ in range(layers))

    def forward(self, x: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        new = []
        for number, layer in enumerate(self.layers):
            x, keys, values = layer(x, *past[2 * number : 2 * number + 2])
            new += [keys, values]
        return (x, *new)


class Stitch(nn.Module):
    """A long memory-bound chain with two row reductions, after FusionStitching (arXiv 1811.05213)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.b = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.norm(x + y) * torch.sigmoid(self.b)
        g = F.gelu(h)
        p = torch.softmax(g, dim=-1)
        return (p * h).sum(dim=-1, keepdim=True) + torch.tanh(g)


class ResidualBlock(nn.Module):
    """The basic block of He et al. (arXiv 1512.03385): two 3×3 convolutions with batch norm, and the input added."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class BertLayer(nn.Module):
    """An encoder layer of BERT (arXiv 1810.04805), with a padding mask (true: attend)."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.output_norm = nn.LayerNorm(width, eps=1e-12)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = self.attention_norm(x + self.o(a.transpose(1, 2).flatten(2)))
        return self.output_norm(x + self.down(F.gelu(self.up(x))))


class MixtureOfExperts(nn.Module):
    """Top-k routing over feed-forward experts (arXiv 1701.06538).

    Every expert computes every token and the gate is zero where a token was not routed, which keeps shapes static.
    """

    def __init__(self, width: int, hidden: int, experts: int, chosen: int):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))

    def undecided(self, x: Tensor) -> Tensor:
        """For each token, whether the last expert that is chosen and the first that is not have scores so close that rounding
        them to x's type (half a unit of the last place each) may make them equal, or change their order; computed in float64.
        """
        ordered = (x.double() @ self.router.weight.double().T).sort(dim=-1, descending=True).values
        last, next_ = ordered[:, self.chosen - 1], ordered[:, self.chosen]
        return last - next_ <= torch.finfo(x.dtype).eps * torch.maximum(last.abs(), next_.abs())

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = torch.topk(self.router(x), self.chosen, dim=-1)
        weights = torch.softmax(scores, dim=-1)
        gate = (F.one_hot(chosen, self.experts) * weights[..., None]).sum(dim=1)
        h = F.gelu(torch.matmul(x, self.up))
        return (torch.matmul(h, self.down) * gate.T[..., None].to(x.dtype)).sum(dim=0)
