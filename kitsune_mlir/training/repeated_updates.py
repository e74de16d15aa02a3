"""An optimizer's update, traced once for parameters that are alike and repeated for each.

A model has few kinds of parameters: of BERT-base's 202 there are nine. To trace the update of each took half of the time in
which a step was traced.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from kitsune_mlir.dynamo.repeated import RepeatedGraph
from kitsune_mlir.dynamo.torch_api import compiling, traced_whole
from kitsune_mlir.training.graphs import has_nan, only_used
from kitsune_mlir.training.numbers import Numbers
from kitsune_mlir.training.optimizers import check_constants, constants_of, tensor_numbers, updated
from kitsune_mlir.training.tensor_factors import TensorFactors

__all__ = ["update_each"]

_OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
"""PyTorch's that update each parameter by itself."""


class _Together(Exception):
    """A parameter cannot be updated by itself, or not by a graph for many."""


def update_each(optimizer: torch.optim.Optimizer, numbers: Numbers, asked: list[Tensor]) -> Sequence[RepeatedGraph] | None:
    """Trace the update of each parameter that has a gradient, in the trace that is under way.

    Args:
        numbers: of the optimizer's groups, not put there.
        asked: what `checks.noted` has noted.

    Returns:
        What the trace's graph has to hold; None where the optimizer does not update parameters one by one, or alike ones alike:
        then nothing was traced.
    """
    if type(optimizer) not in [getattr(torch.optim, name) for name in _OPTIMIZERS if hasattr(torch.optim, name)]:
        return None
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return None
    taken, reads, noted = dict(numbers.taken), set(numbers.reads), len(asked)
    kinds: dict[Any, tuple[RepeatedGraph, Sequence[int]]] = {}
    updates: list[tuple[Any, list[Tensor]]] = []
    try:
        for n, group in enumerate(optimizer.param_groups):
            for p in [p for p in group["params"] if p.grad is not None]:
                state = optimizer.state.get(p, {})
                tensors = [p, p.grad, *_tensors(state), *_tensors(group), *numbers.slots(n)]
                if any(t.layout is not torch.strided for t in tensors):
                    raise _Together
                kind = (n, *((t.shape, t.stride(), t.dtype, t.device) for t in tensors), *map(str, _others(state)))
                if kind not in kinds:
                    kinds[kind] = _traced(optimizer, numbers, n, state, tensors)
                    if len(asked) > noted:
                        raise _Together
                updates.append((kind, tensors))
    except Exception:  # whatever is wrong with it by itself: what is wrong with all of it is raised by its own trace
        numbers.taken, numbers.reads = taken, reads
        del asked[noted:]
        return None
    for kind, tensors in updates:
        repeated, takes = kinds[kind]
        repeated([tensors[n] for n in takes])
    return [repeated for repeated, _ in kinds.values()]


def _tensors(held: Mapping[Any, Any]) -> list[Tensor]:
    return [value for value in held.values() if isinstance(value, Tensor)]


def _others(held: Mapping[Any, Any]) -> list[Any]:
    return [(key, None if isinstance(value, Tensor) else value) for key, value in held.items()]


def _with(held: Mapping[Any, Any], tensors: Sequence[Tensor]) -> dict[Any, Any]:
    """A dictionary with other tensors, in the order of its own."""
    left = iter(tensors)
    return {key: next(left) if isinstance(value, Tensor) else value for key, value in held.items()}


def _traced(
    optimizer: torch.optim.Optimizer, numbers: Numbers, number: int, state: Mapping[Any, Any], tensors: Sequence[Tensor]
) -> tuple[RepeatedGraph, Sequence[int]]:
    """The update of one parameter of a group, and which of the tensors it takes.

    Args:
        number: of the group.
        state: of the parameter.
        tensors: the parameter, its gradient, those of its state and of the group, and the group's numbers.

    Raises:
        _Together: it makes state, or exchanges a tensor of it, or computes with what is no number.
    """
    groups, states = optimizer.param_groups, optimizer.state
    first, second = 2 + len(_tensors(state)), 2 + len(_tensors(state)) + len(_tensors(groups[number]))

    def update(*flat: Tensor) -> list[Tensor]:
        p, p.grad = flat[0], flat[1]
        own = numbers.of_group(number, groups, flat[second:])
        optimizer.param_groups = [{**group, "params": []} for group in groups]
        optimizer.param_groups[number] = {**_with(groups[number], flat[first:second]), "params": [p]}
        optimizer.state = defaultdict(dict, {p: _with(state, flat[2:first])})
        constants = constants_of(optimizer)
        with tensor_numbers(optimizer, own), TensorFactors():
            updated(optimizer)
        check_constants(constants, constants_of(optimizer))
        if [*map(id, _tensors(optimizer.state[p]))] != [*map(id, flat[2:first])]:
            raise _Together
        p.grad = None
        return []

    try:
        with compiling():  # the trace that is under way sees nothing of this one
            with FakeTensorMode():
                given = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in tensors]
            graph = traced_whole(update, given)
            if has_nan(graph):
                raise _Together
            takes = only_used(graph)
            return RepeatedGraph.of(graph), takes
    finally:
        optimizer.param_groups, optimizer.state = groups, states
