"""Loads of an engine: its own thread asks for what has come, or another one hands it in."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bench.requests.arrivals import Arrivals
from bench.requests.systems import Item
from kitsune_mlir.runtime.fleet import Outputs
from kitsune_mlir.serving.engine import Engine

__all__ = ["EngineLoad", "items_of"]

PATIENCE = 60.0
"""Seconds after which a load is given up that should be over."""

LEAST = 1e-5
"""Seconds of a deadline, where it is over before the request is handed in."""

Call = tuple[str, tuple[Tensor]]


def items_of(inputs: Sequence[Sequence[Tensor]], asked: Sequence[tuple[int, int]]) -> list[Item]:
    """Requests of a load: of each the model, its input, and the number."""
    return [(model, inputs[model][row], number) for number, (model, row) in enumerate(asked)]


class EngineLoad:
    """One load after the other.

    Args:
        inputs: of each model.
        deadline: seconds, of loads whose answers do not count for long.
    """

    def __init__(self, inputs: Sequence[Sequence[Tensor]], deadline: float):
        self._inputs, self._deadline = inputs, deadline
        self._next: tuple[Arrivals, Sequence[Call], dict[int, Any] | None] | None = None
        self._begun, self._ended, self._over = threading.Event(), threading.Event(), False

    def run(
        self, engine: Engine, own: bool, arrivals: Arrivals, asked: Sequence[tuple[int, int]], keep: dict[int, Any] | None
    ) -> None:
        """Have a load answered; `own`: this thread hands it in. `keep` is given the outputs."""
        calls = [(str(model), (x,)) for model, x, _ in items_of(self._inputs, asked)]
        self._ended.clear()
        self._next = arrivals, calls, keep
        if own:
            arrivals.gentle = True
            while self._hand_in(engine, True):
                pass
        else:
            self._begun.set()
            self._ended.wait(arrivals.over + PATIENCE)
        arrivals.wait()

    def end(self) -> None:
        """Nothing comes any more."""
        self._over = True
        self._begun.set()

    def source(self, engine: Engine, idle: bool) -> bool:
        """As `kitsune_mlir.serve` wants it."""
        if self._next is None:
            if idle:
                self._begun.wait()
            self._begun.clear()
            if self._next is None:
                return not self._over
        if not self._hand_in(engine, idle):
            self._next = None
            self._ended.set()
        return True

    def _hand_in(self, engine: Engine, wait: bool) -> bool:
        """Hand in what has come; whether anything else may come."""
        assert self._next is not None
        arrivals, calls, keep = self._next
        new = arrivals.take(wait=wait)
        if not new:
            return not arrivals.all_taken

        def done(places: Sequence[int], outputs: Outputs, first: int = new.start) -> None:
            numbers = [first + place for place in places]
            if keep is not None:
                keep.update(zip(numbers, outputs, strict=True))
            if outputs.errors:
                wrong = {numbers[n] for n in outputs.errors}
                arrivals.ended([*wrong], right=False)
                numbers = [n for n in numbers if n not in wrong]
            arrivals.ended(numbers)

        # What is left of each one's deadline: it may have had to wait until somebody asked.
        own, dues = calls[new.start : new.stop], np.array(arrivals.dues[new.start : new.stop])
        left = None if arrivals.patient else np.maximum(LEAST, dues + (self._deadline - arrivals.now)).tolist()
        engine.submit_many(own, done, deadline=left)
        return not arrivals.all_taken
