"""Models of one code, whose requests share launches."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kitsune_mlir.errors import ConflictError, KitsuneError
from kitsune_mlir.runtime.fleet import Fleet
from kitsune_mlir.runtime.launch import Mark, Marks, wait_for
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.cost import CostModel
from kitsune_mlir.serving.groups import Call
from kitsune_mlir.serving.replay import Replay
from kitsune_mlir.serving.requests import Queue
from kitsune_mlir.serving.statistics import Statistics
from kitsune_mlir.serving.tally import Tally

__all__ = ["UNDER_WAY", "Family", "Launched"]

_log = logging.getLogger(__name__)

UNDER_WAY = 1
"""Launches that may be under way when another one is begun: what the host does for it is done while they run."""

MOST_RECORDED = 16
"""Models of a family whose calls are recorded at most: each takes memory and some tenths of a second."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launched:
    """A launch of calls.

    Attributes:
        outputs: or errors, of each call; no output may be looked at before the launch is over.
        right: all of it went well.
        numbers: of the models, but of a single call.
        mark: where it ends on the device; None where it is over.
    """

    outputs: Sequence[Any]
    right: bool
    numbers: np.ndarray | None
    mark: Mark | None


class Family(Queue):
    """Programs of one code, with weights of their own: their requests share launches.

    Attributes:
        programs: by the name of the model.
        batch: launches them.
        tally: what launches of many calls came to.

    Args:
        limit: most requests of a launch, if the code takes as many.
    """

    def __init__(self, programs: Mapping[str, Program], limit: int):
        import torch

        program = next(iter(programs.values()))
        exclusive = any(n < len(program.signature.weights) for n in program.signature.written)
        self.programs = dict(programs)
        self.batch = program.batch(min(limit, program.most_requests))
        self._numbers = {name: number for number, name in enumerate(self.programs)}
        self._fleet = None if exclusive else Fleet.of(self.batch, self.programs)
        self.tally = Tally(len(self.programs))
        core, device = torch._C, torch.device(program.device)
        self._modes = torch.is_inference_mode_enabled, core._len_torch_dispatch_stack, core._len_torch_function_stack
        self._index, self._marks = None, None
        self._beside: tuple[Any, Marks] | None = None  # a stream of its own
        self._replays: dict[str, Replay] = {}
        if device.type == "cuda":
            self._index = torch.cuda.current_device() if device.index is None else device.index
            self._current, self._stream = core._cuda_getDevice, core._cuda_getCurrentRawStream
        super().__init__(len(programs), self.batch.limit, exclusive, CostModel([], []))

    def together(self, calls: list[Call], behind: bool = False) -> Launched:
        """As `outputs`, of calls without keywords. What is launched at once may be under way still; and so may a single call
        that is `behind` others, for which it need not wait here."""
        many = len(calls) > 1
        if self._fleet is not None and (many or behind):
            try:
                found = self._fleet.launch(calls)
                if found is not None:
                    return Launched(found[0], not found[0].errors, found[1] if many else None, self._marked())
            except Exception as error:
                _log.debug("a launch of %d calls failed, they are run one by one: %s", len(calls), error)
        models, args = zip(*calls, strict=True)
        numbers = np.array([*map(self._numbers.__getitem__, models)], np.int64) if many else None
        return Launched(*self._apart(models, args), numbers, None)

    @property
    def separable(self) -> bool:
        """Whether launches may run beside those of other families."""
        return self._index is not None and not self.exclusive

    def beside(self, models: Sequence[str], args: Sequence[Sequence[Any]], kwargs: Sequence[Mapping[str, Any]]) -> Launched:
        """Launch calls on a stream of the family's own, behind what is on the current one by now; one launch at a time. What
        they give is `handed_over` when it is over."""
        import torch

        if self._index is None:
            return Launched(*self._apart(models, args, kwargs), None, None)
        if self._beside is None:
            self._beside = torch.cuda.Stream(self._index), Marks(1)
        stream, marks = self._beside
        stream.wait_stream(torch.cuda.current_stream(self._index))
        with torch.cuda.stream(stream):
            outputs: Sequence[Any] | None = None
            if self._fleet is not None and len(models) > 1 and not any(kwargs):
                found = self._fleet.launch([*zip(models, args, strict=True)])
                outputs = None if found is None else [*found[0]]
            if outputs is None:
                outputs = [self._begun(*call) for call in zip(models, args, kwargs, strict=True)]
        return Launched(outputs, True, None, marks.set(stream.cuda_stream))

    def record(self, args: Sequence[Any]) -> None:
        """Have calls beside the others replayed: their launches take the host long. `args`: of any call."""
        if self._beside is not None and len(self.programs) <= MOST_RECORDED:
            found = {name: Replay.of(program, args, self._beside[0]) for name, program in self.programs.items()}
            self._replays = {name: replay for name, replay in found.items() if replay is not None}

    def _begun(self, model: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            if not kwargs and (replay := self._replays.get(model)) is not None:
                return replay(args)
            return self.programs[model](*args, **kwargs)
        except Exception as error:
            return error

    def handed_over(self, outputs: Sequence[Any]) -> None:
        """What a launch beside the others gave goes to those who use the current stream: its memory, which is the other
        stream's, is not used again before they are done."""
        import torch
        from torch.utils import _pytree as pytree

        current = torch.cuda.current_stream(self._index)
        for leaf in pytree.tree_leaves([*outputs]):
            if isinstance(leaf, torch.Tensor) and leaf.is_cuda:
                leaf.record_stream(current)

    def _marked(self) -> Mark | None:
        """Where what was launched by now ends; None where it is done."""
        if self._index is None:
            return None
        if self._marks is None:
            self._marks = Marks(1 + UNDER_WAY)
        return self._marks.set(self._stream(self._index))

    def tallied(self, model: str, statistics: Statistics) -> Statistics:
        """Figures of a model, with those that `tally` has of it."""
        return self.tally.added_to(statistics, self._numbers[model])

    def outputs(
        self,
        models: Sequence[str],
        args: Sequence[Sequence[Any]],
        kwargs: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[Sequence[Any], bool]:
        """Run a launch of calls of models: the output or the error of each, and whether all of it went well.

        Calls that change what another one uses are run by themselves, after the others. An error that is nobody's own is that
        of who has it when run alone.
        """
        if len(models) > 1 and not any(kwargs):
            launched = self.together([*zip(models, args, strict=True)])
            try:
                if launched.mark is not None:
                    launched.mark.wait()
                return launched.outputs, launched.right
            except KitsuneError as error:
                _log.debug("a launch of %d calls failed, they are run one by one: %s", len(models), error)
        return self._apart(models, args, kwargs)

    def _apart(
        self, models: Sequence[str], args: Sequence[Sequence[Any]], kwargs: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[Sequence[Any], bool]:
        """As `outputs`, of calls that are looked at one by one."""
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
