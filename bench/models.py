"""The zoo: the models that kitsune-mlir is tested and measured on, in plain PyTorch.

    model, args = make("nerf", size="small", dtype=torch.float32)

Each model has two sizes. `full` is the one that is measured; its numbers are those of published models. `small` keeps
the structure and runs in milliseconds on a CPU, on row counts that no tile size divides. `make` takes any number of a
size by name, so that a case can be measured at other batches: `make("llama8b_tok", batch=16)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ZOO", "Case", "Spec", "cases", "make"]


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

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = torch.topk(self.router(x), self.chosen, dim=-1)
        weights = torch.softmax(scores, dim=-1)
        gate = (F.one_hot(chosen, self.experts) * weights[..., None]).sum(dim=1)
        h = F.gelu(torch.matmul(x, self.up))
        return (torch.matmul(h, self.down) * gate.T[..., None].to(x.dtype)).sum(dim=0)


@dataclass(frozen=True)
class Maker:
    """What a size's inputs are made with."""

    dtype: torch.dtype
    device: str

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def below(self, bound: int, *shape: int) -> Tensor:
        return torch.randint(0, bound, shape, device=self.device)


def _llama(n: dict[str, Any], m: Maker) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = LlamaLayer(n["width"], n["heads"], n["kv_heads"], n["hidden"])
    inputs = (m.normal(n["batch"], n["tokens"], n["width"]),)
    if n["cached"]:
        cache = (n["batch"], n["kv_heads"], n["cached"], n["width"] // n["heads"])
        inputs = (*inputs, m.normal(*cache), m.normal(*cache))
    return model, inputs


def _graph(n: dict[str, Any], m: Maker) -> tuple[nn.Module, tuple[Tensor, ...]]:
    nodes, edges, width = n["nodes"], n["edges"], n["width"]
    inputs = (m.normal(nodes, width), m.normal(edges, width), m.below(nodes, edges), m.below(nodes, edges))
    return GraphStep(width), inputs


def _bert(n: dict[str, Any], m: Maker) -> tuple[nn.Module, tuple[Tensor, ...]]:
    lengths = torch.linspace(n["tokens"] // 2, n["tokens"], n["batch"], device=m.device)
    mask = torch.arange(n["tokens"], device=m.device) < lengths[:, None]
    return BertLayer(n["width"], n["heads"], n["hidden"]), (m.normal(n["batch"], n["tokens"], n["width"]), mask)


def _dlrm(n: dict[str, Any], m: Maker) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = DLRM(n["dense"], n["tables"], n["table_rows"], n["width"], n["bottom"], n["top"])
    return model, (m.normal(n["batch"], n["dense"]), m.below(n["table_rows"], n["batch"], n["tables"]))


@dataclass(frozen=True)
class Spec:
    """A model of the zoo: how it is built from the numbers of a size, and its two sizes."""

    build: Callable[[dict[str, Any], Maker], tuple[nn.Module, tuple[Tensor, ...]]]
    full: dict[str, Any]
    small: dict[str, Any]


_LLAMA = {"width": 4096, "heads": 32, "kv_heads": 8, "hidden": 14336, "batch": 1}
_SMALL_LLAMA = {"width": 64, "heads": 4, "kv_heads": 2, "hidden": 160}

ZOO: dict[str, Spec] = {
    "nerf": Spec(
        lambda n, m: (
            NeRF(n["position"], n["direction"], n["width"]),
            (m.normal(n["rows"], n["position"]), m.normal(n["rows"], n["direction"])),
        ),
        full={"rows": 262_144, "position": 64, "direction": 32, "width": 256},
        small={"rows": 129, "position": 16, "direction": 8, "width": 64},
    ),
    "dlrm": Spec(
        _dlrm,
        full={
            "batch": 2048, "dense": 13, "tables": 26, "table_rows": 100_000, "width": 128,
            "bottom": (512, 256), "top": (1024, 1024, 512, 256),
        },
        small={
            "batch": 65, "dense": 13, "tables": 5, "table_rows": 101, "width": 32, "bottom": (64, 48), "top": (64, 48),
        },
    ),
    "mgn": Spec(
        _graph,
        full={"nodes": 20_000, "edges": 120_000, "width": 128},
        small={"nodes": 65, "edges": 391, "width": 32},
    ),
    "gcast": Spec(
        _graph,
        full={"nodes": 10_242, "edges": 61_440, "width": 512},
        small={"nodes": 42, "edges": 241, "width": 64},
    ),
    "gpt3_mlp": Spec(
        lambda n, m: (GptMLP(n["width"], n["hidden"]), (m.normal(n["rows"], n["width"]),)),
        full={"rows": 512, "width": 12288, "hidden": 6144},
        small={"rows": 65, "width": 96, "hidden": 48},
    ),
    "llama8b_tok": Spec(
        _llama,
        full={**_LLAMA, "tokens": 1, "cached": 1024},
        small={**_SMALL_LLAMA, "batch": 2, "tokens": 1, "cached": 33},
    ),
    "llama_prefill": Spec(
        _llama,
        full={**_LLAMA, "tokens": 128, "cached": 0},
        small={**_SMALL_LLAMA, "batch": 1, "tokens": 33, "cached": 0},
    ),
    "stitch": Spec(
        lambda n, m: (Stitch(n["width"]), (m.normal(n["rows"], n["width"]), m.normal(n["rows"], n["width"]))),
        full={"rows": 4096, "width": 1024},
        small={"rows": 129, "width": 96},
    ),
    "resnet_block": Spec(
        lambda n, m: (
            nn.Sequential(ResidualBlock(n["channels"]), ResidualBlock(n["channels"])),
            (m.normal(n["batch"], n["channels"], n["height"], n["width"]),),
        ),
        full={"batch": 8, "channels": 128, "height": 28, "width": 28},
        small={"batch": 2, "channels": 16, "height": 9, "width": 7},
    ),
    "bert_layer": Spec(
        _bert,
        full={"batch": 8, "tokens": 128, "width": 768, "heads": 12, "hidden": 3072},
        small={"batch": 3, "tokens": 17, "width": 48, "heads": 4, "hidden": 96},
    ),
    "moe": Spec(
        lambda n, m: (
            MixtureOfExperts(n["width"], n["hidden"], n["experts"], n["chosen"]),
            (m.normal(n["tokens"], n["width"]),),
        ),
        full={"tokens": 512, "width": 1024, "hidden": 2816, "experts": 4, "chosen": 2},
        small={"tokens": 65, "width": 32, "hidden": 80, "experts": 4, "chosen": 2},
    ),
}  # fmt: skip


def _initialise(model: nn.Module) -> None:
    """Random weights that keep activations of order one: variance 1/fan-in (2/fan-in under ReLU), small biases."""
    gain = 2.0 if any(isinstance(m, NeRF | DLRM | GraphStep) for m in model.modules()) else 1.0
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            if isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.BatchNorm2d):
                p.normal_(1.0 if name == "weight" else 0.0, 0.1)
            elif name == "bias":
                p.normal_(0.0, 0.1)
            elif isinstance(module, nn.Conv2d | nn.Linear):
                p.normal_(0.0, (gain / p[0].numel()) ** 0.5)
            elif isinstance(module, MixtureOfExperts):
                p.normal_(0.0, p.shape[1] ** -0.5)
            elif isinstance(module, DLRM):
                p.normal_(0.0, p.shape[-1] ** -0.25)  # so that products of two rows are of order one
            else:
                p.normal_()
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0.0, 0.1)
            module.running_var.uniform_(0.5, 1.5)


def make(
    name: str,
    size: str = "full",
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    device: str = "cpu",
    **numbers: Any,
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Builds a model of the zoo, in evaluation mode and without gradients, and inputs for it.

    Args:
        name: a key of `ZOO`.
        size: `full` or `small`.
        dtype: of the weights and of the floating-point inputs.
        seed: of weights and inputs. Equal seeds give equal values on one device.
        device: where weights and inputs live.
        numbers: replace numbers of the size: `batch=16`.

    Returns:
        The model and its positional inputs.

    Raises:
        KeyError: no such model.
        ValueError: no such size, or a number that the model does not have.
    """
    if size not in ("full", "small"):
        raise ValueError(f"size is 'full' or 'small', not '{size}'")
    spec = ZOO[name]
    chosen = dict(getattr(spec, size))
    unknown = numbers.keys() - chosen.keys()
    if unknown:
        raise ValueError(f"'{name}' has no number '{min(unknown)}'; it has {', '.join(chosen)}")
    chosen.update(numbers)

    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        # Linear layers would initialise themselves; skipping that halves the time of the large ones.
        with torch.device(device), torch.nn.utils.parametrize.cached(), _uninitialised():
            model, inputs = spec.build(chosen, Maker(dtype, device))
    finally:
        torch.set_default_dtype(default)
    model.eval().requires_grad_(False)
    with torch.no_grad():
        _initialise(model)
    return model, inputs


class _uninitialised(torch.overrides.TorchFunctionMode):
    """Makes the functions of `torch.nn.init` leave their tensor as it is."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return (kwargs or {}).get("tensor", args[0] if args else None)
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Case:
    """One entry of a run: a name for tables, and what builds the model and its inputs."""

    name: str
    build: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]


def cases(size: str = "full", dtype: torch.dtype = torch.bfloat16, seed: int = 0, device: str = "cpu") -> Iterator[Case]:
    """Every model of the zoo as a `Case`, in the zoo's order."""
    for name in ZOO:
        yield Case(name, lambda name=name: make(name, size, dtype, seed, device))
