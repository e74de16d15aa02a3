"""Times single stages for tuning. For a GPU they are compiled ahead, by processes of their own (`workers`): that takes
seconds and needs no GPU, a measurement takes a tenth of a second.

`python -m kitsune_mlir.tuning.stage_clock` is such a process. What travels is text (the stage's module) and a package's
members.
"""

from __future__ import annotations

import dataclasses
import sys

from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.errors import TargetError
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.options import Options
from kitsune_mlir.passes.partition_streams import PartitionStreams
from kitsune_mlir.runtime.cuda_runner import CudaRunner
from kitsune_mlir.runtime.timer import milliseconds
from kitsune_mlir.settings import precisions
from kitsune_mlir.targets import measured, partitioned_code
from kitsune_mlir.tuning import tensor_types
from kitsune_mlir.workers import NO_DEVICE, Compilers, serve

__all__ = ["StageClock"]


@dataclasses.dataclass(frozen=True)
class Request:
    """A module's text, how it is planned, and what for."""

    module: str
    partitioning: PartitionStreams
    target: str
    options: Options = dataclasses.field(hash=False)


class StageClock:
    """A context manager; it ends the processes."""

    def __init__(self, machine: Target, options: Options):
        self.machine = machine
        # The framework's precisions are this process's: others would not know them. Reports of progress stay here.
        self.options = dataclasses.replace(options, on_remark=None, on_phase=None, tune=False, **precisions(options))
        command = [sys.executable, "-m", "kitsune_mlir.tuning.stage_clock"]
        self._ahead = Compilers(command, environment=NO_DEVICE) if machine.is_gpu else None

    def __enter__(self) -> StageClock:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def expect(self, module: ir.Module, partitioning: PartitionStreams) -> None:
        """Say that this will be measured."""
        if self._ahead is not None:
            self._ahead.expect(self._request(module, partitioning))

    def measure(self, module: ir.Module, partitioning: PartitionStreams, enough: float) -> float:
        """Milliseconds of a module that holds one stage (`tuning.search.Measure`)."""
        if self._ahead is None:
            return measured(module, partitioning, self.machine, self.options, enough)
        runner = CudaRunner.from_artifacts(self._ahead.answer(self._request(module, partitioning)))
        return milliseconds(runner, *tensor_types(module), enough)

    def _request(self, module: ir.Module, partitioning: PartitionStreams) -> Request:
        return Request(str(module), partitioning, self.machine.name, self.options)


def _members(request: Request) -> dict[str, bytes]:
    """The code that a request asks for."""
    context = new_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(request.module, context)
    code = partitioned_code(module, request.partitioning, find_target(request.target), request.options)
    if not code.artifacts:
        raise TargetError(code.problem)
    return dict(code.artifacts)


if __name__ == "__main__":
    serve(_members)
