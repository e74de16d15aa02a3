"""`kitsune::recurrence`: all steps of a recurrent layer, an operator of our own that becomes `kitsune.recurrence`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_mlir import ir

from kitsune_mlir.dialects.recurrence import RECURRENCE
from kitsune_mlir.frontend.own_operators import define, lowering

__all__ = ["LARGEST", "recurrence"]

LARGEST = (2048, 512)
"""Hidden units and rows of the batch up to which all machines' blocks hold a layer's states."""


def _shaped(given, weights, biases, states, cell, batch_first):
    finals = [torch.empty_like(state) for state in states]
    out = given[0].new_empty([*given[0].shape[:2], len(given) * weights[0].shape[1]], dtype=weights[0].dtype)
    return out, finals[0], finals[-1]


_ARGUMENTS = "Tensor[] given, Tensor[] weights, Tensor[] biases, Tensor[] states, str cell, bool batch_first"
define(f"recurrence({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)", _shaped)


def recurrence(
    given: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    states: Sequence[Tensor],
    cell: str,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """(outputs, final states...) of a layer of D directions, whose second one goes backwards.

    Args:
        given: [T, B, G * H] of each direction, what comes of the input, f32; [B, T, G * H] with `batch_first`.
        weights: [G * H, H] of each. biases: [G * H] of each, of the weights' type.
        states: [D, B, H] of the weights' type: hidden state and, for `cell` "lstm", the cell's.
        cell: "lstm", "gru", "rnn_tanh" or "rnn_relu".
    """
    found = torch.ops.kitsune.recurrence(given, weights, biases, states, cell, batch_first)
    return found[: 1 + len(states)]


@lowering("recurrence")
def _lowered(op: ir.Operation, tensors: list[ir.Value]) -> list[ir.Value]:
    *_, cell, batch_first = op.operands
    kind = ir.StringAttr(cell.owner.attributes["value"]).value
    states = 1 + (kind == "lstm")
    directions = (len(tensors) - states) // 3
    attributes = {
        "cell": ir.StringAttr.get(kind),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([directions, directions, directions, states]),
    }
    if ir.IntegerAttr(batch_first.owner.attributes["value"]).value:
        attributes["batch_first"] = ir.UnitAttr.get()
    *shape, _ = ir.RankedTensorType(tensors[0].type).shape
    weight = ir.RankedTensorType(tensors[directions].type)
    out = ir.RankedTensorType.get([*shape, directions * weight.shape[1]], weight.element_type)
    made = ir.Operation.create(RECURRENCE, [out, *(state.type for state in tensors[3 * directions :])], tensors, attributes)
    return [made.results[0], made.results[1], made.results[states]]
