"""How a case is made of a library's model: weights from a seed, arguments by name, tensors out."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bench.case import DTYPES, BenchCase, Inputs
from bench.models import Maker, uninitialised

__all__ = ["Build", "Called", "Draw", "case", "imported"]

Build = Callable[[], nn.Module]
Draw = Callable[[Maker], Mapping[str, Tensor]]
"""Draws inputs by the names of the model's parameters; a name that is a number is a place."""

_SCHEMAS = ("nms", "qnms")
"""torchvision's operators that its import gives a shape rule, whether its library of operators could be loaded or not."""


class Called(nn.Module):
    """A model called with tensors by name; of what it gives, the tensors.

    Args:
        names: of the tensors; a name that is a number is a place.
        given: other arguments.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...], given: Mapping[str, Any]):
        super().__init__()
        self.model, self.names, self.given = model, names, dict(given)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """In the order of `names`."""
        named = dict(zip(self.names, tensors, strict=True))
        args = [tensor for name, tensor in named.items() if name.isdigit()]
        found = self.model(*args, **{name: t for name, t in named.items() if not name.isdigit()}, **self.given)
        return tuple(leaf for leaf in pytree.tree_leaves(_plain(found)) if isinstance(leaf, Tensor))


def _plain(value: Any) -> Any:
    """Mappings that PyTorch does not know as such (the outputs of models) as dictionaries."""
    return dict(value) if isinstance(value, Mapping) else value


def imported(library: str) -> Any:
    """A library's module.

    torchvision, which others import, holds operators for CUDA. Beside a PyTorch without it they do not load, and the import
    stops where it describes them: they are declared, and none of the models uses one.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not torch.version.cuda:
        with contextlib.suppress(RuntimeError):  # declared already
            for name in _SCHEMAS:
                _declarations().define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module(library)


@functools.cache
def _declarations() -> torch.library.Library:
    return torch.library.Library("torchvision", "FRAGMENT")


def _draw_zeros(model: nn.Module) -> None:
    """Draw matrices that are zeros before training (timm's heads, diffusers' gates): zeros come out right whatever is wrong."""
    for weight in model.parameters():
        if weight.dim() > 1 and not weight.any():
            nn.init.normal_(weight, std=0.02)


def _made(build: Build, draw: Draw, given: Mapping[str, Any], dtype: str, device: str, values: bool) -> Inputs:
    torch.manual_seed(0)
    with contextlib.nullcontext() if values else uninitialised(), torch.device(device):
        model = build()
    if values:
        _draw_zeros(model)
    inputs = draw(Maker(DTYPES[dtype], device, values))
    called = Called(model, tuple(inputs), given).to(DTYPES[dtype])
    return called.eval().requires_grad_(False), tuple(inputs.values())


def case(name: str, library: str, build: Build, draw: Draw, dtype: str = "bf16", **given: Any) -> BenchCase:
    """A case of a library's model, in evaluation mode.

    Args:
        build: makes the model, in f32; it is then brought into `dtype`, as users do.
        given: arguments that are no tensors.
    """
    make = functools.partial(_made, build, draw, given, dtype)
    return BenchCase(f"lib_{name}", "library", make, dtype, goal=1.0, by_eager=True, library=library)
