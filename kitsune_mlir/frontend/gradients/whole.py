"""Operators that torch takes apart above autograd, kept whole: their gradients are operators of their own then.

Else resizing is a sum of moves by index, whose gradients put each element where it came from, one move after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import DispatchKey

from kitsune_mlir.frontend.gradients.resizing import RESIZED
from kitsune_mlir.frontend.python_kernels import kernels_restored

__all__ = ["kept_whole"]

_ABOVE = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


@contextmanager
def kept_whole() -> Iterator[None]:
    """Traced within, operators whose gradients are in `GRADIENTS` are not taken apart above autograd.

    For AOTAutograd's tracing, which makes the graph of a function and its gradient; with our table it is taken apart below.
    """
    packets = [getattr(torch.ops.aten, name) for name in RESIZED]
    ops = [getattr(packet, name) for packet in packets for name in packet.overloads() if name in ("default", "vec")]
    with kernels_restored(ops):
        for op in ops:
            for key in _ABOVE:
                op.py_kernels.pop(key, None)
        yield
