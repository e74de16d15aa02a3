"""Factors of PyTorch's functions that have to be numbers there, as tensors: `x.add_(y, alpha=rate)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kitsune_mlir.frontend.dtypes import widened

__all__ = ["TensorFactors"]


class TensorFactors(TorchFunctionMode):
    """While it is entered, `alpha` of sums and `value` of `addcmul` and `addcdiv` may be tensors of one element.

    An optimizer's update that is traced with its learning rate as a tensor stays right when the rate changes. Results of 16
    bits are rounded once, as PyTorch's functions do.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """`func`, with its factor multiplied out where that is a tensor."""
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        kind = name.removeprefix("_foreach_").removesuffix("_")
        factor = kwargs.pop("alpha", None) if kind in _SUMS else kwargs.pop("value", None) if kind in _PRODUCTS else None
        if not isinstance(factor, Tensor):
            given = {} if factor is None else {"alpha" if kind in _SUMS else "value": factor}
            return func(*args, **kwargs, **given)
        made = _SUMS.get(kind) or _PRODUCTS[kind]
        if not name.startswith("_foreach_"):
            return _kept(name, args[0], made(factor, *args, **kwargs))
        results = [_kept(name, each[0], made(factor, *each)) for each in zip(*args, *kwargs.values(), strict=True)]
        return None if name.endswith("_") else results


def _kept(name: str, x: Tensor, result: Tensor) -> Tensor:
    """The result of a function of this name, which works in place if it ends in an underscore."""
    return x.copy_(result) if name.endswith("_") else result.to(x.dtype)


def _sum(sign: int) -> Callable[..., Tensor]:
    def made(factor: Tensor, x: Tensor, other: Any) -> Tensor:
        other = widened(other) if isinstance(other, Tensor) else other
        return widened(x) + other * (sign * factor)

    return made


def _product(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def made(factor: Tensor, x: Tensor, tensor1: Tensor, tensor2: Tensor) -> Tensor:
        return widened(x) + combine(widened(tensor1), widened(tensor2)) * factor

    return made


_SUMS = {"add": _sum(1), "sub": _sum(-1)}
_PRODUCTS = {"addcmul": _product(torch.mul), "addcdiv": _product(torch.div)}
