"""Random small tensor programs: a recipe is plain data (so that hypothesis can shrink it), `GraphModel` runs it in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 16, 31, 64, 129])
UNARY = ("relu", "exp", "tanh", "sigmoid", "neg", "gelu", "silu", "square", "abs", "sqrt_abs", "sin", "erf", "softplus")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div_safe")
REDUCE = ("sum", "mean", "amax", "amin")
ROW = ("softmax", "layer_norm", "log_softmax", "cumulative_max")


def apply_unary(name: str, x: torch.Tensor) -> torch.Tensor:
    """One element-wise function of the recipe language."""
    special = {
        "exp": lambda: torch.exp(x.clamp(max=4.0)),
        "sqrt_abs": lambda: torch.sqrt(x.abs() + 0.1),
        "gelu": lambda: torch.nn.functional.gelu(x),
        "silu": lambda: torch.nn.functional.silu(x),
        "softplus": lambda: torch.nn.functional.softplus(x),
        "square": lambda: x * x * 0.25,
    }
    return special[name]() if name in special else getattr(torch, name)(x)


def apply_binary(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One element-wise function of two broadcastable tensors."""
    return a / (b.abs() + 0.5) if name == "div_safe" else getattr(torch, name)(a, b)


def apply_row(name: str, x: torch.Tensor) -> torch.Tensor:
    """One function along the last dimension."""
    if name == "layer_norm":
        return torch.nn.functional.layer_norm(x, x.shape[-1:])
    if name == "cumulative_max":
        return x - x.amax(-1, keepdim=True)
    return getattr(torch, name)(x, -1)


class GraphModel(torch.nn.Module):
    """Runs a recipe: a list of steps, each (kind, name, operand numbers, extra). Returns the last values."""

    def __init__(self, recipe: dict[str, Any]):
        super().__init__()
        self.recipe = recipe
        generator = torch.Generator().manual_seed(recipe["seed"])
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(*shape, generator=generator) / shape[0] ** 0.5) for shape in recipe["weights"]
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x: [m, n], y: [m, n] or broadcastable, index: [k] rows of x."""
        values = [x, y]
        for kind, name, numbers, extra in self.recipe["steps"]:
            operands = [values[i % len(values)] for i in numbers]
            values.append(self._step(kind, name, operands, extra, index))
        return tuple(values[-self.recipe["outputs"] :])

    def _step(self, kind: str, name: str, operands: list[torch.Tensor], extra: Any, index: torch.Tensor) -> torch.Tensor:
        a = operands[0]
        if kind == "unary":
            return apply_unary(name, a)
        if kind == "binary":
            b = operands[1]
            if a.shape != b.shape:  # bring the second one to a shape that broadcasts
                b = b.mean() if b.dim() != a.dim() or b.shape[-1] != a.shape[-1] else b.mean(0, keepdim=True)
            return apply_binary(name, a, b)
        if kind == "row":
            return apply_row(name, a)
        if kind == "reduce":
            return getattr(torch, name)(a, extra % a.dim(), keepdim=True)
        if kind == "product":
            weight = self.weights[extra % len(self.weights)]
            cut = min(a.shape[-1], weight.shape[0])
            return a[..., :cut] @ weight[:cut]
        if kind == "transpose":
            return a.transpose(0, 1)
        if kind == "concat":
            b = operands[1]
            return torch.cat([a, b if b.shape[0] == a.shape[0] else a], 1)
        if kind == "gather":
            return a[index % a.shape[0]]
        if kind == "scatter":
            return torch.zeros_like(a).index_add(0, torch.arange(a.shape[0]) // 2, a)
        if kind == "slice":
            return a[:, : max(1, a.shape[1] // 2)]
        if kind == "reshape":
            return a.reshape(1, -1) if a.numel() < 600 else a.unsqueeze(1).squeeze(1)
        raise ValueError(kind)


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """Recipes of 1 to 7 steps over a 2-D input."""
    numbers = st.lists(st.integers(0, 9), min_size=2, max_size=2)
    step = st.one_of(
        st.tuples(st.just("unary"), st.sampled_from(UNARY), numbers, st.just(0)),
        st.tuples(st.just("binary"), st.sampled_from(BINARY), numbers, st.just(0)),
        st.tuples(st.just("row"), st.sampled_from(ROW), numbers, st.just(0)),
        st.tuples(st.just("reduce"), st.sampled_from(REDUCE), numbers, st.integers(0, 1)),
        st.tuples(st.just("product"), st.just(""), numbers, st.integers(0, 1)),
        st.tuples(
            st.sampled_from(["transpose", "concat", "gather", "scatter", "slice", "reshape"]), st.just(""), numbers, st.just(0)
        ),
    )
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    return {
        "shape": (m, n),
        "other": draw(st.sampled_from([(m, n), (1, n), (m, 1)])),
        "rows": k,
        "weights": [(draw(SIZES), draw(SIZES)) for _ in range(2)],
        "steps": draw(st.lists(step, min_size=1, max_size=7)),
        "outputs": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**16)),
    }


def inputs_of(recipe: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """Fresh random inputs for a recipe, from its seed."""
    generator = torch.Generator().manual_seed(recipe["seed"] + 1)
    x = torch.randn(*recipe["shape"], generator=generator).to(dtype)
    y = torch.randn(*recipe["other"], generator=generator).to(dtype)
    return x, y, torch.randint(0, recipe["shape"][0], (recipe["rows"],), generator=generator)
