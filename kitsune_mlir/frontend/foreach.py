"""Operators that optimizers are written with: those on lists of tensors become one operator for each tensor of the lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["FOREACH", "copy_strided", "fma"]

aten = torch.ops.aten
_PREFIX = "_foreach_"


def _norm(x: Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _power_sum(x: Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    wide = widened(x).abs()
    return (wide**ord).sum().to(dtype or x.dtype)


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(x.dtype).expand(x.shape).clone()


_ALONE: dict[str, Callable[..., Tensor]] = {
    # With a number beside a tensor too; NaN wins in these as in `maximum`.
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": _norm,
    "powsum": _power_sum,
    "copy": _copy,
    "zero": torch.zeros_like,
}
"""What an operator does to each tensor, where it is not torch's function of that name."""


def _for_each(op: Any, alone: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """`alone` of each tensor: lists and vectors of numbers give one element each, other arguments are for all."""
    arguments = op._schema.arguments
    listed = {given.name for given in arguments if str(given.type).startswith("List[") or given.name == "scalars"}

    def decomposed(*args: Any, **kwargs: Any) -> list[Tensor]:
        names = [given.name for given in arguments[: len(args)]]
        count = next(
            len(value) for name, value in zip((*names, *kwargs), (*args, *kwargs.values()), strict=True) if name in listed
        )
        made = []
        for n in range(count):
            each = [value[n] if name in listed else value for name, value in zip(names, args, strict=True)]
            named = {name: value[n] if name in listed else value for name, value in kwargs.items()}
            # torch's functions take the factor of `addcmul` and `addcdiv` by its name.
            factor = {"value": each.pop()} if op._opname.startswith(f"{_PREFIX}addc") and len(each) > 3 else {}
            factor |= {"value": named.pop("scalars")} if "scalars" in named else {}
            made.append(alone(*each, **named, **factor))
        return made

    return decomposed


def _unscaled(tensors: list[Tensor], found_inf: Tensor, inverse: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients times the reciprocal of their scale, and 1 where one of them is not finite."""
    for x in tensors:
        found_inf = torch.where(torch.isfinite(x).all(), found_inf, torch.ones_like(found_inf))
    return [torch.where(inverse == 1, x, (widened(x) * inverse).to(x.dtype)) for x in tensors], found_inf


def _next_scale(
    scale: Tensor, tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> tuple[Tensor, Tensor]:
    """Of gradients: smaller after one that was not finite, larger after `interval` steps without one."""
    bad, count = found_inf != 0, tracker + 1
    grows, grown = count == interval, scale * growth
    larger = torch.where(grows & torch.isfinite(grown), grown, scale)
    return torch.where(bad, scale * backoff, larger), torch.where(bad | grows, torch.zeros_like(tracker), count)


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c, rounded twice."""
    return a * b + c


def copy_strided(a: Tensor, stride: Sequence[int]) -> Tensor:
    """A copy of `a` that lies in memory in the order of the strides, which PyTorch's `lerp` makes."""
    order = sorted(range(a.dim()), key=lambda dim: -stride[dim])
    return a.permute(order).clone(memory_format=torch.contiguous_format).permute([order.index(dim) for dim in range(a.dim())])


def _table() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = {
        aten._amp_foreach_non_finite_check_and_unscale.default: _unscaled,
        aten._amp_update_scale.default: _next_scale,
    }
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix(f"aten::{_PREFIX}")
        if name == schema.name or schema.is_mutable:
            continue
        op = getattr(getattr(aten, _PREFIX + name), schema.overload_name or "default")
        alone = _ALONE.get(name) or getattr(torch, name, None)
        if alone is not None:
            table[op] = _for_each(op, alone)
    return table


FOREACH: dict[Any, Callable[..., Any]] = _table()
"""Operator → decomposition."""
