"""Parts compiled by other processes, `python -m kitsune_mlir.dynamo.elsewhere`, while this one goes on.

What travels is a graph as plain data, and a program as a package. Such a process leaves the GPU alone: what it compiled for one
is loaded here.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import pickle
import sys
import threading
from collections.abc import Set
from concurrent.futures import CancelledError
from typing import Any

import torch
from torch import fx

from kitsune_mlir.cache.compiled import warn_if_slow
from kitsune_mlir.dynamo.parts import NoPart, compile_part
from kitsune_mlir.dynamo.sent_graph import SentGraph, received, sent
from kitsune_mlir.errors import CompileError, FrontendError, KitsuneError
from kitsune_mlir.machine.target import Target, find_target
from kitsune_mlir.options import Options
from kitsune_mlir.settings import is_deterministic, precisions
from kitsune_mlir.sized.part import Part
from kitsune_mlir.workers import NO_DEVICE, Compilers, serve

__all__ = ["Ending", "Request", "answered", "compile_part_elsewhere"]

POLITENESS = 5
"""How much the processes stand back behind this one, as `nice` counts."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A part to compile, as `compile_part` takes it; `target` is the machine's name."""

    graph: SentGraph
    weights: tuple[str, ...]
    target: str
    options: Options


class Ending(NoPart):
    """This process ends."""


def compile_part_elsewhere(graph: fx.GraphModule, weights: Set[str], machine: Target, options: Options) -> Part:
    """As `compile_part`, in another process; its program's code is not loaded yet (`Part.load`).

    Raises:
        KitsuneError: as `compile_part`.
        NoPart: the process ended, or (`Ending`) this one does.
    """
    settled = precisions(options) | {"deterministic": is_deterministic(options), "on_remark": None, "on_phase": None}
    graph_data, options = sent(graph), dataclasses.replace(options, **settled)
    if graph_data is None:  # it cannot travel
        return compile_part(graph, weights, machine, options)
    request = pickle.dumps(Request(graph_data, tuple(weights), machine.name, options))
    try:
        answer = _compilers().answer(request)
    except CancelledError:
        raise Ending from None
    except (CompileError, OSError) as error:
        raise NoPart(str(error)) from error
    if isinstance(answer, str):  # not a KitsuneError: something that nobody thought of
        raise RuntimeError(answer)
    if len(answer) == 2:
        text, operator = answer
        raise FrontendError(text, operator=operator) if operator else CompileError(text)
    part = Part.restored(*answer, run=False)
    warn_if_slow(part.program)
    return part


def answered(data: bytes) -> tuple[Any, ...] | str:
    """What a process does: what `Part.restored` takes, else the text of an error and, of the compiler's own, the operator."""
    request = pickle.loads(data)
    try:
        with torch.no_grad():
            graph, machine = received(request.graph), find_target(request.target)
            return compile_part(graph, set(request.weights), machine, request.options).state()
    except KitsuneError as error:
        return str(error).strip(), error.operator if isinstance(error, FrontendError) else None
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class _Pool:
    """The processes of this one, started when they are needed; a forked child has none."""

    def __init__(self) -> None:
        self.forget()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock, self._compilers = threading.Lock(), None

    def get(self) -> Compilers:
        with self._lock:
            if self._compilers is None:
                paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
                command = [sys.executable, "-m", "kitsune_mlir.dynamo.elsewhere"]
                self._compilers = Compilers(command, environment=NO_DEVICE | paths)
            return self._compilers

    def close(self) -> None:
        with self._lock:
            if self._compilers is not None:
                self._compilers.close()
            self._compilers = None


_pool: _Pool | None = None


def _compilers() -> Compilers:
    global _pool
    _pool = _pool or _Pool()
    return _pool.get()


if __name__ == "__main__":
    os.nice(POLITENESS)
    serve(answered)
