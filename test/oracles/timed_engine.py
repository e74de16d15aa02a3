"""An engine on a clock that only counts, and a device of which it is known what launches take: loads by rates are the same
each time, and take no time of a machine's.

What the host does for a launch is counted, too: some seconds, and some more for each request.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kitsune_mlir.runtime import launch
from kitsune_mlir.serving.cost import CostModel
from kitsune_mlir.serving.engine import Engine
from kitsune_mlir.serving.family import Launched
from kitsune_mlir.serving.requests import Queue
from kitsune_mlir.serving.statistics import Statistics
from kitsune_mlir.serving.tally import Tally

__all__ = ["Device", "Found", "Models", "answered"]

Seconds = Callable[[int], float]

TICK, WAKE, CALL = 5e-8, 3e-6, 25e-6
"""Seconds of a look at the clock, until a thread that waits goes on, and of a call of one model on the host."""


class Device:
    """Launches on streams, each behind the one before; streams have nothing in common, or (`one`) are one queue."""

    def __init__(self, one: bool = False, seed: int = 0):
        self.now, self._one, self._free, self._draw = 0.0, one, dict[int, float](), random.Random(seed)

    def clock(self) -> float:
        self.now += TICK
        return self.now

    def work(self, seconds: float) -> None:
        """The host works."""
        self.now += seconds * self._draw.uniform(1.0, 1.1)

    def launch(self, stream: int, seconds: float) -> Mark:
        stream = 0 if self._one else stream
        self._free[stream] = max(self.now, self._free.get(stream, 0.0)) + seconds * self._draw.uniform(1.0, 1.05)
        return Mark(self, self._free[stream])


class Mark(launch.Mark):
    """As `runtime.launch.Mark`, of a launch that ends at a time."""

    def __init__(self, device: Device, end: float):
        super().__init__(0)
        self._device, self._end = device, end

    @property
    def passed(self) -> bool:
        return self._device.now >= self._end

    def wait(self) -> None:
        self._device.now = max(self._device.now, self._end) + WAKE


class Models(Queue):
    """A family (`serving.family.Family`) whose launches take `seconds(n)` on the device, and some time on the host."""

    separable, at_home = True, True

    def __init__(self, device: Device, names: Sequence[str], limit: int, seconds: Seconds, stream: int = 0):
        self.programs: Mapping[str, Any] = dict.fromkeys(names)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._device, self._seconds, self._stream = device, seconds, stream
        self.batch, self.tally = types.SimpleNamespace(limit=limit), Tally(len(names))
        super().__init__(len(names), limit, False, CostModel([], []))
        self.cost = CostModel.measured(self._measured, limit)
        self.set_pace()

    def _measured(self, count: int) -> float:
        begin = self._device.now
        self.outputs([next(iter(self.programs))] * count, [()] * count)
        return self._device.now - begin

    def together(self, calls: Sequence[Any], behind: bool = False) -> Launched:
        if len(calls) == 1 and not behind:
            self._device.work(CALL)
            self._device.launch(0, self._seconds(1)).wait()
            return Launched([None], True, None, None)
        self._device.work(20e-6 + len(calls) * 0.8e-6)
        numbers = np.array([self._numbers[model] for model, _ in calls]) if len(calls) > 1 else None
        return Launched([None] * len(calls), True, numbers, self._device.launch(0, self._seconds(len(calls))))

    def outputs(self, models: Sequence[str], args: Sequence[Any], kwargs: Sequence[Any] = ()) -> tuple[Sequence[Any], bool]:
        launched = self.together([*zip(models, args, strict=True)])
        if launched.mark is not None:
            launched.mark.wait()
        return launched.outputs, True

    def beside(self, models: Sequence[str], args: Sequence[Any], kwargs: Sequence[Any]) -> Launched:
        self._device.work(CALL + 8e-6)
        return Launched([None] * len(models), True, None, self._device.launch(self._stream, self._seconds(len(models))))

    def handed_over(self, outputs: Sequence[Any]) -> None:
        self._device.work(WAKE)

    def tallied(self, model: str, statistics: Statistics) -> Statistics:
        return self.tally.added_to(statistics, self._numbers[model])


@dataclasses.dataclass
class Found:
    """Attributes: `latencies` of requests in seconds, infinite where there was no answer; `stats` of the engine."""

    latencies: dict[str, np.ndarray]
    stats: Mapping[str, Any]

    def percentile(self, model: str, percent: float) -> float:
        """Of the latencies of models whose names begin so."""
        every = np.concatenate([own for name, own in self.latencies.items() if name.startswith(model)])
        return float(np.percentile(every, percent, method="higher"))


def answered(device: Device, families: Sequence[Any], load: Sequence[tuple[float, str]], deadline: float) -> Found:
    """Have an engine's source hand in a load, (seconds after the start, model) in order, as its requests come."""
    start = device.now + 1e-3
    dues, taken = [start + due for due, _ in load], [0]
    ended = np.full(len(load), np.inf)

    def source(engine: Engine, idle: bool) -> bool:
        device.work(1e-6)
        first = taken[0]
        if first == len(load):
            return not idle
        if idle:
            device.now = max(device.now, dues[first])
        last = taken[0] = bisect.bisect_right(dues, device.now, first)
        if last == first:
            return True

        def done(places: Sequence[int], outputs: Any) -> None:
            device.work(1e-6 + 1e-7 * len(places))
            for number, place in enumerate(places):
                if number not in outputs.errors:
                    ended[first + place] = device.now

        left = [max(1e-5, due + deadline - device.now) for due in dues[first:last]]
        engine.submit_many([(model, ()) for _, model in load[first:last]], done, deadline=left)
        return True

    engine = Engine(families, 2 * len(load) + 100, device.clock, source)
    while engine._source is not None and engine._thread.is_alive():
        time.sleep(1e-3)
    engine.close()
    found: dict[str, list[float]] = {}
    for (_, model), end, due in zip(load, ended, dues, strict=True):
        found.setdefault(model, []).append(end - due)
    return Found({model: np.array(own) for model, own in found.items()}, engine.stats())
