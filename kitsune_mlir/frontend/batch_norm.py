"""Folds batch normalisation with fixed statistics into the convolution before it.

`norm(conv(x, w) + b) = conv(x, w·s) + (b - mean)·s + beta` with `s = gamma / sqrt(var + eps)` per output channel. The new
weight and bias are computed from weights alone, so they leave the program (`frontend.derived`), which computes nothing for
the norm.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    for norm, place in list(_norms(program.graph)):
        conv, gamma, beta, mean, var, *training, _, eps = norm.args[:8]
        if any(training) or not _is_convolution(conv) or len(conv.users) != 1:
            continue
        bias = conv.args[2] if len(conv.args) > 2 else None
        read = [conv.args[1], bias, gamma, beta, mean, var]
        if mean is None or var is None or any(n is not None and n.name not in fixed for n in read):
            continue
        with program.graph.inserting_before(conv):
            folded = _fold(conv.args[1], bias, gamma, beta, mean, var, eps)
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


def _fold(weight: fx.Node, bias, gamma, beta, mean: fx.Node, var: fx.Node, eps: float) -> tuple[fx.Node, fx.Node]:
    """The convolution's new weight and bias, computed in f64 and rounded once. Bias, gamma and beta may be None."""
    dtype = weight.meta["val"].dtype
    scale = call_with_value(aten.rsqrt.default, call_with_value(aten.add.Tensor, _cast(var, torch.float64), eps))
    if gamma is not None:
        scale = call_with_value(aten.mul.Tensor, scale, _cast(gamma, torch.float64))
    shift = call_with_value(aten.neg.default, _cast(mean, torch.float64))
    if bias is not None:
        shift = call_with_value(aten.add.Tensor, shift, _cast(bias, torch.float64))
    shift = call_with_value(aten.mul.Tensor, shift, scale)
    if beta is not None:
        shift = call_with_value(aten.add.Tensor, shift, _cast(beta, torch.float64))
    column = call_with_value(aten.view.default, scale, [-1, *[1] * (weight.meta["val"].ndim - 1)])
    scaled = call_with_value(aten.mul.Tensor, _cast(weight, torch.float64), column)
    return _cast(scaled, dtype), _cast(shift, dtype)


def _cast(value: fx.Node, dtype: torch.dtype) -> fx.Node:
    """In the operator that ATen's own copy decomposes to: there is a shape of its own for each width of a model."""
    return call_with_value(torch.ops.prims.convert_element_type.default, value, dtype)
