"""`kitsune.recurrence`: all steps of a recurrent layer (LSTM, GRU, plain RNN), of one or two directions, as one operation.

The importer writes it, a stage has it as its algorithm, and a task as its body.
"""

# Fields of ops are annotated with the bindings' descriptors, which are not types.
# pyright: reportInvalidTypeForm=false

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext

from .access import shape_of
from .attribute_table import CELLS
from .kitsune import Kitsune
from .sizes import HALF_TYPES
from .verify import fail, has_attributes

__all__ = ["RECURRENCE", "Recurrence", "RecurrenceOp"]

RECURRENCE = "kitsune.recurrence"


class RecurrenceOp(Kitsune.Operation, name="recurrence", traits=[ext.Pure]):
    """`%out, %finals... = kitsune.recurrence(given..., weights..., biases..., states...) {cell}`: a recurrent layer's steps.

    T steps of a batch of B, H hidden units, G gates of a unit (`lstm` 4: i, f, g, o; `gru` 3: r, z, n; `rnn_tanh` and
    `rnn_relu` 1), in PyTorch's order. There is one of `given`, `weights` and `biases` for each of D directions; the second one
    goes from the last step to the first.

    - `given` [T, B, G*H] f32: what comes of the layer's input, its bias included; [B, T, G*H] with `batch_first`;
    - `weights` [G*H, H], f32, bf16 or f16: by which the hidden state is multiplied; `biases` [G*H] of their type;
    - `states`: [D, B, H] of the weights' type, the hidden state before the first step, of an LSTM the cell's state, too;
    - `out` [T, B, D*H] (or [B, T, D*H]) of that type: the hidden states; `finals`: as `states`, after the last step.

    Gates and the cell's state are f32; the hidden state is rounded to the weights' type after each step.
    """

    given: Sequence[ext.Operand[Any]]
    weights: Sequence[ext.Operand[Any]]
    biases: Sequence[ext.Operand[Any]]
    states: Sequence[ext.Operand[Any]]
    cell: ir.StringAttr
    out: ext.Result[Any]
    finals: Sequence[ext.Result[Any]]

    def verify_invariants(self) -> bool:
        if not has_attributes(self, "cell", "operandSegmentSizes"):
            return False
        for value in [*self.operation.operands, *self.operation.results]:
            if not isinstance(value.type, ir.RankedTensorType):
                return fail(self, f"takes and gives tensors, not {value.type}")
        given, weights, biases, states = _groups(self.operation)
        if len(given) not in (1, 2) or len(weights) != len(given) or len(biases) != len(given):
            counts = f"{len(given)}, {len(weights)} and {len(biases)}"
            return fail(self, f"has {counts} of 'given', 'weights' and 'biases', needs one or two of each")
        cell = ir.StringAttr(self.operation.attributes["cell"]).value
        if len(states) != 1 + (cell == "lstm"):
            return fail(self, f"has {len(states)} states, a cell '{cell}' has {1 + (cell == 'lstm')}")
        with self.location:
            return self._verify_types(CELLS[cell], given, weights, biases, states)

    def _verify_types(self, gates: int, given, weights, biases, states) -> bool:
        if len(shape := shape_of(given[0])) != 3:
            return fail(self, f"'given' is [steps, batch, gates], got {given[0].type}")
        if len(shape_of(weights[0])) != 2:
            return fail(self, f"'weights' are matrices, got {weights[0].type}")
        columns, hidden = shape_of(weights[0])
        if str(element := ir.ShapedType(weights[0].type).element_type) not in ("f32", *HALF_TYPES):
            return fail(self, f"'weights' are f32, bf16 or f16, got {weights[0].type}")
        if columns != gates * hidden or shape[2] != columns:
            return fail(self, f"has {gates} gates: {gates} * H columns of 'given', and rows of 'weights' of H elements")
        batch = shape[1 - ("batch_first" in self.operation.attributes)]
        state = ir.RankedTensorType.get([len(given), batch, hidden], element)
        wanted = [
            *((value, ir.RankedTensorType.get(shape, ir.F32Type.get()), "'given'") for value in given),
            *((value, weights[0].type, "'weights'") for value in weights),
            *((value, ir.RankedTensorType.get([columns], element), "'biases'") for value in biases),
            *((value, state, "'states'") for value in states),
        ]
        out, *finals = self.operation.results
        wanted += [(out, ir.RankedTensorType.get([*shape[:2], len(given) * hidden], element), "'out'")]
        wanted += [(value, state, "'finals'") for value in finals]
        for value, type_, name in wanted:
            if value.type != type_:
                return fail(self, f"{name} must be {type_}, got {value.type}")
        if len(finals) != len(states):
            return fail(self, f"has {len(finals)} final states, and {len(states)} to begin with")
        return True


def _groups(op: ir.Operation) -> list[list[ir.Value]]:
    groups, first = [], 0
    for size in ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]):
        groups.append(list(op.operands)[first : first + size])
        first += size
    return groups


@dataclass(frozen=True)
class Recurrence:
    """What a `kitsune.recurrence` says.

    Attributes:
        op: the operation. cell, gates: its kind, and how many gates a unit has.
        steps, batch, hidden: T, B, H. dtype: of weights and states.
        batch_first: whether a step is the second dimension of `given` and of the result.
        given, weights, biases: of each direction. states: hidden states, and of an LSTM the cells'.
    """

    op: ir.Operation
    cell: str
    gates: int
    steps: int
    batch: int
    hidden: int
    dtype: str
    batch_first: bool
    given: list[ir.Value]
    weights: list[ir.Value]
    biases: list[ir.Value]
    states: list[ir.Value]

    @staticmethod
    def of(op: ir.Operation) -> "Recurrence":
        """Read an operation that its verifier has accepted."""
        given, weights, biases, states = _groups(op)
        cell, batch_first = ir.StringAttr(op.attributes["cell"]).value, "batch_first" in op.attributes
        steps, batch, _ = shape_of(given[0])
        if batch_first:
            steps, batch = batch, steps
        dtype = str(ir.ShapedType(weights[0].type).element_type)
        hidden = shape_of(weights[0])[1]
        return Recurrence(op, cell, CELLS[cell], steps, batch, hidden, dtype, batch_first, given, weights, biases, states)

    @property
    def directions(self) -> int:
        """One or two."""
        return len(self.given)

    @property
    def multiply_adds(self) -> int:
        """Of all steps' products."""
        return self.directions * self.steps * self.batch * self.gates * self.hidden**2
