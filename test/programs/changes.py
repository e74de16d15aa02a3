"""Models that change their arguments and buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import kitsune_mlir
from bench.sweeps import Function as Of
from kitsune_mlir.runtime.program import Program
from test.programs.compiled import planned_for_gpu

__all__ = ["AT", "B", "Cache", "D", "H", "Of", "S", "compiled", "in_place", "step"]

B, H, S, D = 2, 3, 16, 8
AT = 5


class Cache(nn.Module):
    """A step of attention with a cache, written in one of the ways in which models write theirs."""

    k: Tensor
    v: Tensor

    def __init__(self, write: str, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.write = write
        self.register_buffer("k", torch.randn(B, H, S, D, dtype=dtype))
        self.register_buffer("v", torch.randn(B, H, S, D, dtype=dtype))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, pos: Tensor) -> Tensor:
        for cache, new in ((self.k, k), (self.v, v)):
            if self.write == "index_copy":
                cache.index_copy_(2, pos, new)
            elif self.write == "index_put":
                cache[:, :, pos] = new
            else:
                cache[:, :, AT : AT + 1] = new
        return nn.functional.scaled_dot_product_attention(q, self.k, self.v)


def step(dtype: torch.dtype = torch.float32, pos: int = AT) -> tuple[Tensor, ...]:
    return (*(torch.randn(B, H, 1, D, dtype=dtype) for _ in range(3)), torch.tensor([pos]))


def compiled(model: nn.Module, args: Any, gpu: bool) -> Program:
    """For the host, or planned as for a GPU and run on the host."""
    return planned_for_gpu(model, *args) if gpu else kitsune_mlir.compile(model, tuple(args), target="host")


def in_place(program: Program) -> list[str]:
    return [output.mutates or "" for output in program.signature.outputs if output.in_place]
