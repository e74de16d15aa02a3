"""`EpochKernel`: one kernel with the code of several programs, of which a launch runs a window of work on the device."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from kitsune_mlir.runtime.archive import Archive, readable, write_archive
from kitsune_mlir.runtime.cuda_epochs import CudaEpochs
from kitsune_mlir.runtime.epoch_manifest import EpochManifest
from kitsune_mlir.runtime.program import Program

__all__ = ["EpochKernel", "digest_of"]

_MANIFEST, _CODE, _TEXT = "epoch.json", "code/epoch.cubin", "code/epoch.ptx"


def digest_of(artifacts: Mapping[str, bytes]) -> str:
    """What tells a program's code from others': the same whatever weights it has, and after it was saved and loaded."""
    found = hashlib.sha256()
    for name in sorted(artifacts):
        if not name.endswith(".ptx"):
            found.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(artifacts[name]).digest())
    return found.hexdigest()


class EpochKernel:
    """See the module; `kitsune_mlir.epoch_kernel` makes it.

    Attributes:
        manifest: what launches need.
        cubin, ptx: the code; `ptx` is empty where it was not kept.
        resources: registers, spills and shared memory, for people.
    """

    def __init__(self, manifest: EpochManifest, cubin: bytes, ptx: str = "", resources: Mapping[str, Any] | None = None):
        self.manifest, self.cubin, self.ptx, self.resources = manifest, cubin, ptx, dict(resources or {})
        self._numbers = {program.digest: number for number, program in enumerate(manifest.programs)}

    def number_of(self, program: Program) -> int | None:
        """Which of the kernel's programs this one is, whatever weights it has; None: it is none."""
        return self._numbers.get(digest_of(program.artifacts))

    def on(self, device: int) -> CudaEpochs:
        """The kernel, loaded on a device.

        Raises:
            TargetError: the device cannot run it.
        """
        return _loaded(self, device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file. Raises OSError."""
        members = {_MANIFEST: self.manifest.to_json().encode(), _CODE: self.cubin, _TEXT: self.ptx.encode()}
        write_archive(path, members, stored=_CODE)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> EpochKernel:
        """Read what `save` wrote; its code is as trustworthy as where the file comes from.

        Raises:
            OSError: the file cannot be read.
            PackageError: it is no such file, or damaged.
        """
        with Archive(path) as archive, readable(f"{os.fspath(path)} is no epoch kernel"):
            manifest = EpochManifest.from_json(archive.read(_MANIFEST).decode())
            return EpochKernel(manifest, archive.read(_CODE), archive.read(_TEXT).decode())


@functools.lru_cache(maxsize=16)
def _loaded(kernel: EpochKernel, device: int) -> CudaEpochs:
    return CudaEpochs(kernel.manifest, kernel.cubin, device)
