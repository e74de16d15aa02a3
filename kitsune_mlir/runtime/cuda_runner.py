"""Runs a program's GPU code, fresh from the compiler or from a package's members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kitsune_mlir.errors import TargetError
from kitsune_mlir.runtime.manifest import Manifest

__all__ = ["CudaRunner"]


class CudaRunner:
    """The GPU's side of `Program`.

    Attributes:
        device: "cuda:0", or whichever device it is loaded on.
        executor: what launches.
    """

    def __init__(self, manifest: Manifest, cubin: bytes, ordinal: int = 0):
        from kitsune_mlir.runtime.cuda_executor import CudaExecutor

        self.device = f"cuda:{ordinal}"
        self.executor = CudaExecutor(manifest, cubin, ordinal)

    def run(self, pointers: Sequence[int], stream: int) -> None:
        """Launch once on the caller's stream; returns at once."""
        self.executor.run(pointers, stream)

    @staticmethod
    def artifacts(manifest: Manifest, cubin: bytes, ptx: str) -> dict[str, bytes]:
        """The members of a package that `from_artifacts` reads, and the PTX for people."""
        return {"kernel.cubin": cubin, "kernel.json": manifest.to_json().encode(), "kernel.ptx": ptx.encode()}

    @staticmethod
    def from_artifacts(artifacts: Mapping[str, bytes]) -> CudaRunner:
        """Load stored code onto the current device.

        Raises:
            TargetError: this machine has no CUDA device, or none that the code is for; or a package is missing.
        """
        try:
            import torch
        except ImportError as error:
            raise TargetError("GPU programs need torch, which is not installed") from error
        if not torch.cuda.is_available():
            raise TargetError("no CUDA device is usable here: compiled and assembled, but it can only run on a Hopper GPU")
        capability = torch.cuda.get_device_capability()
        if capability != (9, 0):
            raise TargetError(
                f"the device has compute capability {capability[0]}.{capability[1]}; the code is for 9.0 (Hopper)"
            )
        manifest = Manifest.from_json(artifacts["kernel.json"].decode())
        return CudaRunner(manifest, artifacts["kernel.cubin"], torch.cuda.current_device())
