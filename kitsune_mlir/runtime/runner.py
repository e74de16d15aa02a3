"""What a program needs of a device: `Runner`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kitsune_mlir.errors import KitsuneError

__all__ = ["Runner"]


class Runner(Protocol):
    """What runs a program's code on one kind of device."""

    device: str

    def run(self, pointers: Sequence[int], stream: int) -> None:
        """Run once: pointers of inputs (weights first), then of results.

        `stream` is the caller's CUDA stream (0 on the host).
        """
        ...

    def run_requests(self, rows: Sequence[Sequence[int]], stream: int) -> Sequence[KitsuneError | None]:
        """Run for several requests at once, with pointers as of `run` for each; which of them failed, and how."""
        ...

    @property
    def most_requests(self) -> int:
        """How many `run_requests` takes."""
        ...
