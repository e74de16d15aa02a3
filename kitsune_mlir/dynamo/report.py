"""What became of the graphs that torch.compile handed over: which parts are programs, what PyTorch runs, and why."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

__all__ = ["GraphReport", "Island", "Timed", "logger"]

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


@dataclasses.dataclass(frozen=True)
class Timed:
    """Ours beside PyTorch's own way, as they were timed.

    Attributes:
        what: "the graph", or the name of a part.
        peer: PyTorch's way: "eager", "eager in a CUDA graph" or "Inductor".
        milliseconds: of ours and of PyTorch's, a call (with its backward, where there is one); None where nothing was measured.
        in_pytorch: whether PyTorch runs it.
        remembered: whether it was measured by an earlier process.
        problem: why nothing was measured.
    """

    what: str
    peer: str
    milliseconds: tuple[float, float] | None
    in_pytorch: bool
    remembered: bool = False
    problem: str = ""

    def __str__(self) -> str:
        if self.milliseconds is None:
            return f"{self.what} was not timed: {self.problem}"
        own, peer = self.milliseconds
        times = f"{own:.3g} ms in programs, {peer:.3g} ms in PyTorch ({self.peer}){', measured before' * self.remembered}"
        return f"{self.what} runs in {'PyTorch' if self.in_pytorch else 'programs'}: {times}"


@dataclasses.dataclass
class GraphReport:
    """One graph.

    Attributes:
        kind: "inference", "forward" or "backward"; "step" is a whole training step.
        nodes: operators in it.
        programs: of its parts, in order.
        islands: what PyTorch runs between them.
        gave_up: why PyTorch runs all of it; empty where it does not.
        sizes: of a graph whose sizes change: for which of them this is, and why for no others.
        seconds: that compiling took.
        between: bytes of the tensors that programs and PyTorch's operators make, as many as are there at once, with outputs.
        timed: what was timed at the first call, beside PyTorch; a graph's backward with its forward.
    """

    kind: str
    nodes: int
    programs: list[Any] = dataclasses.field(default_factory=list)
    islands: list[Island] = dataclasses.field(default_factory=list)
    gave_up: str = ""
    sizes: str = ""
    seconds: float = 0.0
    between: int = 0
    timed: list[Timed] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        head = f"{self.kind} graph of {self.nodes} operators" + (f" {self.sizes}" if self.sizes else "")
        if self.gave_up:
            return f"{head} runs in PyTorch: {self.gave_up}"
        many = f"{len(self.programs)} programs" if len(self.programs) != 1 else "1 program"
        text = f"{head}: {many}, {self.seconds:.1f} s"
        if self.islands:
            text += f"; {len(self.islands)} operators run in PyTorch:"
        return "\n  ".join([text, *map(str, self.islands), *map(str, self.timed)])

    def details(self) -> str:
        """The graph, and of each program its stages, buffers, launches and traffic."""
        programs = ["  " + program.explain().replace("\n", "\n  ") for program in self.programs]
        return "\n".join([str(self), self.memory_text(), *programs]) if programs else str(self)

    def memory_text(self) -> str:
        """What a call needs at most, beside its inputs; known before the first one. Programs have one arena."""
        from kitsune_mlir.runtime.explain import size

        each = [program.memory for program in self.programs]
        own = max((memory.arena for memory in each), default=0) + sum(memory.copies + memory.apart for memory in each)
        text = f"A call needs at most {size(own + self.between)} beside its inputs: {size(self.between)} of tensors"
        return f"{text}, {size(own)} of programs' own."
