"""The kernel that copies several inputs into larger ones (`kitsune_mlir.runtime.copy_kernel`) on a device, beside PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from kitsune_mlir.runtime.copy_kernel import Copies, Copy

__all__ = ["small"]

CASES = (
    ((7, 129), (9, 160), torch.bfloat16),
    ((1, 1), (1, 2), torch.int8),
    ((3, 1000), (8, 1000), torch.float32),
    ((65, 12), (65, 20), torch.float64),
    ((5, 33), (6, 47), torch.uint8),
)
"""Rows and columns of what is copied, and of where to: pieces of 16 bytes, of 4 and of 1, and tensors of one piece."""


def small() -> str:
    """What is wrong after two launches, of the same and of other sources; "" where nothing is."""
    torch.manual_seed(0)
    sources = [[_drawn(shape, kind) for shape, _, kind in CASES] for _ in range(2)]
    targets = [torch.full(large, 3, dtype=kind, device="cuda") for _, large, kind in CASES]
    copies = Copies([_copy(a, b) for a, b in zip(sources[0], targets, strict=True)], 0, torch.cuda.current_stream().cuda_stream)
    wrong = []
    for each in sources:
        copies([source.data_ptr() for source in each])
        torch.cuda.synchronize()
        for source, target in zip(each, targets, strict=True):
            rows, columns = source.shape
            rest = [target[rows:], target[:, columns:]]
            if not torch.equal(target[:rows, :columns], source) or any((part != 3).any() for part in rest):
                wrong.append(f"{tuple(source.shape)} of {source.dtype} into {tuple(target.shape)}")
    return "; ".join(wrong)


def _drawn(shape: tuple[int, int], kind: torch.dtype) -> Tensor:
    return torch.randint(-100 if kind.is_signed else 0, 100, shape, device="cuda").to(kind)


def _copy(source: Tensor, target: Tensor) -> Copy:
    size = source.element_size()
    rows, columns = source.shape
    return source.data_ptr(), target.data_ptr(), columns * size, rows, target.stride(0) * size
