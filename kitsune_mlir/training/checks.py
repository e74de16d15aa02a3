"""Questions that Python asks of tensors while a step is traced: the answer is taken to be no, and each step finds out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["Answered", "any_of", "kept_where", "noted"]


class Answered(Exception):
    """A question was answered with yes in a step, which has changed nothing: it has to be done by PyTorch."""


@contextlib.contextmanager
def noted() -> Iterator[list[Tensor]]:
    """While it is entered, `if` of a tensor that is traced takes the way of a false one; gives a list of those tensors.

    Most such questions are checks that raise an error (`clip_grad_norm_(error_if_nonfinite=True)`, `gaussian_nll_loss`). It is
    no mode of torch's functions: some of these ask inside of themselves. `tracing_lock` is to be held.
    """
    asked: list[Tensor] = []
    truth = Tensor.__bool__

    def answer(tensor: Tensor) -> bool:
        if not isinstance(tensor, FakeTensor) or tensor.numel() != 1:
            return truth(tensor)
        asked.append(tensor)
        return False

    replace: Callable[..., None] = setattr
    replace(Tensor, "__bool__", answer)
    try:
        yield asked
    finally:
        del Tensor.__bool__  # the base's is there again


def any_of(asked: Sequence[Tensor]) -> Tensor:
    """Whether some of these tensors of one element is true: a tensor without dimensions."""
    return torch.stack([one.detach().reshape(()) != 0 for one in asked]).any()


def kept_where(answered: Tensor, before: Sequence[tuple[Tensor, int, Tensor]]) -> None:
    """Give tensors that have changed their values of before where a question was answered with yes.

    Args:
        before: tensors, the version that each had (-1: it may have changed without another one), and a copy of it.
    """
    for tensor, version, old in before:
        if tensor._version != version:
            tensor.copy_(torch.where(answered, old, tensor.detach()))
