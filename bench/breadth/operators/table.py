"""Rows of the operators' tables: a function, its inputs when large and when small, and what of its inputs it reads."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bench.case import DTYPES, BenchCase, Inputs
from bench.models import Maker, default_dtype
from bench.sweeps import Function

__all__ = ["FLOATS", "GROUPS", "Draw", "beyond", "flags", "layers", "numbers", "positive", "table"]

GROUPS = ("operators", "operators_more")
"""Half of the cases each: of an operator the large one in one type and the small one in the other are in the first group."""
FLOATS = ("bf16", "f32")
SECTOR = 32
"""Bytes that memory gives at least, wherever one of them is asked for."""
Shape = tuple[int, ...]
Draw = Callable[[Maker], Tensor]
Sizes = Shape | Sequence[Shape | Draw]
"""One shape, or an input each: a shape (normal random numbers) or what draws it."""
Unread = Callable[[nn.Module, tuple[Tensor, ...]], int]


def numbers(bound: int, *shape: int, dtype: torch.dtype = torch.int64) -> Draw:
    """Integers in [0, bound)."""
    return lambda m: m.below(bound, *shape).to(dtype)


def flags(*shape: int) -> Draw:
    """Booleans, half of them set."""
    return lambda m: m.below(2, *shape).bool()


def positive(*shape: int) -> Draw:
    """Numbers in (0.1, 1.1)."""
    return lambda m: (torch.rand(shape, device=m.device) + 0.1).to(m.dtype) if m.values else m.normal(*shape)


def beyond(scattered: bool = False) -> Unread:
    """`BenchCase.unread` of what moves a part of its first input: that is as large as the results.

    Args:
        scattered: the part's elements do not lie side by side, each costs a sector of memory.
    """

    def unread(model: nn.Module, args: tuple[Tensor, ...]) -> int:
        with torch.no_grad():
            results = [t for t in pytree.tree_leaves(model(*args)) if isinstance(t, Tensor)]
        item = max(args[0].element_size(), SECTOR) if scattered else args[0].element_size()
        return max(0, args[0].nbytes - item * sum(t.numel() for t in results))

    return unread


def _made(
    build: Callable[[], nn.Module], draws: Sequence[Shape | Draw], dtype: str, last: bool, device: str, values: bool
) -> Inputs:
    torch.manual_seed(0)
    with default_dtype(DTYPES[dtype]), torch.device(device):
        model: Any = build()
    model.eval().requires_grad_(False)
    maker = Maker(DTYPES[dtype], device, values)
    args = tuple(draw(maker) if callable(draw) else maker.normal(*draw) for draw in draws)
    if last:
        order: Any = torch.channels_last if args[0].dim() == 4 else torch.channels_last_3d
        return model.to(memory_format=order), tuple(a.contiguous(memory_format=order) for a in args)
    return model, args


def _inputs(sizes: Sizes) -> Sequence[Shape | Draw]:
    return [sizes] if isinstance(sizes[0], int) else sizes  # type: ignore[list-item, return-value]


def layers(
    family: str,
    builders: Mapping[str, Callable[[], nn.Module]],
    large: Sizes,
    small: Sizes,
    dtypes: Sequence[str] = FLOATS,
    unread: Unread | None = None,
    last: bool = False,
) -> list[BenchCase]:
    """A case of each module, size and type: `op_FAMILY_NAME_large_bf16`. Types take turns in the first of `GROUPS`.

    Args:
        builders: make the modules, by name; their weights are PyTorch's own, from a seed.
        large: of 10⁶ to 10⁸ elements. small: odd, and what one multiprocessor has done soon.
        dtypes: keys of `DTYPES`; one alone is not in the name (operators of integers).
        unread: see `BenchCase`.
        last: weights and inputs are in channels-last memory.
    """
    found = []
    for name, build in builders.items():
        turn = zlib.crc32(f"{family}_{name}".encode()) % 2
        for at, (size, sizes) in enumerate((("large", large), ("small", small))):
            for number, dtype in enumerate(dtypes):
                make = functools.partial(_made, build, _inputs(sizes), dtype, last)
                full = "_".join(["op", family, name, size, *([dtype] if len(dtypes) > 1 else [])])
                group = GROUPS[(turn + at + number) % 2 if len(dtypes) > 1 else 0]
                found.append(BenchCase(full, group, make, dtype, by_eager=True, unread=unread, goal=0.9))
    return found


def table(
    family: str,
    functions: Mapping[str, Callable[..., Any]],
    large: Sizes,
    small: Sizes,
    dtypes: Sequence[str] = FLOATS,
    unread: Unread | None = None,
) -> list[BenchCase]:
    """A case of each function of tensors, size and type, as `layers`."""
    made = {name: functools.partial(Function, run) for name, run in functions.items()}
    return layers(family, made, large, small, dtypes, unread)
