"""The zoo: the models that kitsune-mlir is tested and measured on, in plain PyTorch.

    model, args = make("nerf", size="small", dtype=torch.float32)

Each model has two sizes. `full` is the one that is measured; its numbers are those of published models. `small` keeps
the structure and runs in milliseconds on a CPU, on row counts that no tile size divides. `make` takes any number of a
size by name, so that a case can be measured at other batches: `make("llama8b_tok", batch=16)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.modules import (
    DLRM,
    AttentionBlock,
    BertLayer,
    GptMLP,
    GraphStep,
    LlamaLayer,
    LlamaStack,
    MixtureOfExperts,
    NeRF,
    ResidualBlock,
    Stitch,
)

__all__ = ["ZOO", "Case", "Maker", "Spec", "cases", "default_dtype", "initialise", "make", "uninitialised"]


@dataclass(frozen=True)
class Maker:
    """What a size's inputs are made with; without `values` they have shapes only (normals unset, integers zero)."""

    dtype: torch.dtype
    device: str
    values: bool = True

    def normal(self, *shape: int) -> Tensor:
        if not self.values:
            return torch.empty(*shape, device=self.device, dtype=self.dtype)
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def below(self, bound: int, *shape: int) -> Tensor:
        if not self.values:
            return torch.zeros(shape, device=self.device, dtype=torch.int64)
        return torch.randint(0, bound, shape, device=self.device)

    def places(self, count: int) -> Tensor:
        return torch.arange(count, device=self.device)


def _llama(n: dict[str, Any], m: Maker) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = LlamaLayer(n["width"], n["heads"], n["kv_heads"], n["hidden"])
    inputs = (m.normal(n["batch"], n["tokens"], n["width"]),)
    if n["cached"]:
        cache = (n["batch"], n["kv_heads"], n["cached"], n["width"] // n["heads"])
        inputs = (*inputs, m.normal(*cache), m.normal(*cache))
    return model, inputs


def _llama_stack(n: dict[str, Any], m: Maker) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = LlamaStack(n["layers"], n["width"], n["heads"], n["kv_heads"], n["hidden"])
    cache = (n["batch"], n["kv_heads"], n["cached"], n["width"] // n["heads"])
    past = [m.normal(*cache) for _ in range(2 * n["layers"])]
    return model, (m.normal(n["batch"], n["tokens"], n["width"]), *past)


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
    "attention_block": Spec(
        lambda n, m: (
            AttentionBlock(n["width"], n["heads"], n["head_width"]),
            (m.normal(1, n["tokens"], n["width"]),),
        ),
        full={"tokens": 1024, "width": 12288, "heads": 12, "head_width": 128},
        small={"tokens": 65, "width": 96, "heads": 3, "head_width": 16},
    ),
    "llama8b_tok": Spec(
        _llama,
        full={**_LLAMA, "tokens": 1, "cached": 1024},
        small={**_SMALL_LLAMA, "batch": 2, "tokens": 1, "cached": 33},
    ),
    "llama8b_stack": Spec(
        _llama_stack,
        full={**_LLAMA, "layers": 8, "tokens": 1, "cached": 1024},
        small={**_SMALL_LLAMA, "layers": 2, "batch": 2, "tokens": 1, "cached": 33},
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


def initialise(model: nn.Module, gain: float = 1.0) -> None:
    """Random weights that keep activations of order one: variance gain/fan-in (gain 2 under ReLU), small biases."""
    gain = 2.0 if any(isinstance(m, NeRF | DLRM | GraphStep) for m in model.modules()) else gain
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
    values: bool = True,
    **numbers: Any,
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Builds a model of the zoo, in evaluation mode and without gradients, and inputs for it.

    Args:
        name: a key of `ZOO`.
        size: `full` or `small`.
        dtype: of the weights and of the floating-point inputs.
        seed: of weights and inputs. Equal seeds give equal values on one device.
        device: where weights and inputs live.
        values: False leaves weights and inputs as they come (memory that nobody touches): enough to compile by.
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
    # Linear layers would initialise themselves; skipping that halves the time of the large ones.
    with default_dtype(dtype), torch.device(device), torch.nn.utils.parametrize.cached(), uninitialised():
        model, inputs = spec.build(chosen, Maker(dtype, device, values))
    model.eval().requires_grad_(False)
    if values:
        with torch.no_grad():
            initialise(model)
    return model, inputs


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """The type of numbers that PyTorch gives what is made without one."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        yield
    finally:
        torch.set_default_dtype(before)


class uninitialised(torch.overrides.TorchFunctionMode):
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
