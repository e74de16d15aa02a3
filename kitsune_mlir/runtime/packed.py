"""Programs as bytes, for other processes: packages with all that is known of a program but the values of its weights."""

from __future__ import annotations

from typing import Any

from kitsune_mlir.runtime.package import Contents, package_bytes, read_package
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.runners import make_runner
from kitsune_mlir.runtime.signature import torch_dtype

__all__ = ["packed", "unpacked"]


def packed(program: Program, ir: bool = True) -> bytes:
    """A program whose weights are given later (`Program.with_weights`); constants are in it.

    Args:
        ir: whether its texts are.

    Raises:
        PackageError: the model has a structure that a file cannot hold.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    constants = {w.name: program.weights[w.name] for w in program.signature.supplied if w.kind == "constant"}
    texts = {level: program.ir(level) for level in program.levels if ir}
    code = {name: data for name, data in program.artifacts.items() if ir or not name.endswith(".ptx")}
    # PyTorch 2.11 writes compiled graphs down while its fake tensors are on, which take no others.
    with _disable_current_modes():
        return package_bytes(Contents(program.target, program.signature, program.summary, texts, code, constants))


def unpacked(data: bytes, threads: int | None = None, run: bool = True) -> Program:
    """The program, with weights that have no values.

    Args:
        threads: of the host's, workers of one call.
        run: whether it is to run; its code is loaded then.

    Raises:
        PackageError: as `kitsune_mlir.load`.
        CompileError: it was made on another processor, and cannot be compiled for this one.
    """
    import torch

    held = read_package(data)
    weights: dict[str, Any] = {
        w.name: torch.empty(w.shape, dtype=torch_dtype(w.dtype), device="meta") for w in held.signature.supplied
    }
    runner, problem = make_runner(held.target, held.artifacts, threads) if run else (None, "its code was not loaded")
    parts = (held.target, held.signature, {**weights, **held.weights}, runner, held.ir, held.summary, held.artifacts)
    return Program(*parts, runner_error=problem)
