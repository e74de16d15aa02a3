"""Decompositions of composite operators, put in their place before autograd sees them.

AOTAutograd's own table comes too late for these: by then `linear` is a product of flattened rows, and attention one of
PyTorch's kernels, whose backward is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._C import DispatchKey

from kitsune_mlir.dynamo.torch_api import is_transformed
from kitsune_mlir.frontend.aten import composites
from kitsune_mlir.frontend.python_kernels import kernels_restored

__all__ = ["composites_replaced"]

_KEY = DispatchKey.CompositeImplicitAutograd


@contextmanager
def composites_replaced(training: bool, attention_dropout: bool = False) -> Iterator[None]:
    """While a model is traced (by a thread that holds Dynamo's lock), composite operators are traced as what they decompose to.

    Args:
        training: whether gradients have to go through what is traced.
        attention_dropout: whether that of attention is part of it where it can be.
    """
    replaced = composites(training, attention_dropout)
    with kernels_restored(replaced):
        for op, how in replaced.items():
            op.py_kernels[_KEY] = _with_fallback(op, how)
        yield


def _with_fallback(op: Any, how: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        # Under `torch.func` the layout of results is what the operators' batching rules make it.
        out = NotImplemented if any(map(is_transformed, args)) else how(*args, **kwargs)
        return op._op_dk(_KEY, *args, **kwargs) if out is NotImplemented else out

    return run
