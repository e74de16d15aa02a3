"""Programs that `torch.export.save` wrote."""

from __future__ import annotations

import os

import torch
from torch.export import ExportedProgram

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.export import quiet

__all__ = ["read_exported"]


def read_exported(path: str | os.PathLike[str]) -> ExportedProgram:
    """The program in a `.pt2` file. PyTorch reads parts of such files with pickle: read only those whose origin you trust.

    Raises:
        FrontendError: the file is none that `torch.export.save` wrote, is damaged, or of another version.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as stream:
        try:
            with quiet():
                return torch.export.load(stream)  # pyright: ignore[reportArgumentType]
        except Exception as error:  # zipfile, JSON, pickle and PyTorch's reader have errors of their own
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            raise FrontendError(f"{path}: not a program that torch.export.save wrote, or damaged ({reason[:200]})") from None
