"""A training step as one graph of ATen's operators, which changes its inputs in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten

from kitsune_mlir.dynamo.above_autograd import composites_replaced
from kitsune_mlir.dynamo.repeated import RepeatedGraph
from kitsune_mlir.dynamo.torch_api import traced_whole, tracing_lock
from kitsune_mlir.errors import UnsupportedError
from kitsune_mlir.frontend.gradients.whole import kept_whole
from kitsune_mlir.training.checks import any_of, kept_where, noted
from kitsune_mlir.training.cumulative_statistics import cumulative_statistics
from kitsune_mlir.training.graphs import only_used
from kitsune_mlir.training.numbers import Numbers
from kitsune_mlir.training.optimizers import check_constants, constants_of, tensor_numbers, updated
from kitsune_mlir.training.places import Places, exchanged
from kitsune_mlir.training.repeated_updates import update_each
from kitsune_mlir.training.scaling import next_scale, skipping, unscaled
from kitsune_mlir.training.tensor_factors import TensorFactors

__all__ = ["Asked", "Traced", "traced"]


@dataclasses.dataclass(frozen=True)
class Asked:
    """A step.

    Attributes:
        modules: that hold tensors, all of them.
        forward: of a batch gives the loss, alone or first in a tuple; None where gradients are there already.
        optimizer: with its state, as far as there can be some before an update.
        update: whether the optimizer updates parameters; else gradients are left in `grad`.
        scaler: that scales the loss, and has its tensors.
        before_update: is called between gradients and update; what it does to gradients is traced.
        attention_dropout: whether that of attention is part of it where it can be.
        checked: whether it changes nothing where it asks a tensor a question and the answer is yes (`training.checks`).
    """

    modules: Sequence[nn.Module]
    forward: Callable[..., Any] | None
    optimizer: torch.optim.Optimizer
    update: bool
    scaler: torch.amp.GradScaler | None = None
    before_update: Callable[[], Any] | None = None
    attention_dropout: bool = False
    checked: bool = False

    @property
    def others(self) -> Sequence[dict[str, Any]]:
        """Dictionaries that hold tensors beside those of modules and the optimizer."""
        return () if self.scaler is None else (vars(self.scaler),)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A graph of a step.

    Its inputs are tensors at places, then gradients, slots of numbers and a batch's tensors; its outputs the tensors that
    `forward` gave, then new gradients, and tensors for `moved` and `state`, and with `asks` whether an answer was yes.

    Attributes:
        graph: of ATen's operators; it changes inputs in place.
        used: numbers of the inputs, as given, that it reads; it has no others.
        outputs: how what `forward` gave is nested, and its leaves: None where a tensor stands.
        graded: numbers of the parameters that got a gradient.
        grads: of these, those whose gradient is an output.
        moved: places of modules that hold another tensor afterwards.
        state: of the optimizer, tensors that were not there: the number of a parameter, and the key.
        numbers: of the optimizer, those that the graph reads from slots, and those that it is made for.
        asks: whether Python asked a tensor whether it is true.
        repeated: graphs that some nodes stand for, which are to be held as long as the graph is.
    """

    graph: fx.GraphModule
    used: Sequence[int]
    outputs: tuple[TreeSpec, Sequence[Any]]
    graded: Sequence[int]
    grads: Sequence[int]
    moved: Sequence[int]
    state: Sequence[tuple[int, Any]]
    numbers: Numbers
    asks: bool
    repeated: Sequence[RepeatedGraph]


def traced(
    asked: Asked,
    places: Places,
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    slots: Sequence[Sequence[Tensor]],
    batch: Sequence[Any],
) -> Traced:
    """The graph of a step.

    Args:
        asked: what it does.
        places: where modules and the optimizer hold tensors.
        parameters: those of the tensors that gradients are asked for.
        grads: of each parameter, what its gradient is added to.
        slots: for each group of the optimizer tensors for its numbers.
        batch: arguments of `forward`; what is no tensor among them is a constant.

    Raises:
        UnsupportedError: the update changes what is no tensor, or a tensor has two parts in the step.
        Exception: whatever PyTorch raises where values decide what a step does.
    """
    held = places.tensors()()
    batch_tensors = [value for value in batch if isinstance(value, Tensor)]
    if any(value is tensor for value in batch_tensors for tensor in held):
        raise UnsupportedError("train_step", "no tensor of a batch is the model's or the optimizer's own")
    found: dict[str, Any] = {"numbers": Numbers(asked.optimizer.param_groups, slots), "repeated": ()}

    def step(*flat: Tensor) -> list[Tensor]:
        left = iter(flat)
        by_id = {id(tensor): next(left) for tensor in held}
        own_grads = [None if g is None else next(left) for g in grads]
        own_slots = [[next(left) for _ in some] for some in slots]
        own_batch = [next(left) if isinstance(b, Tensor) else b for b in batch]
        leaves = [by_id[id(p)] for p in parameters]
        for leaf, grad, original in zip(leaves, own_grads, parameters, strict=True):
            # What it held is let go after an update; else it is changed in place.
            leaf.grad = grad.clone() if grad is not None and asked.update else grad
            for hook in (original._backward_hooks or {}).values():
                leaf.register_hook(hook)
            for hook in (getattr(original, "_post_accumulate_grad_hooks", None) or {}).values():
                leaf.register_post_accumulate_grad_hook(hook)
        known = {id(tensor) for tensor in flat}
        silent = {id(by_id[id(value)]) for value in _versionless(asked) if id(value) in by_id}
        before = [(t, -1 if id(t) in silent else t._version, t.clone()) for t in flat] if asked.checked else []
        with noted() as asks, exchanged(asked.modules, asked.optimizer, asked.others, by_id):
            made = _with_gradients(asked, own_batch)
            gradients = [leaf.grad for leaf in leaves]
            if asked.update:
                found["numbers"] = Numbers(asked.optimizer.param_groups, own_slots)
                found["repeated"] = _update(asked, found["numbers"], asks)
            number = {id(leaf): n for n, leaf in enumerate(leaves)}
            state = {
                (number[id(p)], key): value
                for p, entries in asked.optimizer.state.items()
                for key, value in entries.items()
                if isinstance(value, Tensor) and id(value) not in known
            }
            moved = {n: now for n, now in enumerate(places.held()) if id(now) not in known and now is not held[n]}
        for leaf in leaves:
            leaf.grad = None
        leaves_out, spec = tree_flatten(made)
        graded = [n for n, gradient in enumerate(gradients) if gradient is not None]
        new = [n for n in graded if not asked.update and id(gradients[n]) not in known]
        found.update(outputs=(spec, [None if isinstance(value, Tensor) else value for value in leaves_out]))
        found.update(graded=graded, grads=new, moved=list(moved), state=list(state), asks=bool(asks))
        results = [
            *(v for v in leaves_out if isinstance(v, Tensor)),
            *(gradients[n] for n in new),
            *moved.values(),
            *state.values(),
            *([any_of(asks)] if asks else []),
        ]
        if before and asks:
            kept_where(results[-1], before)
        return [value.detach() for value in results]

    flat = [*held, *(g for g in grads if g is not None), *(t for some in slots for t in some), *batch_tensors]
    with tracing_lock, composites_replaced(True, asked.attention_dropout), kept_whole(), cumulative_statistics():
        graph = traced_whole(step, flat)
    return Traced(graph, only_used(graph), **found)


def _versionless(asked: Asked) -> list[Tensor]:
    """What changes without another version of the tensor: what norms hold of their batches, and a scaler."""
    tracking = [module for module in asked.modules if module.training and getattr(module, "track_running_stats", False)]
    held = [value for module in tracking for value in module._buffers.values()]
    return [value for value in (*held, *(v for some in asked.others for v in some.values())) if isinstance(value, Tensor)]


def _with_gradients(asked: Asked, batch: Sequence[Any]) -> Any:
    """Forward and backward; what the forward gave."""
    if asked.forward is None:
        return ()
    with torch.enable_grad():
        made = asked.forward(*batch)
        loss = made[0] if isinstance(made, tuple | list) else made
        (loss if asked.scaler is None else asked.scaler.scale(loss)).backward()
    return made


def _update(asked: Asked, numbers: Numbers, asks: list[Tensor]) -> Sequence[RepeatedGraph]:
    """What is done with gradients; graphs that nodes of the trace stand for."""
    optimizer, scaler = asked.optimizer, asked.scaler
    graded = {id(p): p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
    infinite = None if scaler is None else unscaled(scaler, list(graded.values()))
    if asked.before_update is not None:
        asked.before_update()
    constants = constants_of(optimizer)
    with skipping(infinite, optimizer):
        repeated = update_each(optimizer, numbers, asks)
        if repeated is None:
            with tensor_numbers(optimizer, numbers), TensorFactors():
                updated(optimizer)
            check_constants(constants, constants_of(optimizer))
    if scaler is not None and infinite is not None:
        next_scale(scaler, infinite)
    return repeated or ()
