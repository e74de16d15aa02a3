"""What a case of the benchmark is."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["DTYPES", "LIMITS", "BenchCase", "Inputs"]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
LIMITS = {"bf16": 2e-2, "f16": 3e-3, "f32": 1e-5}
"""Largest ‖out - ref‖ / ‖ref‖ of each result against float64."""

Inputs = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class BenchCase:
    """One program that is measured.

    Attributes:
        name: unique.
        group: what it is listed under.
        make: model and inputs on a device; without values where only shapes count.
        dtype: a key of `DTYPES`: weights and activations.
        goal: what it must reach; None where it is only recorded.
        measure: "speedup" (times faster than the best peer) or "fraction" (of the floor's speed).
        unread: bytes of weights that a run does not read (rows of a table that no index names).
        undecided: for rows of the results, whether rounding decides them (which expert comes first); those are counted, and not
            compared with float64.
        by_eager: the limit of the error is twice that of PyTorch's own result, not one of `LIMITS`.
        operations: floating-point operations, where PyTorch's counter does not know better (causal attention does half).
        library: a package that makes the model, where that is not PyTorch alone.
        autotuned: max-autotune is a peer wherever others are.
    """

    name: str
    group: str
    make: Callable[[str, bool], Inputs]
    dtype: str = "bf16"
    goal: float | None = None
    measure: str = "speedup"
    unread: Callable[[nn.Module, tuple[Tensor, ...]], int] | None = None
    undecided: Callable[[nn.Module, tuple[Tensor, ...]], Tensor] | None = None
    by_eager: bool = False
    operations: int | None = None
    library: str = ""
    autotuned: bool = False

    @property
    def missing(self) -> str:
        """The package that it needs and that is not installed; "" if it can be made."""
        return self.library if self.library and importlib.util.find_spec(self.library) is None else ""
