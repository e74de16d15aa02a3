"""Recurrent layers and cells, with gates and cell states in f32 as cuDNN has them.

PyTorch's own decompositions round every gate of a bf16 model. Here the products of all inputs are one product before the first
step, and only what is multiplied again or returned is rounded. The steps of a layer are one operator
(`frontend/recurrence.py`). Cells, short layers and layers with projections are written step by step: a step multiplies by one
matrix of all gates (`passes/normalization/column_parts.py` makes a stage of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.frontend.dtypes import NARROW, widened
from kitsune_mlir.frontend.own_operators import implement
from kitsune_mlir.frontend.recurrence import LARGEST, recurrence

__all__ = ["RECURRENT", "TRAINED", "without_steps"]

aten = torch.ops.aten

UNROLLED = 3
"""Steps up to which a layer is written step by step."""

MOST = 256
"""Steps of all layers and directions that a graph with gradients may hold."""

Step = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]
"""(what comes of the input, what comes of the hidden state, states) to states, the hidden state first; all of them wide."""


def _lstm_step(given: Tensor, hidden: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (given + hidden).chunk(4, -1)
    cell = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru_step(given: Tensor, hidden: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (xr, xz, xn), (hr, hz, hn) = given.chunk(3, -1), hidden.chunk(3, -1)
    z, n = torch.sigmoid(xz + hz), torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return (n + z * (states[0] - n),)


def _tanh_step(given: Tensor, hidden: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.tanh(given + hidden),)


def _relu_step(given: Tensor, hidden: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.relu(given + hidden),)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Rows by a matrix, in f32."""
    sums = torch.mm(widened(x.reshape(-1, x.shape[-1])), widened(weight).t()).reshape([*x.shape[:-1], weight.shape[0]])
    return sums if bias is None else sums + widened(bias)


def _stepped(
    step: Step, given: Tensor, states: tuple[Tensor, ...], weights: Sequence[Tensor | None], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """One step from wide states; `weights` are (w_hh, b_hh, w_hr)."""
    w_hh, b_hh, w_hr = weights
    assert w_hh is not None
    hidden, *others = step(given, _product(states[0].to(dtype), w_hh, b_hh), states)
    if w_hr is not None:
        hidden = _product(hidden.to(dtype), w_hr, None)
    return widened(hidden.to(dtype)), *others


def _unrolled(
    step: Step,
    given: Tensor,
    states: tuple[Tensor, ...],
    weights: Sequence[Tensor | None],
    dtype: torch.dtype,
    time: int,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A layer of one direction step by step: outputs, final states; arguments as for `_stepped`, steps along `time`."""
    held, order = tuple(map(widened, states)), list(range(given.shape[time]))
    made: dict[int, Tensor] = {}
    for at in reversed(order) if backwards else order:
        held = _stepped(step, given.select(time, at), held, weights, dtype)
        made[at] = held[0].to(dtype)
    return torch.stack([made[at] for at in order], time), tuple(state.to(dtype) for state in held)


def _layers(step: Step, cell: str, trained: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    """Layers one after the other, of one or two directions: (outputs, final states...).

    Args:
        trained: written in operators that have gradients, step by step, with dropout between layers.
    """

    def run(
        x: Tensor,
        states: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if (train and dropout and not trained) or not x.shape[0] or not x.shape[1] or x.dtype.is_complex:
            return NotImplemented
        directions, time = 1 + bidirectional, 1 if batch_first else 0
        if trained and (count := x.shape[time] * num_layers * directions) > MOST:
            raise RuntimeError(f"a recurrent layer of {count} steps in a graph with gradients (at most {MOST})")
        each = len(params) // (num_layers * directions)
        sizes = params[1].shape[1], x.shape[1 - time]
        whole = not trained and x.shape[time] > UNROLLED and each in (2, 4) and x.dtype in (torch.float32, *NARROW)
        whole = whole and all(size <= most for size, most in zip(sizes, LARGEST, strict=True))
        finals: list[tuple[Tensor, ...]] = []
        for layer in range(num_layers):
            numbers = range(layer * directions, (layer + 1) * directions)
            given, weights = [], []
            for number in numbers:
                w_ih, w_hh, *more = params[number * each : (number + 1) * each]
                b_ih, b_hh = (more[0], more[1]) if has_biases else (None, None)
                given.append(_product(x, w_ih, b_ih))
                weights.append((w_hh, b_hh, more[-1] if each in (3, 5) else None))
            if whole:
                biases = [w.new_zeros(w.shape[0]) if b is None else b for w, b, _ in weights]
                held = [state[numbers.start : numbers.stop] for state in states]
                x, *last = recurrence(given, [w for w, *_ in weights], biases, held, cell, batch_first)
                finals.append(tuple(last))
                continue
            outputs = []
            for direction, number in enumerate(numbers):
                held = tuple(state[number] for state in states)
                out, last = _unrolled(step, given[direction], held, weights[direction], x.dtype, time, direction == 1)
                outputs.append(out)
                finals.append(tuple(state.unsqueeze(0) for state in last))
            x = torch.cat(outputs, -1) if bidirectional else outputs[0]
            if train and dropout and layer < num_layers - 1:
                by_time = x.transpose(0, time).contiguous()  # in this order PyTorch draws
                x = torch.dropout(by_time, dropout, True).transpose(0, time)
        return x, *(torch.cat(state) for state in zip(*finals, strict=True))

    return run


def _recurrence(
    given: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    states: Sequence[Tensor],
    cell: str,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """What `kitsune::recurrence` does, step by step."""
    made = []
    for number, (own, weight, bias) in enumerate(zip(given, weights, biases, strict=True)):
        held = tuple(state[number] for state in states)
        made.append(_unrolled(_STEPS[cell], own, held, (weight, bias, None), weight.dtype, int(batch_first), number == 1))
    finals = [torch.stack(state) for state in zip(*(last for _, last in made), strict=True)]
    return torch.cat([out for out, _ in made], -1), finals[0], finals[-1] if len(finals) > 1 else finals[0].clone()


_STEPS = {"lstm": _lstm_step, "gru": _gru_step, "rnn_tanh": _tanh_step, "rnn_relu": _relu_step}
implement("recurrence", _recurrence)


def _cell(step: Step) -> Callable[..., Any]:
    """One step of a cell that is called by itself."""

    def run(
        x: Tensor,
        states: Any,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Any:
        several = not isinstance(states, Tensor)
        held = tuple(map(widened, states if several else (states,)))
        held = _stepped(step, _product(x, w_ih, b_ih), held, (w_hh, b_hh, None), x.dtype)
        made = tuple(state.to(x.dtype) for state in held)
        return made if several else made[0]

    return run


def _one_state(layers: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, state, *others: layers(x, (state,), *others)


RECURRENT: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: _layers(_lstm_step, "lstm"),
    aten.gru.input: _one_state(_layers(_gru_step, "gru")),
    aten.rnn_tanh.input: _one_state(_layers(_tanh_step, "rnn_tanh")),
    aten.rnn_relu.input: _one_state(_layers(_relu_step, "rnn_relu")),
    aten.lstm_cell.default: _cell(_lstm_step),
    aten.gru_cell.default: _cell(_gru_step),
    aten.rnn_tanh_cell.default: _cell(_tanh_step),
    aten.rnn_relu_cell.default: _cell(_relu_step),
}
"""Decompositions of `aten.lstm` and its like."""

TRAINED: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: _layers(_lstm_step, "lstm", True),
    aten.gru.input: _one_state(_layers(_gru_step, "gru", True)),
    aten.rnn_tanh.input: _one_state(_layers(_tanh_step, "rnn_tanh", True)),
    aten.rnn_relu.input: _one_state(_layers(_relu_step, "rnn_relu", True)),
}
"""Those with gradients. PyTorch's own leave dropout between layers out, and on the host end in an operator that cannot run."""


def _shaped(
    x: Tensor,
    states: Tensor | Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Results of the right shapes."""
    held = [states] if isinstance(states, Tensor) else states
    out = x.new_empty([*x.shape[:2], held[0].shape[2] * (1 + bidirectional)])
    return out, *(torch.empty_like(state) for state in held)


@contextmanager
def without_steps() -> Iterator[None]:
    """Inside, PyTorch finds the shapes of layers' results without going through their steps, several milliseconds each."""
    layers = [aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input]
    kept = [dict(op.py_kernels) for op in layers]
    try:
        for op in layers:
            op.py_kernels.update(dict.fromkeys(op.py_kernels, _shaped))
            op._dispatch_cache.clear()
        yield
    finally:
        for op, kernels in zip(layers, kept, strict=True):
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
