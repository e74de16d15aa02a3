"""The table of engines, and which of them does a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kitsune_mlir.codegen.failures import named
from kitsune_mlir.codegen.gpu.engines.attention.engine import AttentionEngine
from kitsune_mlir.codegen.gpu.engines.chain.engine import ChainEngine
from kitsune_mlir.codegen.gpu.engines.conv.depthwise import DepthwiseEngine
from kitsune_mlir.codegen.gpu.engines.conv.engine import ConvEngine
from kitsune_mlir.codegen.gpu.engines.gemv.engine import GemvEngine
from kitsune_mlir.codegen.gpu.engines.generic.engine import GenericEngine
from kitsune_mlir.codegen.gpu.engines.mma.engine import MmaEngine
from kitsune_mlir.codegen.gpu.engines.pairs.engine import PairsEngine
from kitsune_mlir.codegen.gpu.engines.scatter.deterministic import OrderedEngine
from kitsune_mlir.codegen.gpu.engines.scatter.engine import ScatterEngine
from kitsune_mlir.codegen.gpu.engines.simt.engine import SimtEngine
from kitsune_mlir.codegen.gpu.interface.engine import Engine
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.interface.traits import Traits
from kitsune_mlir.dialects.tile_records import TaskView
from kitsune_mlir.errors import CompileError

__all__ = ["ENGINES", "choose", "traits_of"]

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        *(AttentionEngine(), ChainEngine(), ConvEngine(), MmaEngine(), GemvEngine(), PairsEngine()),
        *(DepthwiseEngine(), ScatterEngine(), OrderedEngine(), SimtEngine(), GenericEngine()),
    )
}
"""Every engine by its name, which is what a task's `engine` attribute says."""


def traits_of(name: str) -> Traits:
    """Properties of an engine; of one that there is not, those of the engine that takes anything."""
    return ENGINES[name if name in ENGINES else _catches_all()].traits


def _catches_all() -> str:
    return next(name for name, engine in ENGINES.items() if engine.traits.catches_all)


def _order(requested: str, engines: Mapping[str, Engine]) -> list[str]:
    """Who is asked for a task: the engine that it requests, those that this one hands on to, then the general ones."""
    asked_next = engines[requested].traits.asked_next if requested in engines else ()
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
