"""What is done around a call of a compiled graph: gradients and autocast are off in it, and PyTorch makes it where it must."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from kitsune_mlir.dynamo.torch_metadata import CHANGING
from kitsune_mlir.runtime.arguments import WithoutMemory
from kitsune_mlir.sized.part import OtherStrides

__all__ = ["as_inference", "or_eager"]


def as_inference(
    run: Callable[..., Any],
    changing: Sequence[tuple[int, Collection[int]]] = (),
    written: Sequence[int] = (),
    eager: Callable[..., Any] | None = None,
    strict: bool = True,
) -> Callable[..., Any]:
    """A compiled inference graph as AOTAutograd calls one: without gradients, and without autocast if that is on now.

    Args:
        changing: numbers of the outputs, and dimensions of these, that have other sizes in other calls: Dynamo is told, so that
            it does not take one for a size that stays, as a cache that grows is an input of the next call.
        written: numbers of the inputs that it changes.
        eager, strict: as of `or_eager`, which makes one function of both: each is slow to call while Dynamo's hook is there.
    """
    autocast = torch._C._is_any_autocast_enabled()
    told = [(n, {*dims}) for n, dims in changing]

    def call(*args: Any) -> Any:
        if eager is not None and forward_ad._current_level >= 0:
            return eager(*args)
        if written:
            torch.autograd.graph.increment_version([args[n] for n in written])
        outputs: Any = None
        grad = torch.is_grad_enabled()
        if grad:
            torch._C._set_grad_enabled(False)
        try:
            if autocast:
                with torch._C._DisableAutocast():
                    outputs = run(*args)
            else:
                outputs = run(*args)
        except (OtherStrides, WithoutMemory):
            if eager is None or strict:
                raise
        finally:
            if grad:
                torch._C._set_grad_enabled(True)
        if outputs is None:
            assert eager is not None
            return eager(*args)
        for n, dims in told:
            setattr(outputs[n], CHANGING, dims.copy())
        return outputs

    setattr(call, _WITH_EAGER, functools.partial(as_inference, run, changing, written))
    return call


_WITH_EAGER = "_kitsune_with_eager"
"""Of a function of `as_inference`, what makes one of `or_eager` of it."""


def or_eager(run: Callable[..., Any], eager: Callable[..., Any], strict: bool) -> Callable[..., Any]:
    """A compiled graph, or the graph in PyTorch where that is not what it was compiled for: where tangents are taken along
    (`torch.autograd.forward_ad`), which it has none of, where weights have other strides, and where AOTAutograd took for plain
    tensors what has no memory.

    Args:
        strict: what `run` raises is raised, as it may have written to inputs before.
    """
    if (made := getattr(run, _WITH_EAGER, None)) is not None:
        return made(eager, strict)

    def call(*args: Any) -> Any:
        if forward_ad._current_level >= 0:
            return eager(*args)
        try:
            return run(*args)
        except (OtherStrides, WithoutMemory):
            if strict:
                raise
            return eager(*args)

    return call
