"""Who does a stage: the engines of a machine are asked in order, and the first offer is taken."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kitsune_mlir.codegen.gpu.engines.registry import ENGINES
from kitsune_mlir.codegen.gpu.interface.offer import Candidate, Offer, Offering
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions
from kitsune_mlir.codegen.host.offer import LoopNests
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.machine.target import Target

__all__ = ["offer_for"]

HOST = LoopNests()


def offer_for(candidate: Candidate, machine: Target, without: Collection[str] = ()) -> tuple[Offer | None, list[Decline]]:
    """The offer that is taken, None if there is none; and why those who were asked before declined.

    Args:
        without: names of engines that are not asked.

    Raises:
        ArgumentError: an engine of `without` does not exist.
    """
    if unknown := set(without) - {*ENGINES, HOST.name}:
        raise ArgumentError(f"there is no engine {', '.join(sorted(unknown))}; engines are {', '.join(ENGINES)}")
    options, declined = KernelOptions(workers=machine.workers), list[Decline]()
    engines: Iterable[Offering] = ENGINES.values() if machine.is_gpu else (HOST,)
    for engine in engines:
        if engine.name in without:
            continue
        if candidate.operand_sums and not (engine.traits.operand_sums or engine.traits.catches_all):
            declined.append(Decline(engine.name, "it makes no sum of an operand beside a product"))
            continue
        answer = engine.offer(candidate, machine, options)
        if isinstance(answer, Offer):
            return answer, declined
        declined.append(answer)
    return None, declined
