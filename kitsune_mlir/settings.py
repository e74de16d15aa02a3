"""What users leave open, and PyTorch says: precisions, whether sums have a fixed order, on which device tensors are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kitsune_mlir.errors import TargetError
from kitsune_mlir.options import Options

__all__ = ["choose_target", "is_deterministic", "precisions"]


def precisions(options: Options) -> dict[str, Any]:
    """How f32 products and convolutions are done: what the options say, else the framework's settings."""
    import torch

    convolutions = "high" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "highest"
    return {
        "matmul_precision": options.matmul_precision or torch.get_float32_matmul_precision(),
        "convolution_precision": options.convolution_precision or convolutions,
    }


def is_deterministic(options: Options) -> bool:
    """Whether results must be the same bits on every run: the option, else the framework's setting."""
    import torch

    return torch.are_deterministic_algorithms_enabled() if options.deterministic is None else options.deterministic


def choose_target(model: Any, args: Sequence[Any]) -> str:
    """ "sm_90a" where the model's or the arguments' tensors are on a Hopper GPU, else "host".

    Args:
        model: has `parameters()`, or, where it is from a file, `supplied` by name; else its arguments say it.

    Raises:
        TargetError: they are on a GPU that is no Hopper.
    """
    import torch

    supplied = getattr(model, "supplied", None)
    weights = supplied.values() if isinstance(supplied, dict) else getattr(model, "parameters", list)()
    tensors = [*weights, *(a for a in args if isinstance(a, torch.Tensor))]
    on_gpu = next((t.device for t in tensors if t.device.type == "cuda"), None)
    if on_gpu is None:
        return "host"
    capability = torch.cuda.get_device_capability(on_gpu)
    if capability != (9, 0):
        raise TargetError(f"{on_gpu} has compute capability {capability[0]}.{capability[1]}; GPU code needs 9.0 (Hopper)")
    return "sm_90a"
