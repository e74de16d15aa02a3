"""A training step that was compiled: called with a batch, it updates what modules and an optimizer hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.report import GraphReport
from kitsune_mlir.dynamo.torch_api import fake_inputs, tracing_context
from kitsune_mlir.options import Options
from kitsune_mlir.training.optimizers import initialized, rate_tensor
from kitsune_mlir.training.places import Places
from kitsune_mlir.training.traced import Asked, traced

__all__ = ["CompiledStep"]


class CompiledStep:
    """A step for batches of one kind.

    Args:
        asked: what it does.
        batch: arguments of `asked.forward`, as for a call.
        graphs, options: how its graph is cut and compiled.
        keep: is called with what became of it.

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
        self._places = Places(asked.modules, asked.optimizer)
        held = self._places.held()
        self._parameters = [t for t in held if t.requires_grad and t.is_leaf]
        self._rates = [rate_tensor(group) for group in asked.optimizer.param_groups] if asked.update else []
        self._last: list[float | None] = [None] * len(self._rates)
        self._with_grad = [p for p in self._parameters if p.grad is not None]
        grads, rates = [p.grad for p in self._parameters], self._rates
        made = traced(asked, self._places, self._parameters, grads, rates, batch)
        graded = {id(self._parameters[n]) for n in made.graded}
        for p in new:  # what has no gradient has no state
            if id(p) not in graded:
                asked.optimizer.state.pop(p, None)
        count = len(self._places)
        self._take = self._places.tensors({n for n in made.used if n < count})
        self._rest = [n - count for n in made.used if n >= count]
        self._outputs, self._grads, self._moved, self._state = made.outputs, made.grads, made.moved, made.state
        fixed = range(len(made.used) - len(self._rest))
        with tracing_context(made.graph), torch.no_grad():
            self._run = compiled_graph(made.graph, fake_inputs(made.graph), graphs, options, keep, fixed)

    def __call__(self, batch: Sequence[Any]) -> Any:
        """What `Asked.forward` gives for a batch, without gradients."""
        rest = [p.grad for p in self._with_grad] + self._new_rates() + [value for value in batch if isinstance(value, Tensor)]
        with torch.no_grad():
            results = iter(self._run(*self._take(), *[rest[n] for n in self._rest]))
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

    def _new_rates(self) -> list[Any]:
        """The groups' learning rates, those that are numbers as tensors."""
        for n, rate in enumerate(self._rates):
            group = self._optimizer.param_groups[n]
            if rate is not None and group["lr"] != self._last[n]:
                self._last[n] = group["lr"]
                rate.fill_(group["lr"])
        return [rate for rate in self._rates if rate is not None]
