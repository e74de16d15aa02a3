"""The table of engines, and which of them does a task."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

from torch_mlir import ir

from kitsune_mlir.codegen.failures import named
from kitsune_mlir.codegen.gpu.engines.attention.engine import AttentionEngine
from kitsune_mlir.codegen.gpu.engines.attention.gradient_engine import AttentionGradientEngine
from kitsune_mlir.codegen.gpu.engines.chain.engine import ChainEngine
from kitsune_mlir.codegen.gpu.engines.conv.depthwise import DepthwiseEngine
from kitsune_mlir.codegen.gpu.engines.conv.engine import ConvEngine
from kitsune_mlir.codegen.gpu.engines.gemv.engine import GemvEngine
from kitsune_mlir.codegen.gpu.engines.generic.engine import GenericEngine
from kitsune_mlir.codegen.gpu.engines.histogram.engine import HistogramEngine
from kitsune_mlir.codegen.gpu.engines.mma.engine import MmaEngine
from kitsune_mlir.codegen.gpu.engines.pairs.engine import PairsEngine
from kitsune_mlir.codegen.gpu.engines.pairwise.engine import PairwiseEngine
from kitsune_mlir.codegen.gpu.engines.recurrence.engine import RecurrenceEngine
from kitsune_mlir.codegen.gpu.engines.scan.engine import ScanEngine
from kitsune_mlir.codegen.gpu.engines.scatter.deterministic import OrderedEngine
from kitsune_mlir.codegen.gpu.engines.scatter.engine import ScatterEngine
from kitsune_mlir.codegen.gpu.engines.simt.engine import SimtEngine
from kitsune_mlir.codegen.gpu.engines.sort.engine import SortEngine
from kitsune_mlir.codegen.gpu.engines.sort.radix_sort import RadixSortEngine
from kitsune_mlir.codegen.gpu.interface.engine import Engine, Steps
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.iteration import Space
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.errors import ArgumentError, CompileError

__all__ = [
    "ENGINES",
    "adds_rows",
    "catch_all",
    "choose",
    "engine_of",
    "for_maps",
    "for_updates",
    "registered",
    "step_of",
    "traits_of",
]

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        *(AttentionEngine(), AttentionGradientEngine(), PairsEngine(), ConvEngine(), DepthwiseEngine(), ChainEngine()),
        *(GemvEngine(), MmaEngine(), RecurrenceEngine(), ScanEngine(), RadixSortEngine(), SortEngine(), HistogramEngine()),
        *(PairwiseEngine(), ScatterEngine(), OrderedEngine(), SimtEngine(), GenericEngine()),
    )
}
"""Every engine by its name, which is what the `engine` attribute of stages and tasks says. In this order they are asked what
they offer: those that take the fewest stages come first."""


def traits_of(name: str) -> Traits:
    """Properties of an engine; of one that there is not, those of the engine that takes anything."""
    return ENGINES[name if name in ENGINES else catch_all()].traits


def catch_all() -> str:
    """The engine that takes anything."""
    return next(name for name, engine in ENGINES.items() if engine.traits.catches_all)


def engine_of(op: ir.Operation, otherwise: str = "") -> str:
    """Whom a stage or a task asks first; where it does not say, `otherwise`, or the engine that takes anything."""
    return ir.StringAttr(op.attributes["engine"]).value if "engine" in op.attributes else otherwise or catch_all()


def for_maps() -> str:
    """The engine of element-wise tasks that passes write: the first that is asked for anything."""
    return next(name for name, engine in ENGINES.items() if engine.traits.general)


def for_updates(kind: str) -> str:
    """The engine of tasks that add rows at indices, "atomic" or "ordered"."""
    return next(name for name, engine in ENGINES.items() if engine.traits.row_updates == kind)


def adds_rows(name: str, space: Space, kind: str, dtype: str, columns: int) -> bool:
    """Whether an engine's tasks put rows of what they make into another tensor; arguments as of `Engine.adds_rows`."""
    return name in ENGINES and ENGINES[name].adds_rows(space, kind, dtype, columns)


def step_of(op: ir.Operation, name: str) -> Steps | None:
    """How an op goes that the blocks of an engine do together in steps (`Engine.step`); None of any other op."""
    return ENGINES[name].step(op) if name in ENGINES else None


def registered(engine: Engine, before: str) -> AbstractContextManager[None]:
    """Have an engine in the registry, in front of another one, while a `with` block runs.

    Raises:
        ArgumentError: there is one of its name, or none of the other's.
    """
    if engine.name in ENGINES:
        raise ArgumentError(f"there is an engine '{engine.name}'")
    if before not in ENGINES:
        raise ArgumentError(f"there is no engine '{before}' to stand in front of; engines are {', '.join(ENGINES)}")
    return _registered(engine, before)


@contextlib.contextmanager
def _registered(engine: Engine, before: str) -> Iterator[None]:
    kept = dict(ENGINES)
    names = list(ENGINES)
    names.insert(names.index(before), engine.name)
    every = {**kept, engine.name: engine}
    ENGINES.clear()
    ENGINES.update({name: every[name] for name in names})
    try:
        yield
    finally:
        ENGINES.clear()
        ENGINES.update(kept)


def _order(requested: str, engines: Mapping[str, Engine]) -> list[str]:
    """Who is asked for a task: the engine that it requests, those that this one hands on to, then the general ones.

    A task that was planned for another machine requests an engine that this one has not: then all are asked.
    """
    asked_next = engines[requested].traits.asked_next if requested in engines else engines if requested else ()
    general = (name for name, engine in engines.items() if engine.traits.general)
    return [name for name in dict.fromkeys([requested, *asked_next, *general]) if name]


def choose(task: TaskView, limits: KernelOptions, engines: Mapping[str, Engine] = ENGINES) -> tuple[Plan, Sequence[Decline]]:
    """The plan of the first engine that takes the task, and why those before it declined.

    Raises:
        CompileError: nobody takes it (the message has every engine's reason), or an engine failed.
    """
    declined: list[Decline] = []
    for name in _order(task.requested_engine, engines):
        if name not in engines:
            if name == task.requested_engine:
                declined.append(Decline(name, "there is no such engine for this target"))
            continue
        with named(f"engine '{name}', planning task '{task.name}',", task.op.location):
            decision = engines[name].plan(task, limits)
        if isinstance(decision, Plan):
            return decision, tuple(declined)
        declined.append(decision)
    reasons = "; ".join(f"{decline.engine}: {decline.reason}" for decline in declined)
    raise CompileError(f"{task.op.location}: no engine takes task '{task.name}' ({reasons})")
