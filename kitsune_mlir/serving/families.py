"""Which of some programs can share launches, and what these cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kitsune_mlir.runtime.named_inputs import call_of
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.runtime.signature import torch_dtype
from kitsune_mlir.serving.aside import slow
from kitsune_mlir.serving.cost import CostModel, counts_to
from kitsune_mlir.serving.family import Family
from kitsune_mlir.serving.groups import Call

__all__ = ["families_of", "random_call"]

RECORDED = 100e-6
"""Seconds of the host for a call, from which on calls beside the others are recorded."""

CALLS = 5
"""That are measured."""


def families_of(programs: Mapping[str, Program], limit: int, measure: bool) -> list[Family]:
    """Programs by code; a program that was compiled to the same code as another one runs the other's, with its own weights.

    Args:
        limit: most requests of a launch, if the code takes as many.
        measure: whether launches are measured now.

    Raises:
        TargetError: a program cannot run on this machine.
    """
    groups: list[dict[str, Program]] = []
    for name, program in programs.items():
        for group in groups:
            first = next(iter(group.values()))
            if program.shares_code(first):
                group[name] = program
                break
            if _equal(program, first):
                group[name] = first.with_weights({w.name: program.weights[w.name] for w in first.signature.supplied})
                break
        else:
            groups.append({name: program})
    families = [Family(group, limit) for group in groups]
    for family in families if measure else ():
        family.cost = _measured(family)
        family.set_pace()
    for family in slow(families):
        _use_beside(family)
    return families


def _equal(program: Program, other: Program) -> bool:
    """Whether two programs have the same code, and take and give the same."""
    same = (program.target, program.signature, program.device) == (other.target, other.signature, other.device)
    return same and bool(program.artifacts) and program.artifacts == other.artifacts


def _measured(family: Family) -> CostModel:
    """What launches of a family cost. Weights that its programs change stay as they are."""
    names, programs = list(family.programs), list(family.programs.values())
    weights = programs[0].signature.weights
    if family.exclusive:
        names = [weights[n].name for n in programs[0].signature.written if n < len(weights)]
        own = programs[0].weights
        programs = [programs[0].with_weights({n: own[n].clone() for n in names}) for _ in range(family.batch.limit)]

    def launch(count: int) -> float:
        calls = [random_call(programs[0]) for _ in range(count)]
        given, named = [tuple(args) for args, _ in calls], [kwargs for _, kwargs in calls]
        used = [programs[n % len(programs)] for n in range(count)]
        joined: list[Call] = [(names[n % len(names)], args) for n, args in enumerate(given)]
        start = time.perf_counter()
        if count == 1:  # as `Family.outputs` has it
            used[0](*given[0], **named[0])
        elif family.exclusive or any(named):
            family.batch(given, used, named)
        else:
            family.together(joined)
        family.finish()
        return time.perf_counter() - start

    if not family.exclusive and not programs[0].device.startswith("cpu"):
        _use_all(family)
    return CostModel.measured(launch, family.batch.limit)


def _use_all(family: Family) -> None:
    """Have each program in launches of few and of many requests. What a launch needs of its weights, the tensor maps of each
    kernel, is made when it comes for the first time, and takes as long as several launches."""
    import kitsune_mlir.runtime.compiled_call  # noqa: F401  (what imports LLVM would hold up a later call)

    names, programs = list(family.programs), list(family.programs.values())
    given, named = random_call(programs[0])
    args = tuple(given)
    for count in counts_to(family.batch.limit):
        for first in range(0, len(programs), count):
            some = programs[first : first + count]
            if len(some) == 1:
                some[0](*args, **named)
            else:
                family.batch([args] * len(some), some, [named] * len(some))
                if not named:
                    family.together([(name, args) for name in names[first : first + count]])
            family.finish()


def _use_beside(family: Family) -> None:
    """Make calls of a family beside the others, and measure what one takes; where it takes the host long they are recorded."""
    (args, kwargs), name = random_call(next(iter(family.programs.values()))), next(iter(family.programs))

    def taken() -> tuple[float, float]:
        start = time.perf_counter()
        launched = family.beside([name], [args], [kwargs])
        host = time.perf_counter() - start
        if launched.mark is not None:
            launched.mark.wait()
        return host, time.perf_counter() - start

    if min(taken()[0] for _ in range(CALLS)) > RECORDED and not kwargs:
        family.record(args)
    family.cost.seconds[0] = min(taken()[1] for _ in range(CALLS))
    family.set_pace()


def random_call(program: Program) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a call: floats are normal, integers and booleans 0."""
    import torch

    tensors = {
        i.name: torch.zeros(i.shape, dtype=torch_dtype(i.dtype), device=program.device) for i in program.signature.inputs
    }
    for tensor in tensors.values():
        if tensor.is_floating_point():
            tensor.normal_()
    return call_of(program.signature, tensors)
