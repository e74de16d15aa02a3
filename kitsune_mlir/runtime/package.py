"""`.kit` files: a zip of a manifest, IR texts, code and weights (safetensors).

Nothing in it is executed on reading; no pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kitsune_mlir.errors import KitsuneError, PackageError, TargetError
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.signature import Signature

__all__ = ["load", "make_runner", "write_package"]

FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"


def write_package(
    path: str | os.PathLike[str],
    target: str,
    signature: Signature,
    weights: Mapping[str, Any],
    ir: Mapping[str, str],
    summary: Mapping[str, Any],
    artifacts: Mapping[str, bytes],
) -> None:
    """Write a package; see `Program.save`."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    members: dict[str, bytes] = {f"ir/{level}": text.encode() for level, text in ir.items()}
    members |= {f"code/{name}": data for name, data in artifacts.items()}
    members[WEIGHTS] = save(tensors)
    manifest = {
        "format": FORMAT,
        "target": target,
        "signature": signature.to_dict(),
        "summary": dict(summary),
        "members": {name: hashlib.sha256(data).hexdigest() for name, data in members.items()},
    }
    final = Path(path)
    handle, temporary = tempfile.mkstemp(dir=final.parent or ".", prefix=f".{final.name}.")
    try:
        with os.fdopen(handle, "wb") as stream, zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
            for name, data in members.items():
                kind = zipfile.ZIP_STORED if name == WEIGHTS else zipfile.ZIP_DEFLATED
                archive.writestr(name, data, kind)
        os.chmod(temporary, 0o644)
        os.replace(temporary, final)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str], weights: Mapping[str, Any] | None = None) -> Program:
    """Read a program from a `.kit` file.

    Args:
        weights: tensors by name, used instead of stored ones (such as `dict(model.state_dict())`); needed for a package that
            was saved without weights.

    Raises:
        ArgumentError: a weight is missing or has another shape or dtype.
        FileNotFoundError: there is no such file.
        PackageError: it is no package, is cut short, was altered, or is of another format; the message says which.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path, weights or {})
    except zipfile.BadZipFile as error:
        raise PackageError(f"{path}: not a .kit file, or cut short ({error})") from error
    except (KeyError, TypeError, ValueError, AttributeError, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, KitsuneError):
            raise
        raise PackageError(f"{path}: damaged package: {type(error).__name__}: {error}") from error


def _read(archive: zipfile.ZipFile, path: str | os.PathLike[str], given: Mapping[str, Any]) -> Program:
    from safetensors.torch import load as load_tensors

    names = set(archive.namelist())
    if MANIFEST not in names:
        raise PackageError(f"{path}: a zip, but no .kit file (it has no {MANIFEST})")
    manifest = json.loads(archive.read(MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise PackageError(f"{path}: package format {found!r}, this version reads {FORMAT}")
    members: dict[str, bytes] = {}
    for name, digest in manifest["members"].items():
        if name not in names:
            raise PackageError(f"{path}: member '{name}' is missing")
        members[name] = archive.read(name)
        if hashlib.sha256(members[name]).hexdigest() != digest:
            raise PackageError(f"{path}: member '{name}' was altered (its SHA-256 differs from the manifest's)")
    artifacts = {name.removeprefix("code/"): data for name, data in members.items() if name.startswith("code/")}
    texts = {name.removeprefix("ir/"): data.decode() for name, data in members.items() if name.startswith("ir/")}
    signature = Signature.from_dict(manifest["signature"])
    weights = {**load_tensors(members[WEIGHTS]), **given}
    runner, problem = make_runner(manifest["target"], artifacts)
    return Program(manifest["target"], signature, weights, runner, texts, manifest["summary"], artifacts, runner_error=problem)


class NothingToRun:
    """The runner of a model that computes nothing, on the current device of a kind."""

    def __init__(self, device: str):
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise TargetError("no CUDA device is usable here")
        self.device = device

    def run(self, pointers: Sequence[int], stream: int) -> None:
        """Nothing to do."""


def make_runner(target: str, artifacts: Mapping[str, bytes]) -> tuple[Any, str]:
    """The runner for stored code, or None and why this machine cannot run it. A program without code computes nothing."""
    try:
        if not artifacts:
            return NothingToRun("cpu" if target == "host" else "cuda"), ""
        if target == "host":
            from kitsune_mlir.runtime.host_runner import HostRunner

            return HostRunner.from_artifacts(artifacts), ""
        from kitsune_mlir.runtime.cuda_runner import CudaRunner

        return CudaRunner.from_artifacts(artifacts), ""
    except TargetError as error:
        return None, str(error)
