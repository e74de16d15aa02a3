"""Graphs that PyTorch runs until other processes have compiled them (`options={"background": True}`)."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from kitsune_mlir.dynamo.decisions import copied
from kitsune_mlir.dynamo.parts import NoPart, kept_part
from kitsune_mlir.dynamo.report import GraphReport, logger
from kitsune_mlir.sized.part import Part

__all__ = ["Background", "in_background", "wait"]

Attempt = Callable[[fx.GraphModule, Callable[..., Part]], tuple[Callable[..., Any], GraphReport]]
"""Compiles a graph with a compiler of parts; the graph is used up."""


def in_background(graph: fx.GraphModule, attempt: Attempt, tell: Callable[[GraphReport], None]) -> Callable[..., Any]:
    """A function that runs a graph: compiled where all of its programs are on disk, else a `Background`."""
    try:
        run, report = attempt(copied(graph), kept_part)
    except NoPart:
        return Background(graph, attempt, tell)
    tell(report)
    return run


def wait(seconds: float | None = None) -> bool:
    """Wait until all that is being compiled in the background is; its next call runs it.

    Args:
        seconds: how long at most; None is without end.

    Returns:
        Whether it is.
    """
    return all([graph.done.wait(seconds) for graph in list(_under_way)])


_under_way: weakref.WeakSet[Background] = weakref.WeakSet()


class Background:
    """Runs a graph in PyTorch while it is compiled, and its programs after that.

    The code of programs is loaded by the call that is the first to run it, on its device. In a child that the process has
    forked meanwhile PyTorch goes on running it.

    Attributes:
        done: set once it is compiled, or once it is known that it cannot be.
    """

    def __init__(self, graph: fx.GraphModule, attempt: Attempt, tell: Callable[[GraphReport], None]):
        self._run: Callable[..., Any] = graph.forward
        self._compiled: tuple[Callable[..., Any], list[Part]] | None = None  # not loaded yet
        self._lock = threading.Lock()
        self.done = threading.Event()
        _under_way.add(self)
        work = (copied(graph), attempt, tell)
        threading.Thread(target=self._compile, args=work, name="kitsune-background", daemon=True).start()

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        if self._compiled is not None and not _capturing():
            self._switch()
        return self._run(*args)

    def _compile(self, graph: fx.GraphModule, attempt: Attempt, tell: Callable[[GraphReport], None]) -> None:
        from kitsune_mlir.dynamo.elsewhere import Ending, compile_part_elsewhere

        parts: list[Part] = []

        def compile_part(*given: Any) -> Part:
            parts.append(compile_part_elsewhere(*given))
            return parts[-1]

        try:
            run, report = attempt(graph, compile_part)
            tell(report)
            if not report.gave_up:
                self._compiled = run, parts
        except Ending:
            pass
        except NoPart as error:
            _stays(error)
        except Exception as error:
            _stays(f"{type(error).__name__}: {error}")
        finally:
            self.done.set()

    def _switch(self) -> None:
        with self._lock:
            compiled, self._compiled = self._compiled, None
            if compiled is None:  # another thread has
                return
            run, parts = compiled
            try:
                for part in parts:
                    part.load()
            except Exception as error:
                _stays(f"{type(error).__name__}: {error}")
            else:
                self._run = run


def _stays(reason: object) -> None:
    warnings.warn(f"kitsune: a graph stays in PyTorch: compiling it in the background failed: {reason}", stacklevel=2)
    logger.warning("a graph stays in PyTorch: %s", reason)


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
