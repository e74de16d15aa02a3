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
        executor: what launches: a `CudaExecutor`, or a `CudaSequence` of several.
    """

    def __init__(self, kernels: Sequence[tuple[Manifest, bytes]], ordinal: int = 0):
        from kitsune_mlir.runtime.cuda_executor import CudaExecutor
        from kitsune_mlir.runtime.cuda_sequence import CudaSequence

        self.device = f"cuda:{ordinal}"
        self.executor = CudaExecutor(*kernels[0], ordinal) if len(kernels) == 1 else CudaSequence(kernels, ordinal)

    def run(self, pointers: Sequence[int], stream: int) -> None:
        """Launch once on the caller's stream; returns at once."""
        self.executor.run(pointers, stream)

    @staticmethod
    def artifacts(kernels: Sequence[tuple[Manifest, bytes, str]]) -> dict[str, bytes]:
        """The members of a package that `from_artifacts` reads, from manifest, cubin and PTX of each kernel in order.

        The PTX is for people. One kernel is `kernel.*`, several are `kernel_0.*`, `kernel_1.*`, ...
        """
        members = {}
        for number, (manifest, cubin, ptx) in enumerate(kernels):
            name = "kernel" if len(kernels) == 1 else f"kernel_{number}"
            members |= {f"{name}.cubin": cubin, f"{name}.json": manifest.to_json().encode(), f"{name}.ptx": ptx.encode()}
        return members

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
        count = sum(name.endswith(".json") for name in artifacts)
        names = ["kernel"] if "kernel.json" in artifacts else [f"kernel_{number}" for number in range(count)]
        kernels = [(Manifest.from_json(artifacts[f"{n}.json"].decode()), artifacts[f"{n}.cubin"]) for n in names]
        return CudaRunner(kernels, torch.cuda.current_device())
