"""Random models of sizes that fill the machine, as many of each family of `test/numerics/random_families.py`."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from bench.case import DTYPES, BenchCase, Inputs

__all__ = ["SEEDS", "random_models"]

SEEDS = range(33 * 10)


def _placed(tensor: Tensor, device: str) -> Tensor:
    """On a device, as the same part of as much memory."""
    whole = torch.empty(tensor.untyped_storage().nbytes() // tensor.element_size(), dtype=tensor.dtype, device=device)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(tensor)


def _make(seed: int, device: str, values: bool) -> Inputs:
    """Values are drawn on the processor, so that they are the same wherever a case is built and run."""
    from test.numerics.random_families import drawn

    model = drawn(seed, large=True)
    return model.to(device).eval(), tuple(_placed(argument, device) for argument in model.arguments)


def random_models() -> list[BenchCase]:
    """All of them."""
    from test.numerics.random_families import FAMILIES, dtype_of

    types = {dtype: name for name, dtype in DTYPES.items()}
    return [
        BenchCase(
            f"random_{FAMILIES[seed % len(FAMILIES)].__name__}_{seed}",
            "random",
            functools.partial(_make, seed),
            types[dtype_of(seed)],
            goal=1.0,
            by_eager=True,
        )
        for seed in SEEDS
    ]
