"""Numbers of PyTorch's functions as tensors, also where they have to be numbers there: `x.add_(y, alpha=rate)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from kitsune_mlir.frontend.dtypes import NARROW, widened
from kitsune_mlir.training.numbers import Number

__all__ = ["TensorFactors"]


class TensorFactors(TorchFunctionMode):
    """While it is entered, functions take an optimizer's numbers (`Number`) as tensors.

    `alpha` of sums and `value` of `addcmul` and `addcdiv` may be tensors of one element, too. An optimizer's update that is
    traced with its numbers as tensors stays right when they change. Results of 16 bits are rounded once, as PyTorch's functions
    do. A function that takes no tensor gets the number's value, which the graph is made for then.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """`func`, with its numbers multiplied out where they are tensors."""
        kwargs = kwargs or {}
        numbers = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Number)]
        if not numbers:
            return _applied(func, args, kwargs) if _factor(func, kwargs) is not None else func(*args, **kwargs)
        try:
            with _NoNumbers():
                return _applied(func, *tree_map(_as_tensor, (args, kwargs)))
        except Exception:
            return func(*tree_map(_as_value, args), **tree_map(_as_value, kwargs))


class _NoNumbers(TorchDispatchMode):
    """While it is entered, a tensor is not taken for its number, as `beta` of a product or a bound of `clamp` is."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise TypeError("a number whose value is not known while a graph is made")
        return func(*args, **(kwargs or {}))


def _as_tensor(value: Any) -> Any:
    return value.tensor() if isinstance(value, Number) else value


def _as_value(value: Any) -> Any:
    return value.read() if isinstance(value, Number) else value


def _names(func: Callable[..., Any]) -> tuple[str, str, bool]:
    """The name of a function, that of what it computes, and whether it does so in place."""
    name = getattr(func, "__name__", "")
    kind = name.removeprefix("_foreach_")
    if name.startswith("__i"):
        return name, f"__{name[3:]}", True
    return name, kind if kind.startswith("__") else kind.removesuffix("_"), kind.endswith("_") and not kind.startswith("__")


def _factor(func: Callable[..., Any], kwargs: dict[str, Any]) -> Tensor | None:
    _, kind, _ = _names(func)
    factor = kwargs.get("alpha") if kind in _SUMS else kwargs.get("value") if kind in _PRODUCTS else None
    return factor if isinstance(factor, Tensor) else None


def _applied(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of tensors, some of which stand where a number does."""
    name, kind, in_place = _names(func)
    if not name.startswith("_foreach_"):
        return _one(func, kind, in_place, args, kwargs)
    count = len(next(value for value in args if isinstance(value, list | tuple)))
    alone = getattr(torch, kind)
    results = [_one(alone, kind, in_place, _nth(args, n), _nth(kwargs, n)) for n in range(count)]
    return None if in_place else results


def _nth(values: Any, n: int) -> Any:
    """The arguments of the n-th call that a function on lists stands for."""
    if isinstance(values, dict):
        return {key: value[n] if isinstance(value, list | tuple) else value for key, value in values.items()}
    return tuple(value[n] if isinstance(value, list | tuple) else value for value in values)


def _one(func: Callable[..., Any], kind: str, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs = dict(kwargs)
    if kind in _PRODUCTS and len(args) > 3:
        args, kwargs["value"] = args[:3], args[3]
    target: Any = next(iter(args), None)
    given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    narrow = next((value.dtype for value in given if value.dtype in NARROW), None)
    wide = any(value.dim() and value.is_floating_point() and value.dtype not in NARROW for value in given)
    args, kwargs = tree_map_only(Tensor, widened, (args, kwargs))
    factor = _factor(func, kwargs)
    if factor is not None:
        kwargs.pop("alpha" if kind in _SUMS else "value")
        result = (_SUMS.get(kind) or _PRODUCTS[kind])(factor, *args, **kwargs)
    elif kind == "lerp":
        result = _lerp(*args, **kwargs)
    else:
        result = (getattr(Tensor, kind) if in_place else func)(*args, **kwargs)
    if in_place:
        return target.copy_(result)
    rounded = isinstance(result, Tensor) and result.is_floating_point() and narrow is not None and not wide
    return result.to(narrow) if rounded else result


def _lerp(x: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    return torch.lerp(x, end, weight.to(x.dtype))


def _sum(sign: int) -> Callable[..., Tensor]:
    def made(factor: Tensor, x: Tensor, other: Any) -> Tensor:
        return x + other * (sign * factor)

    return made


def _product(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def made(factor: Tensor, x: Tensor, tensor1: Tensor, tensor2: Tensor) -> Tensor:
        return x + combine(tensor1, tensor2) * factor

    return made


_SUMS = {"add": _sum(1), "sub": _sum(-1)}
_PRODUCTS = {"addcmul": _product(torch.mul), "addcdiv": _product(torch.div)}
