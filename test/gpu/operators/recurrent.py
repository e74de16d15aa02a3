"""Recurrent layers of one and two directions, one and two layers, odd widths, with states and without."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from test.gpu.operators.case import BF16, F16, F32, TF32, Case, floats

__all__ = ["CASES"]


def _layer(
    kind: str, width: int, hidden: int, steps: int, batch: int, dtype: Any = BF16, states: bool = False, **settings: Any
) -> Case:
    """All results of a layer; with `states`, from random ones."""
    element: torch.dtype = F32 if dtype == TF32 else dtype
    first = settings.get("batch_first", False)
    inputs = [floats(*((batch, steps) if first else (steps, batch)), width, dtype=element)]
    number = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    if states:
        inputs += [floats(number, batch, hidden, dtype=element)] * (1 + (kind == "LSTM"))

    def run(layer: nn.Module, x: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
        given: Any = held if len(held) != 1 else next(iter(held))
        out, final = layer(x, given) if states else layer(x)
        return (out, *final) if isinstance(final, tuple) else (out, final)

    return Case(run, inputs, lambda: [getattr(nn, kind)(width, hidden, **settings)], dtype=dtype)


CASES: dict[str, Case] = {
    "lstm_layer": _layer("LSTM", 64, 64, 20, 8),
    "lstm_layer_f32": _layer("LSTM", 64, 64, 20, 8, F32),
    "lstm_layer_tf32": _layer("LSTM", 64, 64, 20, 8, TF32),
    "lstm_layer_f16": _layer("LSTM", 64, 64, 20, 8, F16),
    "lstm_odd": _layer("LSTM", 13, 129, 33, 3, states=True),
    "lstm_odd_f32": _layer("LSTM", 13, 7, 33, 3, F32, states=True, num_layers=2, bidirectional=True),
    "lstm_without_biases": _layer("LSTM", 32, 32, 4, 1, bias=False),
    "lstm_two_layers": _layer("LSTM", 256, 256, 40, 1, states=True, num_layers=2, batch_first=True),
    "lstm_both_ways": _layer("LSTM", 100, 256, 17, 20, bidirectional=True, batch_first=True),
    "lstm_1000": _layer("LSTM", 1000, 1000, 16, 1),
    "lstm_1024_b64": _layer("LSTM", 128, 1024, 16, 64),
    "lstm_1024_f32": _layer("LSTM", 128, 1024, 8, 8, F32),
    "lstm_2048": _layer("LSTM", 64, 2048, 8, 2),
    "lstm_many_rows": _layer("LSTM", 32, 64, 12, 300),
    "lstm_few_steps": _layer("LSTM", 32, 64, 2, 3),
    "lstm_one_step": _layer("LSTM", 32, 64, 1, 3, states=True),
    "gru_layer": _layer("GRU", 64, 64, 20, 8, states=True),
    "gru_odd_f32": _layer("GRU", 7, 129, 33, 3, F32, states=True, bidirectional=True),
    "gru_one_unit": _layer("GRU", 3, 1, 10, 1, F32),
    "gru_1000_b64": _layer("GRU", 64, 1000, 12, 64),
    "gru_many_steps": _layer("GRU", 16, 48, 2000, 1, F32),
    "rnn_layer": _layer("RNN", 64, 64, 20, 8, states=True),
    "rnn_relu_f16": _layer("RNN", 10, 24, 5, 2, F16, nonlinearity="relu"),
    "rnn_both_ways": _layer("RNN", 129, 512, 33, 64, num_layers=2, bidirectional=True),
}
