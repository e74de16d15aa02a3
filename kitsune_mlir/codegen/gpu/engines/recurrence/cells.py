"""What a step makes of a unit's gates: in f32, from what is given and what the hidden state gives."""

from __future__ import annotations

from collections.abc import Sequence

from kitsune_mlir.codegen.gpu.emit.approx_math import LOG2_E, exp2, reciprocal
from kitsune_mlir.codegen.gpu.emit.operation import create
from kitsune_mlir.codegen.gpu.emit.value import Value, constant, maximum

__all__ = ["cell_step"]


def cell_step(
    kind: str, given: Sequence[Value], hidden: Sequence[Value], states: Sequence[Value], approximate: bool
) -> list[Value]:
    """The states after a step.

    Args:
        kind: of the cell. given, hidden: a number for each gate. states: before the step.
        approximate: whether results are rounded to 16 bits, so that the hardware's functions are exact enough.
    """
    sigmoid, tanh = (_sigmoid, _tanh) if approximate else (_exact_sigmoid, _exact_tanh)
    if kind == "lstm":
        i, f, g, o = (x + h for x, h in zip(given, hidden, strict=True))
        cell = sigmoid(f) * states[1] + sigmoid(i) * tanh(g)
        return [sigmoid(o) * tanh(cell), cell]
    if kind == "gru":
        r, z = (sigmoid(x + h) for x, h in zip(given[:2], hidden[:2], strict=True))
        n = tanh(given[2] + r * hidden[2])
        return [n + z * (states[0] - n)]
    total = given[0] + hidden[0]
    if kind == "rnn_tanh":
        return [tanh(total)]
    return [maximum(total, 0.0)]


def _sigmoid(x: Value) -> Value:
    """Absolute error 1e-6."""
    return reciprocal(exp2(x * -LOG2_E) + 1.0)


def _tanh(x: Value) -> Value:
    """2 sigmoid(2x) - 1: absolute error 2e-6, where the hardware's has 5e-4, too much for states that are added up."""
    return reciprocal(exp2(x * (-2.0 * LOG2_E)) + 1.0) * 2.0 - 1.0


def _exact_sigmoid(x: Value) -> Value:
    return constant(1.0, "f32") / (create("math.exp", [-x], ["f32"])[0] + 1.0)


def _exact_tanh(x: Value) -> Value:
    return create("math.tanh", [x], ["f32"])[0]
