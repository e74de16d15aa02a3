"""Comparison of a compiled program with PyTorch in higher precision, the same everywhere in the tests."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils import _pytree as pytree

LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def widened(value: Any) -> Any:
    """Float tensors as float64 (complex as complex128); anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value


def exact(model: torch.nn.Module, args: Any) -> Any:
    """The model's output in float64 on copies of the arguments."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad():
        return wide(*pytree.tree_map(lambda a: widened(a.clone() if isinstance(a, torch.Tensor) else a), args))


def problem(
    got: torch.Tensor, wanted: torch.Tensor, plain: torch.Tensor | None = None, limit: float | None = None
) -> str | None:
    """What is wrong with `got`, or None. Norm-wise relative error for floats, equality for the rest; nan and inf must match.

    `plain` is PyTorch's own result in the narrow type: where it is off by more than the limit itself (cancellation), twice
    its error is allowed. `limit` stands for the type's own (`LIMITS`).
    """
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)} instead of {list(wanted.shape)}"
    if not (got.is_floating_point() or got.is_complex()):
        return None if torch.equal(got, wanted.to(got.dtype)) else f"{int((got != wanted).sum())} elements differ"
    wide, narrow = widened(got), wanted.to(got.dtype)
    finite = torch.isfinite(narrow)
    if plain is not None:
        finite &= torch.isfinite(plain)
    reference = narrow if plain is None else plain
    special = ~torch.isfinite(reference)
    if not torch.equal(torch.isnan(got)[special], torch.isnan(reference)[special]):
        return "nan in other places"
    keep = finite & torch.isfinite(got)
    if int(finite.sum()) != int(keep.sum()):
        return f"{int(finite.sum()) - int(keep.sum())} elements are not finite and should be"
    scale = widened(wanted)[keep].abs().pow(2).sum().sqrt().clamp_min(1e-30)
    limit = limit or LIMITS.get(got.dtype, 1e-5)
    error = ((wide - widened(wanted))[keep].abs().pow(2).sum().sqrt() / scale).item()
    if plain is not None:
        limit = max(limit, 2 * ((widened(plain) - widened(wanted))[keep].abs().pow(2).sum().sqrt() / scale).item())
    return None if error <= limit else f"relative error {error:.2e}, limit {limit:.0e}"


def problems(got: Any, wanted: Any, plain: Any = None, limit: float | None = None) -> list[str]:
    """`problem` over the tensors of two outputs of the same structure."""
    left, right = pytree.tree_leaves(got), pytree.tree_leaves(wanted)
    narrow = pytree.tree_leaves(plain) if plain is not None else [None] * len(left)
    if len(left) != len(right):
        return [f"{len(left)} outputs instead of {len(right)}"]
    found = []
    for g, w, p in zip(left, right, narrow, strict=True):
        if isinstance(g, torch.Tensor) and isinstance(w, torch.Tensor):
            text = problem(g, w, p, limit)
        else:
            text = None if g == w else f"{g!r} instead of {w!r}"
        if text:
            found.append(text)
    return found
