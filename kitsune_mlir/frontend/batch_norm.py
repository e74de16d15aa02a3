"""Folds batch normalisation with fixed statistics into the convolution before it.

`norm(conv(x, w) + b) = conv(x, w·s) + (b - mean)·s + beta` with `s = gamma / sqrt(var + eps)` per output channel. The new
weight and bias are computed from weights alone, so they leave the program (`frontend.derived`), which computes nothing for
the norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from kitsune_mlir.frontend.aten import TracedProgram
from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["fold_batch_norms"]

aten = torch.ops.aten
_CONVOLUTIONS = {aten.conv1d.default, aten.conv2d.default, aten.conv3d.default}
_TRACED = aten._native_batch_norm_legit_no_training.default
"""The norm as AOTAutograd leaves it, beside `aten.convolution`."""


def fold_batch_norms(program: TracedProgram) -> None:
    """Rewrites a program as `torch.export.export` returns it, or AOTAutograd, in place.

    Only a convolution whose one user is the norm, and only where all of the norm's vectors are weights that stay as they are.
    """
    signature = program.graph_signature
    changed = {spec.target for spec in signature.output_specs if spec.kind is not OutputKind.USER_OUTPUT}
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    fixed = {spec.arg.name for spec in signature.input_specs if spec.kind in kinds and spec.target not in changed}
    norm: Any
    call = _caller()
    for norm, place in list(_norms(program.graph)):
        conv, gamma, beta, mean, var, *training, _, eps = norm.args[:8]
        if any(training) or not _is_convolution(conv) or len(conv.users) != 1:
            continue
        bias = conv.args[2] if len(conv.args) > 2 else None
        read = [conv.args[1], bias, gamma, beta, mean, var]
        if mean is None or var is None or any(n is not None and n.name not in fixed for n in read):
            continue
        with program.graph.inserting_before(conv):
            folded = _fold(call, conv.args[1], bias, gamma, beta, mean, var, eps)
        conv.args = (conv.args[0], *folded, *conv.args[3:])
        place.replace_all_uses_with(conv)
        conv.meta["val"] = place.meta["val"]
        for node in dict.fromkeys((place, norm)):
            program.graph.erase_node(node)


def _norms(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Norms, and the node whose value is normalised."""
    for norm in graph.find_nodes(op="call_function", target=aten.batch_norm.default):
        yield norm, norm
    for norm in graph.find_nodes(op="call_function", target=_TRACED):
        if [user.args[1] for user in norm.users] == [0]:
            yield norm, next(iter(norm.users))


def _is_convolution(node: fx.Node) -> bool:
    transposed = node.target is aten.convolution.default and node.args[6]
    return node.target in (*_CONVOLUTIONS, aten.convolution.default) and not transposed


def _fold(
    call: Callable[..., fx.Node], weight: fx.Node, bias: Any, gamma: Any, beta: Any, mean: fx.Node, var: fx.Node, eps: float
) -> tuple[fx.Node, fx.Node]:
    """The convolution's new weight and bias, computed in f64 and rounded once. Bias, gamma and beta may be None."""

    def cast(value: fx.Node, to: torch.dtype = torch.float64) -> fx.Node:
        # The operator that ATen's own copy decomposes to: that has a shape of its own for each width of a model.
        return call(torch.ops.prims.convert_element_type.default, value, to)

    dtype = weight.meta["val"].dtype
    scale = call(aten.rsqrt.default, call(aten.add.Tensor, cast(var), eps))
    if gamma is not None:
        scale = call(aten.mul.Tensor, scale, cast(gamma))
    shift = call(aten.neg.default, cast(mean))
    if bias is not None:
        shift = call(aten.add.Tensor, shift, cast(bias))
    shift = call(aten.mul.Tensor, shift, scale)
    if beta is not None:
        shift = call(aten.add.Tensor, shift, cast(beta))
    column = call(aten.view.default, scale, [-1, *[1] * (weight.meta["val"].ndim - 1)])
    return cast(call(aten.mul.Tensor, cast(weight), column), dtype), cast(shift, dtype)


def _caller() -> Callable[..., fx.Node]:
    """`call_with_value`, but of values of one size PyTorch is asked once what an operator gives: a model has many norms."""
    known: dict[str, Any] = {}

    def call(target: Any, *args: Any) -> fx.Node:
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        facts = [(v.shape, v.stride(), v.dtype, v.device) if isinstance(v, torch.Tensor) else v for v in values]
        key = repr((target, facts))
        if key not in known:
            node = call_with_value(target, *args)
            known[key] = node.meta["val"]
            return node
        node = args[0].graph.call_function(target, args)
        node.meta["val"] = known[key]
        return node

    return call
