"""Operations and bytes of the operators that PyTorch runs in a call, in eager or between compiled programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

__all__ = ["Work", "work_of"]

_MAKE_NO_VALUES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh", "alias")


@dataclasses.dataclass
class Work:
    """What operators do, views and allocations left out.

    Attributes:
        operators: how many.
        operations: of products, convolutions and attention as PyTorch's FlopCounterMode counts them, of others one for each
            element of a result.
        bytes: of all tensors that an operator is given and makes, each time.
    """

    operators: int = 0
    operations: int = 0
    bytes: int = 0


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions run as they do without the mode (else torch.compile leaves the whole call to PyTorch)."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        if func.is_view or packet.__name__ in _MAKE_NO_VALUES:
            return found
        given = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        made = [value for value in pytree.tree_leaves(found) if isinstance(value, Tensor)]
        self.work.operators += 1
        self.work.bytes += sum(value.nbytes for value in given + made)
        self.work.operations += _operations(packet, args, kwargs or {}, found) or sum(value.numel() for value in made)
        return found


def _operations(packet: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> int:
    """As PyTorch counts them; 0 where it does not."""
    if packet not in flop_registry:
        return 0
    try:
        return int(flop_registry[packet](*args, **kwargs, out_val=found))
    except AssertionError:  # of attention with fewer heads of keys than of queries
        shapes = [value.shape for value in args[:3]]
        (*_, heads, rows, width), (*_, columns, _), (*_, last) = shapes
        return 2 * shapes[0][0] * heads * rows * columns * (width + last)


def work_of(call: Callable[[], Any]) -> Work:
    """What PyTorch's operators do in one call without gradients. Programs are not counted, whatever compiled them."""
    with torch.no_grad(), _Counter() as counter:
        call()
    return counter.work
