"""Functions and their gradients as AOTAutograd has them, compiled for the host; the operators that PyTorch's gradients call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import kitsune_mlir
from kitsune_mlir.frontend.decompositions import decomposition_table
from kitsune_mlir.frontend.gradients.whole import kept_whole
from test.numerics.compare import problems, widened

HOST = {"threads": 1}


def wanted(tensor: Tensor) -> bool:
    """Whether there is a gradient of an argument or result."""
    return isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex())


def with_gradients(function: Callable[..., Any], args: Sequence[Any], tangents: Sequence[Tensor]) -> list[Tensor]:
    """Results of a function, and the gradients of its arguments."""
    args = [arg.detach().requires_grad_() if wanted(arg) else arg for arg in args]
    with torch.enable_grad():
        results = [leaf for leaf in pytree.tree_leaves(function(*args)) if isinstance(leaf, Tensor)]
        roots = [result for result in results if result.requires_grad]
        grads = torch.autograd.grad(roots, [arg for arg in args if wanted(arg)], tangents, allow_unused=True)
    return [result.detach() for result in results] + [grad for grad in grads if grad is not None]


def runs_in_pytorch(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether PyTorch has a function and its gradient in this type, on the host."""
    try:
        with_gradients(function, args, tangents_of(function, args))
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        return False
    return True


def tangents_of(function: Callable[..., Any], args: Sequence[Any]) -> list[Tensor]:
    """Random ones, one for each result that has a gradient."""
    args = [arg.detach().requires_grad_() if wanted(arg) else arg for arg in args]
    leaves = pytree.tree_leaves(function(*args))
    return [torch.randn_like(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]


def graph_of(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Forward and backward in one graph of arguments and tangents, decomposed below autograd."""
    # torch.export, through which the graph goes here, cannot trace this one again.
    table = {op: way for op, way in decomposition_table().items() if "squeeze" not in str(op)}
    args = tuple(arg.detach().clone().requires_grad_() if wanted(arg) else arg for arg in args)

    def listed(*args: Any) -> list[Tensor]:
        return [leaf.clone() for leaf in pytree.tree_leaves(function(*args)) if isinstance(leaf, Tensor)]  # no views

    with kept_whole():
        return aot_export_joint_simple(listed, args, trace_joint=True, decompositions=table)


def wrong(function: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """What is wrong with a function's compiled results and gradients."""
    tangents = tangents_of(function, args)
    given = [*args, *tangents]
    graph = torch.fx.Interpreter(graph_of(function, args))

    def joint(*given: Any) -> Any:
        return graph.run(*given, enable_io_processing=False)

    with torch.no_grad():
        program = kitsune_mlir.compile(joint, given, target="host", options=HOST)
    got = [leaf for leaf in pytree.tree_leaves(program(*given)) if leaf is not None]
    right = with_gradients(function, [widened(arg) for arg in args], [widened(t) for t in tangents])
    return problems(got, right, with_gradients(function, args, tangents))


class Called(TorchDispatchMode):
    """Keeps the calls of operators whose names end in `_backward`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """The operator itself."""
        if func._schema.name.endswith("_backward"):
            self.calls.append((func, args, dict(kwargs or {})))
        return func(*args, **(kwargs or {}))


def calls_of(function: Callable[..., Any], args: Sequence[Any]) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Operator, arguments and keywords of each call that a function's gradient makes of an operator named `..._backward`."""
    tangents = tangents_of(function, args)
    with Called() as called:
        with_gradients(function, args, tangents)
    return called.calls


def wrong_alone(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """What is wrong with a call compiled by itself, beside the same call in float64; arguments given by name stay."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    inputs = [leaves[n].detach() for n in places]
    by_place = len(pytree.tree_leaves(args))

    def call(*tensors: Tensor) -> list[Tensor]:
        filled = list(leaves)
        for n, tensor in zip(places, tensors, strict=True):
            filled[n] = tensor
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return [leaf for leaf in pytree.tree_leaves(op(*args, **kwargs)) if isinstance(leaf, Tensor)]

    with torch.no_grad():
        got = kitsune_mlir.compile(call, inputs, target="host", options=HOST)(*inputs)
        wide = [widened(t) if n < by_place else t for n, t in zip(places, inputs, strict=True)]
        return problems(got, call(*wide), call(*inputs))
