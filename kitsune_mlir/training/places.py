"""Where a training step finds its tensors: entries of modules' dictionaries, and of an optimizer's."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Places", "exchanged"]


class Places:
    """Numbered places of tensors; a tensor that is held at several has one place.

    Args:
        modules: that hold parameters and buffers.
        optimizer: that holds parameters and state. It is asked for its dictionaries in each call: `load_state_dict` makes new
            ones.
        others: dictionaries of others that hold tensors.
    """

    def __init__(self, modules: Sequence[nn.Module], optimizer: torch.optim.Optimizer, others: Sequence[dict[str, Any]] = ()):
        self._optimizer = optimizer
        held: dict[int, tuple[Any, Any]] = {}
        for module in modules:
            for entries in (module._parameters, module._buffers):
                for name, tensor in entries.items():
                    if tensor is not None:
                        held.setdefault(id(tensor), (entries, name))
        for group in optimizer.param_groups:
            for p in group["params"]:
                held.setdefault(id(p), ((p,), 0))
        for entries in others:
            for name, value in entries.items():
                if isinstance(value, Tensor):
                    held.setdefault(id(value), (entries, name))
        self._held = list(held.values())
        self._state = [
            (p, key) for p, entries in optimizer.state.items() for key, v in entries.items() if isinstance(v, Tensor)
        ]
        self._groups = [
            (n, key) for n, group in enumerate(optimizer.param_groups) for key, v in group.items() if isinstance(v, Tensor)
        ]

    def __len__(self) -> int:
        return len(self._held) + len(self._state) + len(self._groups)

    def tensors(self, numbers: Container[int] | None = None) -> Callable[[], list[Tensor]]:
        """What gives the tensors that are there, in order; of all places, or some."""
        state_from, groups_from = len(self._held), len(self._held) + len(self._state)
        wanted = range(len(self)) if numbers is None else numbers
        held = [place for n, place in enumerate(self._held) if n in wanted]
        state: dict[Tensor, list[Any]] = {}  # keys by parameter
        for p, key in [place for n, place in enumerate(self._state, state_from) if n in wanted]:
            state.setdefault(p, []).append(key)
        groups = [place for n, place in enumerate(self._groups, groups_from) if n in wanted]

        order, several = list(map(id, state)), all(len(keys) > 1 for keys in state.values())
        take_each = [itemgetter(*keys) for keys in state.values()]

        def taken() -> list[Tensor]:
            found, states = [entries[key] for entries, key in held], self._optimizer.state
            if several and list(map(id, states)) == order:  # without asking for each parameter's hash
                for entries, take in zip(states.values(), take_each, strict=True):
                    found += take(entries)
            else:
                for p, keys in state.items():
                    entries = states[p]
                    found += [entries[key] for key in keys]
            return found + [self._optimizer.param_groups[n][key] for n, key in groups]

        return taken

    def held(self) -> list[Tensor]:
        """Those of modules, and the optimizer's parameters; they come first."""
        return [entries[key] for entries, key in self._held]

    def put(self, number: int, tensor: Tensor) -> None:
        """Put a tensor in a module's place."""
        entries, key = self._held[number]
        entries[key] = tensor


def _replaced(held: Mapping[Any, Any], tensors: Mapping[int, Tensor]) -> dict[Any, Any]:
    return {key: tensors.get(id(value), value) if isinstance(value, Tensor) else value for key, value in held.items()}


@contextlib.contextmanager
def exchanged(
    modules: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    others: Sequence[dict[str, Any]],
    tensors: Mapping[int, Tensor],
) -> Iterator[None]:
    """While it is entered, modules, an optimizer and others hold other tensors, by the `id` of those that they stand for.

    The optimizer's groups and state are dictionaries of its own meanwhile; what is done to them is gone afterwards.
    """
    before: list[tuple[Any, Any]] = []
    for module in modules:
        lists = [value for value in vars(module).values() if type(value) is list and any(id(v) in tensors for v in value)]
        for held in (module._parameters, module._buffers):
            before.append((held, dict(held)))
            held.update(_replaced(held, tensors))
        for held in lists:  # of parameters, as recurrent modules have
            before.append((held, list(held)))
            held[:] = [tensors.get(id(value), value) for value in held]
    for entries in others:
        before.append((entries, dict(entries)))
        entries.update(_replaced(entries, tensors))
    groups, state = optimizer.param_groups, optimizer.state
    optimizer.param_groups = [_replaced(group, tensors) for group in groups]
    for group in optimizer.param_groups:
        group["params"] = [tensors.get(id(p), p) for p in group["params"]]
    optimizer.state = defaultdict(dict, {tensors.get(id(p), p): _replaced(held, tensors) for p, held in state.items()})
    try:
        yield
    finally:
        optimizer.param_groups, optimizer.state = groups, state
        for held, old in before:
            held.clear()
            held.extend(old) if isinstance(held, list) else held.update(old)
