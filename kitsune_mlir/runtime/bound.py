"""A call of a program before it is made: what it runs on, and how its output is made afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Bound", "stream_of"]


@dataclasses.dataclass
class Bound:
    """A call whose arguments were checked and whose results have their memory.

    Attributes:
        pointers: of weights, inputs and results, in the program's order.
        device: where they are.
        own: the weights and the caller's inputs, in the program's order.
        output: makes the output, when the program has run.
        names: the arguments in words, as `own` has them.
        written: numbers of those that the call changes.
        kept: what else has to stay alive until then.
    """

    pointers: Sequence[int]
    device: Any
    own: Sequence[Any]
    output: Callable[[], Any]
    names: Sequence[str]
    written: Sequence[int]
    kept: Sequence[Any] = ()


def stream_of(device: Any) -> int:
    """The caller's stream on a device: the current one's handle, 0 on the host."""
    if device.type != "cuda":
        return 0
    import torch

    # Without torch's object of a stream, which takes 5 us to make.
    return torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if device.index is None else device.index)
