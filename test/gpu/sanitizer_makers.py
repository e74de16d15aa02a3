"""What makes the small programs of `sanitizer_cases`: models, inputs and options."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bench.sweeps import Function
from test.gpu import (
    attention_cases,
    attention_gradient_programs,
    conv_programs,
    gemv_programs,
    queue_programs,
    range_programs,
    row_programs,
)
from test.programs.scatters import forms

__all__ = [
    "BF16",
    "F32",
    "TOLERANCE",
    "Case",
    "Flat",
    "Normalised",
    "OddTable",
    "added",
    "attention",
    "attention_gradient",
    "by_maps",
    "chain",
    "convolution",
    "function",
    "gemv",
    "layers",
    "linear",
    "matrices",
    "messages",
    "ranges",
    "recommender",
    "recurrent",
    "rows",
    "scattered",
    "several",
    "sorted_beside_a_product",
    "tower",
]

BF16, F32 = torch.bfloat16, torch.float32
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5, torch.float64: 1e-12}
TF32 = 1e-3


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and its inputs, both made on the processor from a fixed seed.

    Attributes:
        engine: one of those that must do a task of it.
        options: of the compiler.
        tolerance: of the error's norm relative to the result's; None: by the result's type.
        steps: passes of the plan with options of their own, by name.
        forced: ranges are read in place whatever the planner thinks of it.
        repeats: the same bits on every run.
    """

    engine: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], Sequence[Tensor]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tolerance: float | None = None
    steps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    forced: bool = False
    repeats: bool = True

    def made(self) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Model and inputs."""
        torch.manual_seed(0)
        return self.model().eval().requires_grad_(False), tuple(self.inputs())

    @property
    def requests(self) -> int:
        """How many requests a launch takes; 0 where the program is compiled for calls one by one."""
        return self.options.get("requests", 0)

    def made_for(self, count: int) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Models that differ in their weights, each with inputs of its own."""
        torch.manual_seed(1)
        pairs = []
        for number in range(count):
            model = self.model().eval().requires_grad_(False)
            for parameter in model.parameters():
                parameter.mul_(1 + number / 8)
            pairs.append((model, tuple(self.inputs())))
        return pairs


class Flat(nn.Module):
    """A module whose results are not nested."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> list[Any]:
        return tree_leaves(self.net(x))


class Normalised(nn.Module):
    """Layers of few rows, each with its rows' norm before it."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x


def tower(*widths: int, dtype: torch.dtype = BF16) -> nn.Module:
    """Layers of few rows with ReLU."""
    return queue_programs.mlp(*widths).to(dtype)


def rows(count: int, width: int, dtype: torch.dtype = BF16) -> Callable[[], tuple[Tensor, ...]]:
    """One matrix."""
    return lambda: (torch.randn(count, width).to(dtype),)


def matrices(*shapes: tuple[int, ...], dtype: torch.dtype = F32) -> Callable[[], tuple[Tensor, ...]]:
    """Random tensors."""
    return lambda: tuple(torch.randn(*shape).to(dtype) for shape in shapes)


def gemv(kind: str, count: int, depth: int, cols: int, dtype: str = "bf16") -> Case:
    """A case of `gemv_programs`."""
    made = gemv_programs.Case(kind, count, depth, cols, dtype)
    return Case("gemv", made.module, rows(count, depth, gemv_programs.DTYPES[dtype]))


def attention(**numbers: Any) -> Case:
    """A case of `attention_cases`."""
    made = attention_cases.Case(**numbers)
    return Case(
        "attention", lambda: attention_cases.model_of(made), lambda: list(attention_cases.inputs_of(made, "cpu").values())
    )


def attention_gradient(**numbers: Any) -> Case:
    """A case of `attention_gradient_programs`."""
    made = attention_cases.Case(**numbers)
    programs = attention_gradient_programs
    return Case(
        "attention_gradient", lambda: programs.model_of(made), lambda: list(programs.trained_inputs(made, "cpu").values())
    )


def recurrent(
    kind: Callable[..., nn.Module], hidden: int, steps: int, batch: int, dtype: torch.dtype = BF16, **settings: bool
) -> Case:
    """All results of a recurrent layer."""
    model = lambda: Flat(kind(hidden, hidden, **settings).to(dtype))  # noqa: E731
    return Case("recurrence", model, matrices((steps, batch, hidden), dtype=dtype))


def ranges(*numbers: Any, forced: bool = True, **more: Any) -> Case:
    """A case of `range_programs`."""
    made = range_programs.Case(*numbers, **more)
    steps = {"kitsune-partition-streams": "without=gemv"} if forced else {}
    return Case(
        "mma", lambda: range_programs.Model(made), lambda: range_programs.inputs_of(made, "cpu"), forced=forced, steps=steps
    )


def convolution(engine: str, name: str) -> Case:
    """A case of `conv_programs`."""
    made = conv_programs.CASES[name]
    return Case(engine, made.model, made.inputs, made.options, conv_programs.LIMITS[made.dtype])


def chain(model: Callable[[], nn.Module], inputs: Callable[..., Any]) -> Case:
    """Layers that share a stage."""
    steps = {"kitsune-form-stages": "chains=true"}
    cpu = torch.device("cpu")
    return Case("chain", lambda: model().to(BF16), lambda: inputs(cpu, BF16), steps=steps)


def recommender(*numbers: Any) -> Case:
    """A case of `row_programs` with gathered vectors."""
    made = row_programs.Case(*numbers)
    return Case("pairs", lambda: row_programs.model_of(made), lambda: row_programs.inputs_of(made, "cpu"))


def layers(engine: str, mode: str, count: int, *widths: int, rings: int = 0, dtype: torch.dtype = BF16) -> Case:
    """Linear layers with ReLU."""
    steps = {"kitsune-place-buffers": f"rings={rings}"} if rings else {}
    inputs = rows(count, widths[0], dtype)
    return Case(engine, lambda: queue_programs.mlp(*widths).to(dtype), inputs, {"schedule": mode}, steps=steps)


def linear(count: int, depth: int, cols: int, dtype: torch.dtype = F32, precision: str = "highest") -> Case:
    """One layer."""
    exact = precision == "highest"
    options, tolerance = {"matmul_precision": precision}, None if exact else TF32
    return Case("mma", lambda: nn.Linear(depth, cols).to(dtype), rows(count, depth, dtype), options, tolerance)


def added(updates: int, columns: int, count: int, dtype: torch.dtype, ordered: bool) -> Case:
    """Rows added at indices."""

    def inputs() -> tuple[Tensor, ...]:
        values = [torch.randn(n, columns).to(dtype) for n in (count, updates)]
        return values[0], torch.randint(0, count, (updates,)), values[1]

    def add(start: Tensor, indices: Tensor, values: Tensor) -> Tensor:
        return start.index_add(0, indices, values)

    return Case("ordered" if ordered else "scatter", lambda: Function(add), inputs, {"deterministic": ordered}, repeats=ordered)


def scattered(form: str, columns: int, dtype: torch.dtype, ordered: bool = False) -> Case:
    """A form of `test.programs.scatters`."""

    def made() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
        return forms(129, 1000, columns, dtype)[form]

    options = {"deterministic": ordered}
    return Case("ordered" if ordered else "scatter", lambda: Function(made()[0]), lambda: made()[1], options, repeats=ordered)


def several(case: Case, requests: int) -> Case:
    """A case whose kernels take several requests in a launch."""
    return dataclasses.replace(case, options={**case.options, "requests": requests})


def by_maps(case: Case) -> Case:
    """A case whose rows are put where they belong by the maps that make (or widen) them."""
    return dataclasses.replace(case, engine="simt")


def function(engine: str, run: Callable[..., Any], inputs: Callable[[], tuple[Tensor, ...]], **options: Any) -> Case:
    """A function of tensors."""
    return Case(engine, lambda: Function(run), inputs, options)


def sorted_beside_a_product(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """A kernel that has fewer threads than long rows have lanes."""
    return *torch.sort(x, dim=-1, stable=True), y @ w


def messages(x: Tensor, weight: Tensor, edges: Tensor) -> Tensor:
    """Rows that a map makes are added where they belong."""
    return torch.zeros_like(x).index_add(0, edges[1], torch.relu(x[edges[0]] * weight))


class OddTable(nn.Module):
    """Rows of 131 elements that begin at multiples of 16 bytes, by index, through a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(131, 64), nn.ReLU(), nn.Linear(64, 64)).bfloat16()

    def forward(self, table: Tensor, source: Tensor) -> Tensor:
        return self.layers(table[:, :131][source])
