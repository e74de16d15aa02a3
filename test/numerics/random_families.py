"""The families of random models: a seed's model."""

from __future__ import annotations

import random

import torch

from test.numerics.random_graphs import graph
from test.numerics.random_images import images
from test.numerics.random_layers import attention, rows
from test.numerics.random_lookups import fields, recommenders
from test.numerics.random_moves import moves
from test.numerics.random_routing import routing
from test.numerics.random_sequences import sequences
from test.numerics.random_tensors import tensors
from test.numerics.recorded import Model, Recorder, Value

__all__ = ["FAMILIES", "drawn", "dtype_of"]

FAMILIES = (images, rows, graph, attention, moves, sequences, recommenders, fields, routing, tensors)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)


def dtype_of(seed: int) -> torch.dtype:
    """Of a seed's weights, and of most of its inputs."""
    return random.Random(seed).choice(DTYPES)


def drawn(seed: int, large: bool = False) -> Model:
    """The model of a seed; seeds walk through the families. `large`: of sizes that fill a GPU."""
    r, m = random.Random(seed), Recorder(seed, large)
    family = FAMILIES[seed % len(FAMILIES)]
    outputs = family(r, m, r.choice(DTYPES))
    wide = [value for value in outputs if value.sample.ndim]
    if r.random() < 0.15 and family is not moves and wide:
        outputs.append(_view(r, m, r.choice(wide)))
    model = Model(outputs)
    for value in model.inputs:
        if r.random() < 0.12:
            value.sample = _strided(r, value.sample)
    return model


def _view(r: random.Random, m: Recorder, x: Value) -> Value:
    """An output that is a part of another one."""
    kind = r.choice("flat turned part last".split())
    if kind == "flat":
        return m("torch.flatten", x)
    if kind == "turned":
        return m("torch.movedim", x, 0, -1)
    if kind == "part":
        return m("operator.getitem", x, (slice(0, max(1, x.shape[0] // 2)),))
    return m("operator.getitem", x, (..., slice(-1, None)))


def _strided(r: random.Random, x: torch.Tensor) -> torch.Tensor:
    """The same numbers elsewhere in memory: every second one, a part of longer rows, or the first dimension innermost."""
    if x.ndim == 0 or not x.is_contiguous():
        return x
    kind = r.choice("turned wider wider apart".split())
    if kind == "turned":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if kind == "wider":
        return torch.nn.functional.pad(x, (2, 1))[..., 2:-1]
    return x.repeat_interleave(2, 0)[::2]
