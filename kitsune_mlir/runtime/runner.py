"""What a program needs of a device: `Runner`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.call_table import Calls

if TYPE_CHECKING:
    from kitsune_mlir.runtime.arenas import Arena
    from kitsune_mlir.runtime.kernel_frame import KernelFrame

__all__ = ["Launched", "Runner", "WeightTable"]


Launched = tuple[np.ndarray, Mapping[int, KitsuneError]]
"""Numbers of the programs of calls, and which of these failed, by place, and how."""


class WeightTable:
    """Weights of programs of one code.

    Attributes:
        pointers: of each program's, [programs, weights].
        kept: what runners have made of them, by who has.
    """

    def __init__(self, pointers: np.ndarray):
        self.pointers, self.kept = pointers, dict[Any, Any]()


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

    def run_calls(self, table: WeightTable, calls: Calls, results: Sequence[tuple[int, int]], stream: int) -> Launched | None:
        """As `run_requests`, of calls that compiled code reads; None where nothing was launched.

        Args:
            results: for each where the first request's lies, and bytes to the next one's.
        """
        ...

    def calls(self, stream: int) -> tuple[Sequence[KernelFrame], Arena] | None:
        """Kernels with arguments of their own, as the last call on a stream took them, and the stream's arena; None where
        nothing ran there, or it is captured, or code is not launched one request at a time."""
        ...

    @property
    def most_requests(self) -> int:
        """How many `run_requests` takes."""
        ...
