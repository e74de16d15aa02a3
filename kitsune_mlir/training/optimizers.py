"""An optimizer before and while its update is traced: state that is there from the start, numbers that are tensors."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.dynamo.torch_api import compile_session
from kitsune_mlir.errors import UnsupportedError
from kitsune_mlir.training.held_numbers import held_numbers
from kitsune_mlir.training.numbers import SLOTS, Numbers, is_number, numbers_in

__all__ = ["check_constants", "constants_of", "group_constants", "initialized", "number_slots", "tensor_numbers", "updated"]


def initialized(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Give parameters the state that an optimizer would give them in their first update; what is new.

    State that cannot be had before an update is left to it: then the first step is another program than the later ones.

    Returns:
        The parameters that had no state before.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    new = [p for p in parameters if not optimizer.state.get(p)]
    for group in optimizer.param_groups:
        on_gpu = all(p.is_cuda for p in group["params"])
        if on_gpu and "capturable" in group and group["params"]:
            group["capturable"] = True  # its counts of steps are tensors of the device then, as torch.compile makes them
            for state in [optimizer.state[p] for p in group["params"] if p in optimizer.state]:
                state.update({key: value.to(group["params"][0].device) for key, value in state.items() if _counts(key, value)})
    if not new:
        return []
    before = [(p, p.grad) for p in parameters]
    try:
        for p in parameters:
            p.grad = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape) if not optimizer.state.get(p) else None
        make = getattr(optimizer, "_init_group", lambda *_: None)
        for group in optimizer.param_groups:
            make(group, *([] for _ in list(inspect.signature(make).parameters)[1:]))
    finally:
        for p, grad in before:
            p.grad = grad
    if type(optimizer) is torch.optim.SGD:
        _with_momenta(optimizer, new)
    for p in [p for p in new if p in optimizer.state and not optimizer.state[p]]:
        del optimizer.state[p]
    return new


def _with_momenta(optimizer: torch.optim.SGD, new: Sequence[Tensor]) -> None:
    """SGD begins with the gradient itself, which is the momentum of zeros and it as long as nothing dampens it."""
    for group in optimizer.param_groups:
        if group["momentum"] != 0 and group["dampening"] == 0:
            for p in group["params"]:
                if any(p is one for one in new):
                    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)


def _counts(key: Any, value: Any) -> bool:
    """Whether an entry of an optimizer's state counts its updates on the host."""
    return key == "step" and isinstance(value, Tensor) and value.dim() == 0 and value.device.type == "cpu"


def group_constants(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    """What an optimizer's groups hold beside parameters and numbers; of tensors, that there is one."""
    return [
        tuple([(key, _constant(value)) for key, value in group.items() if key not in _OTHER and not is_number(key, value)])
        for group in optimizer.param_groups
    ]


_OTHER = ("params", "capturable", "fused")


def _constant(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_constant, value))
    return float if isinstance(value, float) else Tensor if isinstance(value, Tensor) else value


def constants_of(optimizer: torch.optim.Optimizer) -> list[tuple[Any, ...]]:
    """These, and what is no tensor in its state."""
    state = [
        tuple((key, value) for key, value in held.items() if not isinstance(value, Tensor)) for held in optimizer.state.values()
    ]
    return group_constants(optimizer) + state


def check_constants(before: Sequence[Any], after: Sequence[Any]) -> None:
    """See that an update did not change what is no tensor, which a traced one would not change.

    Raises:
        UnsupportedError: it did.
    """
    for old, new in zip(before, after, strict=False):
        for (key, value), (_, now) in zip(old, new, strict=False):
            if value is not now and value != now:
                raise UnsupportedError(
                    "train_step", f"the optimizer keeps '{key}' as a number, {value}, that its update changes"
                )


def number_slots(group: dict[str, Any]) -> list[Tensor]:
    """Tensors without a value for the numbers of a group, and what its update computes from them.

    They have as many digits as PyTorch computes with: f64, where the update's numbers are Python's, else f32.
    """
    if not group["params"] or not any(True for _ in numbers_in(group)):
        return []
    device, wide = group["params"][0].device, any(p.dtype == torch.float64 for p in group["params"])
    kind = torch.float64 if device.type == "cpu" or wide else torch.float32
    return [torch.empty((), dtype=kind, device=device) for _ in range(SLOTS)]


@contextlib.contextmanager
def tensor_numbers(optimizer: torch.optim.Optimizer, numbers: Numbers) -> Iterator[None]:
    """While it is entered, a graph's inputs stand for numbers; counts of steps are f64 where PyTorch computes with Python's.

    Args:
        optimizer: its groups and state are changed.
        numbers: of its groups.

    Raises:
        UnsupportedError: the update changed one.
    """
    counts: list[tuple[dict[str, Any], Tensor]] = []
    numbers.put(optimizer.param_groups)
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        if group.get("fused"):
            group["fused"] = False  # PyTorch cannot trace those of the host
        for p in [p for p in group["params"] if p.grad is not None]:
            state = optimizer.state.get(p, {})
            if _counts("step", state.get("step")) and p.device.type == "cpu":
                counts.append((state, state["step"]))
                state["step"] = state["step"].double()
    yield
    if (key := numbers.changed_in(optimizer.param_groups)) is not None:
        raise UnsupportedError("train_step", f"the optimizer's update changes its number '{key}', which a program would not")
    for state, count in counts:
        state["step"] = count.copy_(state["step"])


def updated(optimizer: torch.optim.Optimizer) -> None:
    """Call an optimizer's update so that it computes with tensors, whose values are not known."""
    with compile_session(), held_numbers(optimizer):
        optimizer.step()
