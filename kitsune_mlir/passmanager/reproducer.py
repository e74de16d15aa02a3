"""Reproducers: the input of a failing pass, and the command that replays it, in one `.mlir` file."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from torch_mlir import ir

from kitsune_mlir.codegen.failures import named
from kitsune_mlir.errors import CompileError, KitsuneError
from kitsune_mlir.passes.base import Pass
from kitsune_mlir.passmanager.options import pass_text

VARIABLE = "KITSUNE_REPRODUCER_DIR"
_COMMAND = "// configuration: "


def write_reproducer(
    root: ir.Operation,
    pipeline: str,
    target: str | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    name: str = "pipeline",
    path: str | Path | None = None,
) -> Path | None:
    """Write `root` and the command that runs `pipeline` on it; the path, or None where the place is not writable.

    `path` names the file; without it the file lies in `folder` (default: $KITSUNE_REPRODUCER_DIR, or the system's temporary
    folder), named after the pass and the contents, so that the same failure twice is one file.
    """
    text = root.get_asm(assume_verified=False)
    if path is None:
        place = Path(folder or os.environ.get(VARIABLE) or tempfile.gettempdir())
        digest = hashlib.sha256(f"{pipeline}\n{text}".encode()).hexdigest()[:12]
        path = place / f"{re.sub(r'[^A-Za-z0-9-]', '-', name)}-{digest}.mlir"
    path = Path(path)
    words = ["kitsune-opt", str(path), f"--pass-pipeline={pipeline}"] + ([f"--target={target}"] if target else [])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # surrogateescape: names in the IR may hold any bytes
        path.write_text(f"{_COMMAND}{shlex.join(words)}\n{text}\n", encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None  # the failure itself is what the user must see
    return path


def read_reproducer(text: str) -> list[str]:
    """The arguments that replay a reproducer, without the program and the file. KitsuneError where there is no command."""
    first = text.split("\n", 1)[0]
    if not first.startswith(_COMMAND):
        raise KitsuneError("not a reproducer: the first line holds no '// configuration:'")
    return [w for w in shlex.split(first[len(_COMMAND) :])[2:] if w.startswith("--")]


@contextmanager
def reproduced(
    module: ir.Module | ir.OpView, passes: Sequence[Pass], target: str, folder: str | os.PathLike[str] | Literal[False] | None
) -> Iterator[None]:
    """Inside, code is generated from the tile program in `module`, which stays as it is: a `CompileError` gets a reproducer.

    Args:
        passes: those that do the same.
        target, folder: see `write_reproducer`; False writes none.

    Raises:
        CompileError: whatever was raised inside that is no error of this package.
    """
    try:
        with named("the code generator", module.operation.location):
            yield
    except CompileError as error:
        if type(error) is not CompileError or error.reproducer is not None or folder is False:
            raise
        pipeline = f"builtin.module({','.join(map(pass_text, passes))})"
        path = write_reproducer(module.operation, pipeline, target, folder=folder, name=passes[0].name)
        raise CompileError(str(error), reproducer=None if path is None else str(path)) from error
