"""The runner of a program's code on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import KitsuneError, TargetError

__all__ = ["NothingToRun", "make_runner"]


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

    def run_calls(self, table: Any, calls: Any, results: Any, stream: int) -> None:
        """None: no call of it is a launch."""

    def calls(self, stream: int) -> None:
        """None: there is nothing to launch."""

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
