"""What `kitsune_mlir.compile` may be given as a model and as example arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from kitsune_mlir.dialects import new_context
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.frontend.exported_file import read_exported
from kitsune_mlir.frontend.imported import ImportedModel
from kitsune_mlir.frontend.onnx_file import import_onnx
from kitsune_mlir.frontend.stablehlo import import_stablehlo

__all__ = ["FILES", "opened"]

FILES = {".pt2": "a program that torch.export.save wrote", ".onnx": "an ONNX model", ".mlir": "a module of StableHLO"}
"""Files that hold a model, by the ends of their names."""


def opened(
    model: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Model, arguments and keyword arguments; a path is opened: what is in the file is a model as well.

    Raises:
        ArgumentError: the model is none, there is no reader for such a file, or the arguments are no tuple and no dictionary.
        FrontendError: the file holds no model, or is damaged.
        OSError: it cannot be opened.
    """
    if not isinstance(args, tuple | list):
        one = type(args).__name__
        raise ArgumentError(f"example arguments are a tuple of what the model takes, not a {one}; one alone is written (x,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ArgumentError(f"example keyword arguments are a mapping from names to values, not a {type(kwargs).__name__}")
    if isinstance(model, str | os.PathLike):
        return _read(Path(model), args, kwargs), tuple(args), dict(kwargs or {})
    if not isinstance(model, torch.nn.Module | ExportedProgram | ImportedModel) and not callable(model):
        known = "a torch.nn.Module, a function, an ExportedProgram, or the path of a file"
        raise ArgumentError(f"a model is {known}, not a {type(model).__name__}")
    return model, tuple(args), dict(kwargs or {})


def _read(path: Path, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> ExportedProgram | ImportedModel:
    if path.suffix == ".pt2":
        return read_exported(path)
    if path.suffix == ".mlir":
        return import_stablehlo(path, context=new_context())
    if path.suffix == ".onnx":
        return import_onnx(path, args, kwargs, context=new_context())
    known = ", ".join(f"{end} ({what})" for end, what in FILES.items())
    raise ArgumentError(f"{path}: a file with a model ends in {known}; kitsune_mlir.load reads .kit files")
