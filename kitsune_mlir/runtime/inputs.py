"""An argument of a call, as the program takes it."""

from __future__ import annotations

from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.arguments import address_of, dense_tensor
from kitsune_mlir.runtime.results import ALIGNMENT, in_order
from kitsune_mlir.runtime.signature import Input

__all__ = ["input_tensor", "pointer_of"]


def input_tensor(want: Input, dtype: Any, tensor: Any, device: str, reach: int = 0) -> Any:
    """The caller's tensor, or a copy where it does not lie as the program wants it.

    Args:
        want: what the program takes, and `dtype`: its torch dtype.
        tensor: a tensor or a DLPack object.
        device: where the program runs.
        reach: of an input that is not contiguous, bytes of the dense tensor that it lies in, up to the last one that is read.

    Raises:
        ArgumentError: it is of another shape, dtype, layout or device.
    """
    import torch

    tensor = dense_tensor(tensor, want.name)
    if tuple(tensor.shape) != want.shape:
        raise ArgumentError(f"input '{want.name}' has shape {list(tensor.shape)}, compiled for {list(want.shape)}")
    if tensor.dtype != dtype:
        raise ArgumentError(f"input '{want.name}' is {tensor.dtype}, compiled for {dtype}")
    place = torch.device(device)
    if tensor.device.type != place.type or place.index not in (None, tensor.device.index):
        raise ArgumentError(f"input '{want.name}' is on {tensor.device}, the program runs on {device}")
    tensor = tensor.detach()
    if want.lies is not None:
        tensor = tensor.resolve_conj().resolve_neg()
        address_of(tensor, f"input '{want.name}'")
        fits = want.lies.fits(tensor) and want.lies.is_there(tensor, reach) and want.lies.address(tensor) % ALIGNMENT == 0
        return tensor if fits else want.lies.copied(tensor)
    if want.order:
        tensor = in_order(tensor, want.order)
    elif not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
    if address_of(tensor, f"input '{want.name}'") % ALIGNMENT:
        tensor = tensor.clone()  # vector loads and bulk copies want 16 bytes; torch allocates 64 or 256
    return tensor


def pointer_of(want: Input, tensor: Any) -> int:
    """Where the program's argument begins, of an input that lies as `input_tensor` gives it."""
    return tensor.data_ptr() if want.lies is None else want.lies.address(tensor)
