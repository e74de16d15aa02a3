"""Reading a `.kit` file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kitsune_mlir.errors import ArgumentError, CompileError, PackageError
from kitsune_mlir.runtime.archive import Archive, checked_path
from kitsune_mlir.runtime.package import read_package
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.runners import make_runner
from kitsune_mlir.runtime.signature import Signature

__all__ = ["load"]


def load(path: str | os.PathLike[str], weights: Mapping[str, Any] | None = None) -> Any:
    """Read a `Program`, a `SizedProgram` or a `GradientProgram` from a `.kit` file.

    Args:
        weights: tensors by name, used instead of stored ones (such as `dict(model.state_dict())`); needed for a package that
            was saved without weights.

    Raises:
        ArgumentError: a weight is missing or is no tensor of its shape and dtype.
        OSError: the file cannot be opened or its disk fails (FileNotFoundError where there is none).
        PackageError: it is no package, is cut short, was altered, is of another format, or its parts do not fit each other;
            the message says which.
    """
    if _has_programs(checked_path(path)):
        from kitsune_mlir.sized.read import read_sized

        return read_sized(path, _tensors(weights))
    held = read_package(checked_path(path))
    try:
        runner, problem = make_runner(held.target, held.artifacts)
    except CompileError as error:
        raise PackageError(f"{path}: its code cannot be compiled for this machine: {error}") from error
    tensors = {**held.weights, **_given(weights, held.signature)}
    return Program(*(held.target, held.signature, tensors, runner, held.ir, held.summary, held.artifacts), runner_error=problem)


def _given(weights: Mapping[str, Any] | None, signature: Signature) -> dict[str, Any]:
    """Of the caller's weights those that the program has; ArgumentError for what is no tensor."""
    import torch

    given = _tensors(weights)
    found = {w.name: given[w.name] for w in signature.supplied if w.name in given}
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"weight '{name}' is a {type(tensor).__name__}, a tensor was expected")
    return found


def _tensors(weights: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if weights is not None and not isinstance(weights, Mapping):
        raise ArgumentError(f"weights are a mapping from names to tensors, not a {type(weights).__name__}")
    return weights or {}


def _has_programs(path: os.PathLike[str]) -> bool:
    """Whether a package holds others."""
    with Archive(path) as archive:
        return any(name.startswith("programs/") for name in archive.sizes)
