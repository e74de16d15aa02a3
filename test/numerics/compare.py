"""Comparison of a compiled program with PyTorch in higher precision, the same everywhere in the tests."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

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


FLOORS = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float64: 1e-14}
"""Errors that are never too large: of a result that is rounded once, in f32 of a sum in another order."""
NOTHING = 0.05
"""Of these, an absolute error of an element that is never too large: what numbers of about one leave where zero should be."""
PERTURBATIONS = 4
"""Runs of PyTorch on inputs that are off by what rounding them may change, where its own error may be small by chance."""


def beside_eager(model: torch.nn.Module, args: Sequence[Any], got: Any, by_atomics: bool = False) -> list[str]:
    """What is wrong with a model's outputs `got`: their errors may be twice those of PyTorch's own, in the same type.

    Errors are against float64: the norm over a tensor, and its largest element, which may be four times PyTorch's. Where they
    are larger, PyTorch runs again on weights and inputs changed by a rounding: if its results then are off as far, the
    model amplifies roundings.

    Args:
        by_atomics: PyTorch's error may be that of its GPU code, which rounds after each number that it adds at an index.
    """
    wanted = exact(model, args)
    with torch.no_grad():
        own = [model(*(a.clone() for a in args))]
        found = _beside(got, wanted, own, [])
        if found and by_atomics:
            with OneByOne():
                own.append(model(*args))
        if found:
            changed = [perturbed(model, args, number) for number in range(PERTURBATIONS)]
            found = _beside(got, wanted, own, [other(*inputs) for other, *inputs in changed])
    return found


class OneByOne(TorchDispatchMode):
    """Numbers of 16 bits are added at indices one after the other, as atomics do; on the processor PyTorch sums in f32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """The operator, or one for each number along its dimension."""
        kwargs, kind = kwargs or {}, func.name().split("::")[-1].split(".")[0]
        if kind not in ("index_add", "scatter_add", "scatter_reduce", "index_put") or args[0].dtype not in (
            torch.bfloat16,
            torch.float16,
        ):
            return func(*args, **kwargs)
        into, dim, index, source, *rest = args if kind != "index_put" else (args[0], 0, *args[1:])
        alone = kind == "scatter_reduce" and (rest[0] not in ("sum", "prod") or not kwargs.get("include_self", True))
        if alone or (kind == "index_put" and not (len(index) == 1 and rest and rest[0])):
            return func(*args, **kwargs)
        for number in range(source.shape[dim]):
            at, one = slice(number, number + 1), source.narrow(dim, number, 1)
            if kind == "index_put":
                into = func(into, [index[0][at]], one, True)
            else:
                into = func(into, dim, index[at] if index.ndim < 2 else index.narrow(dim, number, 1), one, *rest, **kwargs)
        return into


def perturbed(model: torch.nn.Module, args: Sequence[torch.Tensor], seed: int) -> tuple[Any, ...]:
    """Copies of the model and of its inputs, each number changed by up to a rounding."""
    draw = torch.Generator().manual_seed(seed)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor.clone()
        step = torch.finfo(tensor.dtype).eps / 2
        change = 2 * torch.rand(tensor.shape, generator=draw).to(tensor.device) - 1
        return (tensor.double() * (1 + step * change)).to(tensor.dtype)

    changed = copy.deepcopy(model)
    for weight in changed.parameters():
        weight.data = moved(weight.data)
    return changed, *(moved(a) for a in args)


def _beside(got: Any, wanted: Any, own: Sequence[Any], changed: Sequence[Any]) -> list[str]:
    left, right = pytree.tree_leaves(got), pytree.tree_leaves(wanted)
    eager, moved = ([pytree.tree_leaves(run) for run in runs] for runs in (own, changed))
    if len(left) != len(right):
        return [f"{len(left)} outputs instead of {len(right)}"]
    pairs = enumerate(zip(left, right, strict=True))
    found = [(n, _beside_one(g, w, [run[n] for run in eager], [run[n] for run in moved])) for n, (g, w) in pairs]
    return [f"output {n}: {text}" for n, text in found if text]


def _beside_one(
    got: torch.Tensor, wanted: torch.Tensor, own: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]
) -> str | None:
    runs = [*own, *changed]
    if got.shape != wanted.shape or got.dtype != runs[0].dtype:
        return f"{got.dtype} {list(got.shape)} instead of {runs[0].dtype} {list(wanted.shape)}"
    if got.numel() == 0:
        return None
    if not got.is_floating_point():
        if torch.equal(got, wanted.to(got.dtype)) or any(torch.equal(got, run) for run in runs):
            return None
        return f"{int((got != wanted).sum())} of {got.numel()} elements differ"
    narrow, plain = wanted.to(got.dtype), runs[0]
    finite = torch.isfinite(narrow)
    for run in runs:
        finite &= torch.isfinite(run)
    special = ~(torch.isfinite(narrow) | torch.isfinite(plain))  # in both: any other way to reach infinity may be finite
    if not torch.equal(torch.isnan(got)[special], torch.isnan(plain)[special]):
        return "nan in other places"
    if not torch.isfinite(got[finite]).all():
        return f"{int((~torch.isfinite(got[finite])).sum())} elements are not finite and should be"
    right = widened(wanted)[finite]
    if not right.numel():
        return None
    error = (widened(got)[finite] - right).abs()
    others = [(widened(run)[finite] - right).abs() for run in runs]
    floor = FLOORS[got.dtype]
    whole, most = error.norm().item(), error.max().item()
    factors = [2] * len(own) + [1] * len(changed)
    limit = max(floor * right.norm().item(), *(f * other.norm().item() for f, other in zip(factors, others, strict=True)))
    each = 4 * floor * right.abs().max().item()
    each = max(each, *(f * f * other.max().item() for f, other in zip(factors, others, strict=True)))
    if whole > limit and whole > NOTHING * floor * len(right) ** 0.5:
        return f"error {whole / max(right.norm().item(), 1e-300):.2e}, limit {limit / max(right.norm().item(), 1e-300):.0e}"
    if most > each and most > NOTHING * floor:
        return f"an element is off by {most:.2e}, limit {each:.0e}"
    return None
