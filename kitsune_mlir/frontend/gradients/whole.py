"""Operators that torch takes apart above autograd, kept whole: their gradients are operators of their own then.

Else resizing is a sum of moves by index, whose gradients put each element where it came from, one move after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey

from kitsune_mlir.frontend.gradients.resizing import RESIZED

__all__ = ["kept_whole"]

_ABOVE = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextmanager
def kept_whole() -> Iterator[None]:
    """Traced within, operators whose gradients are in `GRADIENTS` are not taken apart above autograd.

    For AOTAutograd's tracing, which makes the graph of a function and its gradient; with our table it is taken apart below.
    """
    before: dict[Any, dict[Any, Any]] = {}
    for name in RESIZED:
        packet = getattr(torch.ops.aten, name)
        for op in (getattr(packet, overload) for overload in packet.overloads() if overload in ("default", "vec")):
            before[op] = dict(op.py_kernels)
            for key in _ABOVE:
                op.py_kernels.pop(key, None)
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in before.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
