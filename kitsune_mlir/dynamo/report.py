"""What became of the graphs that torch.compile handed over: which parts are programs, what PyTorch runs, and why."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

__all__ = ["GraphReport", "Island", "logger"]

logger = logging.getLogger("kitsune_mlir.dynamo")
"""`TORCH_LOGS=kitsune_mlir.dynamo` shows what it says, as does the logging module."""


@dataclasses.dataclass(frozen=True)
class Island:
    """An operator that PyTorch runs.

    Attributes:
        operator: such as `aten.linalg_qr.default`.
        reason: why no program does.
        location: `file:line` of the model's source, if it is known.
    """

    operator: str
    reason: str
    location: str | None = None

    def __str__(self) -> str:
        return f"{self.location}: {self.operator}: {self.reason}" if self.location else f"{self.operator}: {self.reason}"


@dataclasses.dataclass
class GraphReport:
    """One graph.

    Attributes:
        kind: "inference", "forward" or "backward".
        nodes: operators in it.
        programs: of its parts, in order.
        islands: what PyTorch runs between them.
        gave_up: why PyTorch runs all of it; empty where it does not.
        seconds: that compiling took.
    """

    kind: str
    nodes: int
    programs: list[Any] = dataclasses.field(default_factory=list)
    islands: list[Island] = dataclasses.field(default_factory=list)
    gave_up: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        head = f"{self.kind} graph of {self.nodes} operators"
        if self.gave_up:
            return f"{head} runs in PyTorch: {self.gave_up}"
        many = f"{len(self.programs)} programs" if len(self.programs) != 1 else "1 program"
        text = f"{head}: {many}, {self.seconds:.1f} s"
        if self.islands:
            text += f"; {len(self.islands)} operators run in PyTorch:"
        return "\n  ".join([text, *map(str, self.islands)])
