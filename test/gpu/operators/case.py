"""What a case of an operator is: a model, its inputs, and whether it compiles or is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["BF16", "F16", "F32", "F64", "I32", "I64", "TF32", "Case", "Input", "floats", "flags", "numbers"]

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
I32, I64 = torch.int32, torch.int64
TF32 = "tf32"
"""Instead of a dtype: f32 tensors, products and convolutions of which may be rounded to TF32."""

Input = Callable[[str], Tensor]
"""Makes a fresh input on a device."""


def floats(*shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> Input:
    """Normal random numbers."""
    return lambda device: (scale * torch.randn(*shape, device=device, dtype=F64 if dtype is F64 else F32)).to(dtype)


def numbers(bound: int, *shape: int, dtype: torch.dtype = I64, low: int = 0) -> Input:
    """Integers in [low, bound)."""
    return lambda device: torch.randint(low, bound, shape, device=device).to(dtype)


def flags(*shape: int) -> Input:
    """Booleans."""
    return lambda device: torch.rand(*shape, device=device) < 0.5


class _Function(nn.Module):
    """A function as a model; its layers, if any, come first among its arguments."""

    def __init__(self, function: Callable[..., Any], layers: Sequence[nn.Module]):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *args: Tensor) -> Any:
        return self.function(*self.layers, *args)


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and what is expected of it.

    Attributes:
        function: of the layers, then of the inputs.
        inputs: make them.
        layers: make the layers the function uses; in f32, they are converted to `dtype`.
        dtype: of layers' parameters; `TF32` is f32 with the options that allow TF32.
        options: of the compiler.
        refused: None, or what the error must name (a regular expression) that compiling ends with.
        plain: compared with PyTorch's own result in the same types, because float64 would compute something else.
    """

    function: Callable[..., Any]
    inputs: Sequence[Input]
    layers: Callable[[], Sequence[nn.Module]] | None = None
    dtype: Any = BF16
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    refused: str | None = None
    plain: bool = False

    @property
    def limit(self) -> float | None:
        """Of ‖out - ref‖ / ‖ref‖ where the results' type does not say it."""
        return 1e-3 if self.dtype == TF32 else None

    def model(self) -> nn.Module:
        """The model, its weights from a fixed seed."""
        torch.manual_seed(0)
        made = _Function(self.function, self.layers() if self.layers else []).eval()
        return made.to(F32 if self.dtype == TF32 else self.dtype)

    def args(self, device: str = "cpu") -> tuple[Tensor, ...]:
        """Random inputs."""
        return tuple(make(device) for make in self.inputs)

    def compiled_with(self) -> dict[str, Any]:
        """Options of the compiler."""
        precision = "high" if self.dtype == TF32 else "highest"
        return {"matmul_precision": precision, "convolution_precision": precision, **self.options}
