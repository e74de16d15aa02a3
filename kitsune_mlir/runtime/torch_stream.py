"""Streams as torch has them, by their handles."""

from __future__ import annotations

from typing import Any

__all__ = ["torch_stream"]


def torch_stream(stream: int, ordinal: int) -> Any:
    """torch's object for a stream of a device.

    Handle 0 is the default stream. `torch.cuda.ExternalStream(0)` is not: torch takes 0 for no handle, and gives another stream
    of its own, on which work is in no order with that of the default one.
    """
    import torch

    return torch.cuda.ExternalStream(stream, device=ordinal) if stream else torch.cuda.default_stream(ordinal)
