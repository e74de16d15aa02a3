"""Runs a program's GPU code, fresh from the compiler or from a package's members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kitsune_mlir.errors import KitsuneError, TargetError
from kitsune_mlir.runtime.call_table import Calls
from kitsune_mlir.runtime.manifest import Manifest
from kitsune_mlir.runtime.manifest_check import read_manifest
from kitsune_mlir.runtime.runner import Launched, WeightTable

if TYPE_CHECKING:
    from kitsune_mlir.runtime.arenas import Arena
    from kitsune_mlir.runtime.kernel_frame import KernelFrame

__all__ = ["CudaRunner", "require_hopper"]


class CudaRunner:
    """The GPU's side of `Program`.

    Attributes:
        device: "cuda:0", or whichever device it is loaded on.
        executor: what launches: a `CudaExecutor`, or a `CudaSequence` of several; for requests a `CudaRequests` or
            `CudaRequestKernels`.
        run: launches once, with pointers, on the caller's stream; returns at once.
        most_requests: of a launch (option `requests`).
    """

    def __init__(self, kernels: Sequence[tuple[Manifest, bytes]], ordinal: int = 0):
        from kitsune_mlir.runtime.cuda_executor import CudaExecutor
        from kitsune_mlir.runtime.cuda_requests import CudaRequestKernels, CudaRequests
        from kitsune_mlir.runtime.cuda_sequence import CudaSequence

        self.device = f"cuda:{ordinal}"
        self.most_requests = kernels[0][0].requests
        if len(kernels) > 1:
            self.executor = (CudaRequestKernels if self.most_requests > 1 else CudaSequence)(kernels, ordinal)
        else:
            self.executor = (CudaRequests if self.most_requests > 1 else CudaExecutor)(*kernels[0], ordinal)
        self.run = self.executor.run

    def run_requests(self, rows: Sequence[Sequence[int]], stream: int) -> list[KitsuneError | None]:
        """Launch once for several requests on the caller's stream; returns at once."""
        if len(rows) == 1:
            self.executor.run(rows[0], stream)
        elif rows:
            self.executor.run_requests(rows, stream)
        return [None] * len(rows)

    def run_calls(self, table: WeightTable, calls: Calls, results: Sequence[tuple[int, int]], stream: int) -> Launched | None:
        """As of `Runner`; returns at once."""
        numbers = self.executor.run_calls(table, calls, results, stream)
        return None if numbers is None else (numbers, {})

    def calls(self, stream: int) -> tuple[Sequence[KernelFrame], Arena] | None:
        """As of `Runner`."""
        frames = None if self.most_requests > 1 else self.executor.frames(stream)
        if frames is None:
            return None
        arena = frames[0].arena
        return (frames, arena) if all(frame.bound == arena.address for frame in frames) else None

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
    def read_kernels(artifacts: Mapping[str, bytes]) -> list[tuple[Manifest, bytes]]:
        """Manifest and cubin of each kernel in a package's members, in order; needs no GPU.

        Raises:
            ValueError: a member is missing or one too many, or a manifest is none; the message says which.
        """
        count = sum(name.endswith(".json") for name in artifacts)
        names = ["kernel"] if "kernel.json" in artifacts else [f"kernel_{number}" for number in range(count)]
        needed = {f"{name}.{kind}" for name in names for kind in ("json", "cubin")}
        if not names or set(artifacts) - {f"{name}.ptx" for name in names} != needed:
            raise ValueError(f"the code of {max(1, count)} kernels is {', '.join(sorted(artifacts))}")
        kernels = [(read_manifest(artifacts[f"{name}.json"].decode()), artifacts[f"{name}.cubin"]) for name in names]
        most = {manifest.requests for manifest, _ in kernels}
        least = [manifest.least_requests for manifest, _ in kernels]
        if len(most) > 1 or least[0] != 1 or (max(most) > 1 and least != sorted(set(least))):
            raise ValueError(f"its kernels are for {least} requests of a launch and more, and at most {sorted(most)}")
        return kernels

    @staticmethod
    def from_artifacts(artifacts: Mapping[str, bytes]) -> CudaRunner:
        """Load stored code onto the current device.

        Raises:
            TargetError: this machine has no CUDA device, or none that the code is for; or a package is missing.
            ValueError: as of `read_kernels`.
        """
        require_hopper()
        import torch

        return CudaRunner(CudaRunner.read_kernels(artifacts), torch.cuda.current_device())


def require_hopper() -> None:
    """Make sure that GPU programs run on the current device.

    Raises:
        TargetError: there is no CUDA device, or it is no Hopper GPU, or PyTorch is missing or cannot use one.
    """
    try:
        import torch
    except ImportError as error:
        raise TargetError("GPU programs need torch, which is not installed") from error
    if not torch.cuda.is_available():
        why = "" if torch.version.cuda else " (this PyTorch is built without CUDA)"
        raise TargetError(f"no CUDA device is usable here{why}: the program is GPU code, and runs on a Hopper GPU only")
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        raise TargetError(f"the device has compute capability {capability[0]}.{capability[1]}; the code is for 9.0 (Hopper)")
