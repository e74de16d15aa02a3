"""Models in processes of their own, which take turns on the device, or overlap by MPS: what people do without one runtime.

MPS (NVIDIA's Multi-Process Service) has a daemon, which is started in a folder of its own and ended again; the compute mode is
left as it is. What cannot be had raises `Unavailable`, with the reason.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.requests.arrivals import Arrivals
from bench.requests.scenarios import SCENARIOS
from bench.requests.systems import one_by_one, serve

__all__ = ["Processes", "Unavailable", "mps"]

READY_SECONDS = 120
LEAD = 0.2
"""Seconds from when a load is sent to processes until it starts."""


class Unavailable(Exception):
    """A system is not there on this machine; the message says why."""


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run MPS's daemon for the block; gives what clients need in their environment.

    Raises:
        Unavailable: it is not installed, or does not start.
    """
    command = shutil.which("nvidia-cuda-mps-control")
    if command is None:
        raise Unavailable("nvidia-cuda-mps-control is not installed")
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for place in own.values():
            os.mkdir(place)
        # The daemon has the devices that this process sees; its clients count these from 0.
        seen = {"CUDA_VISIBLE_DEVICES": "0"} if "CUDA_VISIBLE_DEVICES" in os.environ else {}

        def control(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [command, *words], input=text, env={**os.environ, **own}, capture_output=True, text=True, timeout=30
            )

        try:
            started = control("-d")
            if started.returncode or control(text="get_server_list\n").returncode:
                raise Unavailable(f"the daemon does not start: {(started.stderr or started.stdout).strip()[:200]}")
        except subprocess.TimeoutExpired as error:
            raise Unavailable("the daemon does not answer") from error
        try:
            yield own | seen
        finally:
            control(text="quit\n")


def _serve(pipe: Any, scenario: str, small: bool, device: str, dtype: torch.dtype, part: int, parts: int, seed: int) -> None:
    """A process: its part of the models. It is sent loads (start, dues, models, rows, whether outputs are wanted) until one is
    None, and gives for each when its requests were answered, and outputs."""
    torch.set_num_threads(1)
    models, inputs = made(scenario, small, device, dtype, seed)
    own = [n for n in range(len(models)) if n % parts == part]
    place = {model: n for n, model in enumerate(own)}
    with torch.no_grad():
        work = one_by_one([models[n] for n in own], [inputs[n][0] for n in own])
    pipe.send(None)
    while (load := pipe.recv()) is not None:
        start, dues, grace, asked, wanted = load
        arrivals, outputs = Arrivals(dues, grace, start), dict[int, Tensor]()
        items = [(place[model], inputs[model][row], number) for number, (model, row) in enumerate(asked)]
        serve(work, arrivals, items, outputs if wanted else None)
        pipe.send((arrivals.finished, {number: output.cpu() for number, output in outputs.items()}))


def made(scenario: str, small: bool, device: str, dtype: torch.dtype, seed: int) -> tuple[list[Any], list[list[Tensor]]]:
    """All models of a scenario, and for each the inputs of its family, the same in every process."""
    torch.manual_seed(seed)
    models, inputs = list[Any](), list[list[Tensor]]()
    for family in SCENARIOS[scenario].all:
        own = family.models(small, device, dtype)
        rows = family.inputs(small, device, dtype, 64)
        models += own
        inputs += [rows] * len(own)
    return models, inputs


class Processes:
    """So many processes, each with its part of the models.

    Args:
        environment: is added to theirs.

    Raises:
        Unavailable: they did not get ready.
    """

    def __init__(
        self,
        scenario: str,
        small: bool,
        device: str,
        dtype: torch.dtype,
        seed: int,
        count: int,
        environment: dict[str, str] | None = None,
    ):
        self._count = count
        spawn = multiprocessing.get_context("spawn")
        before = {name: os.environ.get(name) for name in environment or {}}
        os.environ.update(environment or {})
        self._pipes, self._started = [], []
        try:
            for part in range(count):
                here, there = spawn.Pipe()
                process = spawn.Process(
                    target=_serve, args=(there, scenario, small, device, dtype, part, count, seed), daemon=True
                )
                process.start()
                there.close()  # else its end would not be noticed
                self._pipes.append(here)
                self._started.append(process)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        for pipe in self._pipes:
            if not pipe.poll(READY_SECONDS):
                self._end()
                raise Unavailable(f"a process was not ready after {READY_SECONDS} s")
            try:
                pipe.recv()
            except EOFError as error:
                self._end()
                raise Unavailable("a process ended before it was ready") from error

    def run(self, arrivals: Arrivals, asked: Sequence[tuple[int, int]], keep: dict[int, Any] | None = None) -> None:
        """A load: the model and the number of the input of each request. Each process takes its own when they are due."""
        start = time.perf_counter() + LEAD
        own = [[n for n, (model, _) in enumerate(asked) if model % self._count == part] for part in range(self._count)]
        for pipe, numbers in zip(self._pipes, own, strict=True):
            dues, which = [arrivals.dues[n] for n in numbers], [asked[n] for n in numbers]
            pipe.send((start, dues, arrivals.over - (dues[-1] if dues else 0.0), which, keep is not None))
        for pipe, numbers in zip(self._pipes, own, strict=True):
            finished, outputs = pipe.recv()
            arrivals.finished[numbers] = finished
            if keep is not None:
                keep.update({numbers[n]: output for n, output in outputs.items()})

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(None)
        self._end()

    def _end(self) -> None:
        for process in self._started:
            process.join(5)
            if process.is_alive():
                process.terminate()
