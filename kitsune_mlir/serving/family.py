"""Models of one code, whose requests share launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import ConflictError
from kitsune_mlir.runtime.launch import wait_for
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.cost import CostModel
from kitsune_mlir.serving.requests import Queue

__all__ = ["Family"]


class Family(Queue):
    """Programs of one code, with weights of their own: their requests share launches.

    Attributes:
        programs: by the name of the model.
        batch: launches them.

    Args:
        limit: most requests of a launch, if the code takes as many.
    """

    def __init__(self, programs: Mapping[str, Program], limit: int):
        import torch

        program = next(iter(programs.values()))
        exclusive = any(n < len(program.signature.weights) for n in program.signature.written)
        self.programs = dict(programs)
        self.batch = program.batch(min(limit, program.most_requests))
        core, device = torch._C, torch.device(program.device)
        self._modes = torch.is_inference_mode_enabled, core._len_torch_dispatch_stack, core._len_torch_function_stack
        self._index = None
        if device.type == "cuda":
            self._index = torch.cuda.current_device() if device.index is None else device.index
            self._current, self._stream = core._cuda_getDevice, core._cuda_getCurrentRawStream
        super().__init__(len(programs), self.batch.limit, exclusive, CostModel([], []))

    def outputs(
        self, models: Sequence[str], args: Sequence[Sequence[Any]], kwargs: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Any], bool]:
        """Run a launch of calls of models: the output or the error of each, and whether all of it went well.

        Calls that change what another one uses are run by themselves, after the others. An error that is nobody's own is that
        of who has it when run alone.
        """
        if len(models) == 1:
            output = self.output(models[0], args[0], kwargs[0] if kwargs else {})
            return [output], not isinstance(output, Exception)
        try:
            outputs = self.batch(args, [self.programs[model] for model in models], kwargs or None, return_exceptions=True)
            self.finish()
            alone = [n for n, output in enumerate(outputs) if isinstance(output, Exception)]
            if not alone:
                return outputs, True
            alone = [n for n in alone if isinstance(outputs[n], ConflictError)]
        except Exception:
            outputs, alone = [None] * len(models), range(len(models))
        for n in alone:
            outputs[n] = self.output(models[n], args[n], kwargs[n] if kwargs else {})
        return outputs, False

    def output(self, model: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The output, or the error, of a call that is run by itself."""
        try:
            output = self.programs[model](*args, **kwargs)
            self.finish()
            return output
        except Exception as error:
            return error

    def finish(self) -> None:
        """Wait until what was launched is done."""
        if self._index is not None:
            wait_for(self._stream(self._index))

    @property
    def at_home(self) -> bool:
        """Whether this thread would launch as an engine's own does: on the default stream of the device, with plain tensors
        for results, which no mode watches."""
        if any([mode() for mode in self._modes]):
            return False
        return self._index is None or (self._current() == self._index and not self._stream(self._index))
