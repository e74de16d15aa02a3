"""Calls above operators by which Python looks at a tensor's memory, or gives it to others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["LENDERS", "LOOKERS", "Reads"]

LENDERS = {"numpy", "__array__", "data_ptr", "untyped_storage", "storage", "_typed_storage", "__dlpack__", "share_memory_"}
"""What of a tensor gives its memory to others."""
LOOKERS = {"tolist", "__repr__", "__str__", "__format__", "__deepcopy__", "__reduce_ex__", "__bool__"}
"""What of a tensor looks at its values without an operator that a dispatch mode sees before."""


class Reads(TorchFunctionMode):
    """Tells of such calls before PyTorch makes them.

    Args:
        seen: is given the call's name and positional arguments.
        value: gives the result of a call in `readers` on a plain tensor or parameter, in PyTorch's place.

    Attributes:
        off: calls are PyTorch's, and nobody is told.
    """

    def __init__(
        self,
        seen: Callable[[str, Sequence[Any]], None],
        readers: Collection[str] = (),
        value: Callable[[str, torch.Tensor], Any] | None = None,
    ):
        super().__init__()
        self._seen = seen
        self._readers = readers
        self._value = value
        self.off = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.off:
            name = getattr(func, "__name__", "")
            if self._value and name in self._readers and args and type(args[0]) in (torch.Tensor, torch.nn.Parameter):
                return self._value(name, args[0])
            if name in LENDERS or name in LOOKERS:
                self._seen(name, args)
        return func(*args, **(kwargs or {}))
