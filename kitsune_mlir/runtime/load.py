"""Reading a `.kit` file, and the runner of what it holds."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError, CompileError, KitsuneError, PackageError, TargetError
from kitsune_mlir.runtime.archive import checked_path
from kitsune_mlir.runtime.package import read_package
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.signature import Signature

__all__ = ["NothingToRun", "load", "make_runner"]


def load(path: str | os.PathLike[str], weights: Mapping[str, Any] | None = None) -> Program:
    """Read a program from a `.kit` file.

    Args:
        weights: tensors by name, used instead of stored ones (such as `dict(model.state_dict())`); needed for a package that
            was saved without weights.

    Raises:
        ArgumentError: a weight is missing or is no tensor of its shape and dtype.
        OSError: the file cannot be opened or its disk fails (FileNotFoundError where there is none).
        PackageError: it is no package, is cut short, was altered, is of another format, or its parts do not fit each other;
            the message says which.
    """
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

    if weights is not None and not isinstance(weights, Mapping):
        raise ArgumentError(f"weights are a mapping from names to tensors, not a {type(weights).__name__}")
    found = {w.name: weights[w.name] for w in signature.supplied if weights and w.name in weights}
    for name, tensor in found.items():
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"weight '{name}' is a {type(tensor).__name__}, a tensor was expected")
    return found


class NothingToRun:
    """The runner of a model that computes nothing, on the current device of a kind."""

    def __init__(self, device: str):
        if device == "cuda":
            from kitsune_mlir.runtime.cuda_runner import require_hopper

            require_hopper()
        self.device = device

    def run(self, pointers: Sequence[int], stream: int) -> None:
        """Nothing to do."""

    def run_requests(self, rows: Sequence[Sequence[int]], stream: int) -> list[KitsuneError | None]:
        """Nothing to do."""
        return [None] * len(rows)

    most_requests = sys.maxsize


def make_runner(target: str, artifacts: Mapping[str, bytes], threads: int | None = None) -> tuple[Any, str]:
    """The runner for stored code, or None and why this machine cannot run it. A program without code computes nothing.

    Args:
        threads: of the host's, workers of one call.
    """
    try:
        if not artifacts:
            return NothingToRun("cpu" if target == "host" else "cuda"), ""
        if target == "host":
            from kitsune_mlir.runtime.host_runner import HostRunner

            return HostRunner.from_artifacts(artifacts, threads), ""
        from kitsune_mlir.runtime.cuda_runner import CudaRunner

        return CudaRunner.from_artifacts(artifacts), ""
    except TargetError as error:
        return None, str(error)
