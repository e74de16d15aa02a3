"""A training step that was compiled: called with a batch, it updates what modules and an optimizer hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.report import GraphReport
from kitsune_mlir.dynamo.torch_api import fake_inputs, tracing_context
from kitsune_mlir.errors import UnsupportedError
from kitsune_mlir.frontend.export import without_code
from kitsune_mlir.options import Options
from kitsune_mlir.training.checks import Answered
from kitsune_mlir.training.graphs import has_nan
from kitsune_mlir.training.numbers import Numbers, value_of
from kitsune_mlir.training.optimizers import initialized, number_slots
from kitsune_mlir.training.places import Places
from kitsune_mlir.training.scaling import prepared
from kitsune_mlir.training.traced import Asked, Traced, traced

__all__ = ["CompiledStep"]


class CompiledStep:
    """A step for batches of one kind.

    Args:
        asked: what it does.
        batch: arguments of `asked.forward`, as for a call.
        graphs, options: how its graph is cut and compiled.
        keep: is called with what became of it.

    Attributes:
        answers: how many steps were refused, for what a tensor holds that Python asks (`training.checks`).

    Raises:
        UnsupportedError: with `require_full`: PyTorch would run some of it.
        Exception: whatever PyTorch raises where values decide what a step does.
    """

    def __init__(
        self,
        asked: Asked,
        batch: Sequence[Any],
        graphs: GraphOptions,
        options: Options,
        keep: Callable[[GraphReport], None],
    ):
        self._optimizer, self._update = asked.optimizer, asked.update
        new = initialized(asked.optimizer) if asked.update else []
        if asked.scaler is not None:
            prepared(asked.scaler, asked.optimizer)
        self._places = Places(asked.modules, asked.optimizer, asked.others)
        held = self._places.held()
        self._parameters = [t for t in held if t.requires_grad and t.is_leaf]
        slots = [number_slots(group) for group in asked.optimizer.param_groups] if asked.update else []
        self._with_grad = [p for p in self._parameters if p.grad is not None]
        grads = [p.grad for p in self._parameters]

        def trace(asked: Asked) -> Traced:
            with without_code():
                return traced(asked, self._places, self._parameters, grads, slots, batch)

        made = trace(asked)
        if made.numbers.taken and has_nan(made.graph):  # perhaps of a number whose value was not asked for
            slots = [[] for _ in slots]
            made = trace(asked)
        if made.asks:
            made = trace(dataclasses.replace(asked, checked=True))
            if made.state:
                raise UnsupportedError(
                    "train_step", "it asks whether a tensor is true, and the optimizer makes its state in it"
                )
        self._asks, self.answers, self._repeated = made.asks, 0, made.repeated
        self._numbers = _Slots(made.numbers, slots)
        self._reads = [(read, read.answer(asked.optimizer.param_groups)) for read in made.numbers.reads]
        graded = {id(self._parameters[n]) for n in made.graded}
        for p in new:  # what has no gradient has no state
            if id(p) not in graded:
                asked.optimizer.state.pop(p, None)
        count = len(self._places)
        self._take = self._places.tensors({n for n in made.used if n < count})
        self._rest = [n - count for n in made.used if n >= count]
        self._outputs, self._grads, self._moved, self._state = made.outputs, made.grads, made.moved, made.state
        fixed = range(len(made.used) - len(self._rest))
        with tracing_context(made.graph), torch.no_grad(), without_code():
            self._run = compiled_graph(made.graph, fake_inputs(made.graph), graphs, options, keep, fixed)

    def fits(self, groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether it is for an optimizer's groups with these numbers: its code asked some for their values."""
        return all(read.answer(groups) == answer for read, answer in self._reads)

    def __call__(self, batch: Sequence[Any]) -> Any:
        """What `Asked.forward` gives for a batch, without gradients.

        Raises:
            Answered: it asks whether a tensor is true, and one is; nothing has changed.
        """
        rest = [p.grad for p in self._with_grad] + self._numbers.filled(self._optimizer.param_groups)
        rest += [value for value in batch if isinstance(value, Tensor)]
        with torch.no_grad():
            found = self._run(*self._take(), *[rest[n] for n in self._rest])
        if self._asks and found[-1]:
            self.answers += 1
            raise Answered
        results = iter(found)
        spec, leaves = self._outputs
        made = tree_unflatten([next(results) if leaf is None else leaf for leaf in leaves], spec)
        for n in self._grads:
            self._parameters[n].grad = next(results)
        for n in self._moved:
            self._places.put(n, next(results))
        for n, key in self._state:
            self._optimizer.state[self._parameters[n]][key] = next(results)
        if self._update:
            for p in self._with_grad:
                p.grad = None
        return made


class _Slots:
    """Tensors for the numbers that a graph reads, written again where a number has changed."""

    def __init__(self, numbers: Numbers, slots: Sequence[Sequence[Tensor]]):
        self._all = [slot for some in slots for slot in some]
        self._made = [(slots[group][n], made) for (group, made), n in numbers.taken.items()]
        self._last: list[float | None] = [None] * len(self._made)

    def filled(self, groups: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """All slots, with what they hold for the numbers of these groups."""
        for n, (slot, made) in enumerate(self._made):
            if (value := value_of(made, groups)) != self._last[n]:
                self._last[n] = value
                slot.fill_(value)
        return self._all
