"""Folds batch normalisation with fixed statistics into the convolution before it.

`norm(conv(x, w) + b) = conv(x, w·s) + (b - mean)·s + beta` with `s = gamma / sqrt(var + eps)` per output channel, so
the folded model computes nothing for the norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

__all__ = ["fold_batch_norms"]

aten = torch.ops.aten
_CONVOLUTIONS = {aten.conv1d.default, aten.conv2d.default, aten.conv3d.default}


def fold_batch_norms(program: ExportedProgram) -> tuple[str, ...]:
    """Rewrites a program as `torch.export.export` returns it, in place.

    Only a convolution whose one user is the norm, and only where all of the norm's vectors are weights. The new
    weights are constants named after the old ones: `conv1.folded_weight`, `conv1.folded_bias`.

    Returns:
        The names of the new constants.
    """
    before = set(program.constants)
    weights = _weights(program)
    norm: Any
    for norm in list(program.graph.find_nodes(op="call_function", target=aten.batch_norm.default)):
        conv = norm.args[0]
        _, gamma, beta, mean, var, training, _, eps = norm.args[:8]
        if training or conv.op != "call_function" or conv.target not in _CONVOLUTIONS or len(conv.users) != 1:
            continue
        bias = conv.args[2] if len(conv.args) > 2 else None
        read = [conv.args[1], bias, gamma, beta, mean, var]
        if mean is None or var is None or any(n is not None and n not in weights for n in read):
            continue
        values: list[Any] = [None if n is None else weights[n][1] for n in read]
        weight, vectors = values[0], values[1:]
        folded = _fold(weight, *vectors, eps=eps)
        prefix = weights[conv.args[1]][0].rpartition(".")[0]
        nodes = [
            _add_constant(program, f"{prefix}.folded_{part}".removeprefix("."), value, conv.args[1])
            for part, value in zip(("weight", "bias"), folded, strict=True)
        ]
        conv.args = (conv.args[0], *nodes, *conv.args[3:])
        norm.replace_all_uses_with(conv)
        conv.meta["val"] = norm.meta["val"]
        program.graph.erase_node(norm)
    return tuple(name for name in program.constants if name not in before)


def _weights(program: ExportedProgram) -> dict[Any, tuple[str, Tensor]]:
    """The graph's node of each parameter and buffer, with its name and value."""
    nodes = {n.name: n for n in program.graph.find_nodes(op="placeholder")}
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            name = str(spec.target)
            held = program.state_dict if name in program.state_dict else program.constants
            found[nodes[spec.arg.name]] = (name, held[name].detach())
    return found


def _fold(weight: Tensor, *vectors: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The convolution's new weight and bias, computed in f64 and rounded once.

    `vectors` are the convolution's bias, then the norm's gamma, beta, mean and variance; the first three may be None.
    """
    bias, gamma, beta, mean, var = vectors
    assert mean is not None and var is not None
    scale = torch.rsqrt(var.double() + eps)
    if gamma is not None:
        scale = scale * gamma.double()
    shift = (0 if bias is None else bias.double()) - mean.double()
    shift = shift * scale + (0 if beta is None else beta.double())
    folded = weight.double() * scale.reshape(-1, *[1] * (weight.ndim - 1))
    return folded.to(weight.dtype), shift.to(weight.dtype)


def _add_constant(program: ExportedProgram, name: str, value: Tensor, like: fx.Node) -> fx.Node:
    """A new constant of the program, first among its placeholders' constants."""
    while name in program.constants:  # one weight under several norms
        name += "_"
    specs = program.graph_signature.input_specs
    place = next((i for i, s in enumerate(specs) if s.kind is InputKind.USER_INPUT), len(specs))
    placeholders = program.graph.find_nodes(op="placeholder")
    before = placeholders[place] if place < len(placeholders) else next(n for n in program.graph.nodes if n.op != "placeholder")
    with program.graph.inserting_before(before):
        node = program.graph.placeholder("c_" + name.replace(".", "_"))
    node.meta["val"] = like.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
    specs.insert(place, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=node.name), name, None))
    program.constants[name] = value
    return node
