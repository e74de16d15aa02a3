"""The recurrence engine: how blocks share layers, which it takes, and its kernels on emulated blocks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.codegen.gpu.engines.recurrence.layout import COLUMNS, ROWS, Layer, layout_of
from kitsune_mlir.frontend.recurrence import LARGEST, recurrence
from test.emulators.warp import Warps
from test.programs.emulated import compiled, emulated, engines
from test.rotation import in_turn

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer of T steps, a batch of B, H units and D directions, on a machine of so many blocks."""

    cell: str
    T: int
    B: int
    H: int
    D: int = 1
    dtype: torch.dtype = BF16
    batch_first: bool = False
    blocks: int = 4
    debug: bool = False

    def args(self) -> list[Tensor]:
        """What is given, weights, biases and states."""
        torch.manual_seed(0)
        columns, steps = GATES[self.cell] * self.H, (self.B, self.T) if self.batch_first else (self.T, self.B)
        given = [torch.randn(*steps, columns) for _ in range(self.D)]
        weights = [(torch.randn(columns, self.H) / self.H**0.5).to(self.dtype) for _ in range(self.D)]
        biases = [torch.randn(columns).to(self.dtype) for _ in range(self.D)]
        states = [torch.randn(self.D, self.B, self.H).to(self.dtype) for _ in range(1 + (self.cell == "lstm"))]
        return [*given, *weights, *biases, *states]

    def parts(self, args: list[Tensor] | tuple[Tensor, ...]) -> list[list[Tensor]]:
        """The four groups."""
        return [list(args[n * self.D : (n + 1) * self.D]) for n in range(3)] + [list(args[3 * self.D :])]

    def layer(self, *args: Tensor) -> Any:
        """As an operator."""
        given, weights, biases, states = self.parts(args)
        return recurrence(given, weights, biases, states, self.cell, self.batch_first)

    def exact(self, args: list[Tensor]) -> list[Tensor]:
        """The results in f64, hidden states rounded as the layer rounds them."""
        given, weights, biases, states = self.parts(args)
        outputs, finals = [], []
        for d in range(self.D):
            inputs = given[d].double().transpose(0, 1) if self.batch_first else given[d].double()
            held = [state[d].double() for state in states]
            found: dict[int, Tensor] = {}
            for t in reversed(range(self.T)) if d else range(self.T):
                sums = held[0] @ weights[d].double().t() + biases[d].double()
                held = self._step(inputs[t], sums, held)
                held[0] = held[0].to(self.dtype).double()
                found[t] = held[0]
            out = torch.stack([found[t] for t in range(self.T)])
            outputs.append(out.transpose(0, 1) if self.batch_first else out)
            finals.append(held)
        return [torch.cat(outputs, -1), *(torch.stack(final) for final in zip(*finals, strict=True))]

    def _step(self, x: Tensor, h: Tensor, held: list[Tensor]) -> list[Tensor]:
        if self.cell == "lstm":
            i, f, g, o = (x + h).chunk(4, -1)
            cell = f.sigmoid() * held[1] + i.sigmoid() * g.tanh()
            return [o.sigmoid() * cell.tanh(), cell]
        if self.cell == "gru":
            (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
            z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
            return [n + z * (held[0] - n)]
        return [(x + h).tanh() if self.cell == "rnn_tanh" else (x + h).relu()]


CASES = {
    "lstm": Case("lstm", 5, 3, 129, blocks=9),
    "lstm f32": Case("lstm", 2, 1, 129, dtype=F32, blocks=9),
    "lstm f16": Case("lstm", 4, 2, 24, dtype=F16),
    "lstm both ways": Case("lstm", 4, 20, 72, 2, batch_first=True, blocks=6),
    "lstm of several passes": Case("lstm", 3, 70, 40, blocks=2),
    "lstm beyond registers": Case("lstm", 2, 2, 600, blocks=19),
    "lstm with counters": Case("lstm", 4, 2, 40, debug=True),
    "gru": Case("gru", 3, 2, 7, 2, F32, batch_first=True),
    "gru of many rows": Case("gru", 3, 65, 40, dtype=F16, blocks=6),
    "gru with counters": Case("gru", 4, 3, 33, 2, F32, debug=True),
    "rnn": Case("rnn_tanh", 6, 9, 200, dtype=F32, blocks=2),
    "rnn of one": Case("rnn_relu", 5, 1, 1, dtype=F32, blocks=2),
    "one step": Case("gru", 1, 1, 16),
    "one block": Case("gru", 9, 3, 5, blocks=2),
}


@pytest.mark.parametrize("name", in_turn(list(CASES), 2))
def test_kernels_compute_what_torch_does(name: str) -> None:
    case = CASES[name]
    args = case.args()
    program = compiled(case.layer, args)
    assert engines(program) == ["recurrence"]
    exact = case.exact(args)
    like = [value.to(case.dtype) for value in exact]
    found = emulated(program, args, like, case.blocks, Warps, debug=case.debug)
    limit = {BF16: 4e-3, F16: 5e-4, F32: 1e-6}[case.dtype]
    for one, want in zip(found, exact, strict=True):
        error = float((one.double() - want).norm() / want.norm().clamp(min=1e-30))
        assert error <= limit, error


def test_states_that_are_slices_and_constants() -> None:
    """Of two layers' states each takes its own; without any they are zeros."""
    case = Case("gru", 3, 2, 16, dtype=F32)
    given, weight, bias, state = case.args()
    both = torch.cat([state + 1, state])

    def second(given: Tensor, weight: Tensor, bias: Tensor, both: Tensor) -> Tensor:
        return recurrence([given], [weight], [bias], [both[1:]], "gru", False)[0]

    def without(given: Tensor, weight: Tensor) -> Tensor:
        zeros = torch.zeros(1, 2, 16), torch.zeros(48)
        return recurrence([given], [weight], [zeros[1]], [zeros[0]], "gru", False)[0]

    for model, args, held in (
        (second, [given, weight, bias, both], [bias, state]),
        (without, [given, weight], [bias * 0, state * 0]),
    ):
        program = compiled(model, args)
        assert engines(program) == ["recurrence"]
        exact = case.exact([given, weight, *held])[0]
        (found,) = emulated(program, args, [exact.float()], 4, Warps)
        assert float((found - exact).norm() / exact.norm()) < 1e-6


@pytest.mark.parametrize("gates, bytes", [(4, 2), (3, 2), (1, 4), (4, 4)])
@pytest.mark.parametrize(
    "hidden, batch, directions", [(1, 1, 1), (7, 64, 2), (129, 3, 1), (1000, 1, 2), (1024, 64, 1), (*LARGEST, 2)]
)
def test_layouts_cover_layers_and_fit(gates: int, bytes: int, hidden: int, batch: int, directions: int) -> None:
    for flags in (True, False):
        layout = layout_of(Layer(gates, hidden, batch, directions, bytes, 1), 132, 226 << 10, 384, flags)
        assert layout is not None
        assert layout.units * layout.unit_blocks >= hidden >= layout.units
        assert layout.rows * layout.batch_blocks >= batch >= layout.rows
        assert 2 <= layout.pieces <= 132 and layout.shared_bytes <= 226 << 10 and layout.threads <= 384
        assert layout.tiles * ROWS >= layout.units * gates
        assert layout.passes * layout.columns >= layout.rows and layout.columns % (layout.together * COLUMNS) == 0
        assert layout.held + layout.stored <= layout.own_k_blocks
        assert not layout.flagged or (flags and layout.rows <= COLUMNS and layout.passes == 1)


def test_weights_of_a_layer_that_fits_stay_on_chip() -> None:
    for hidden in (256, 512, 1024):
        layout = layout_of(Layer(4, hidden, 1, 1, 2, 1), 132, 226 << 10, 384, True)
        assert layout is not None and layout.held + layout.stored == layout.own_k_blocks


@pytest.mark.parametrize("kind, layers, dtype", in_turn([("LSTM", 2, BF16), ("GRU", 1, BF16), ("RNN", 2, F32)], 1))
def test_layers_are_one_launch_without_spills(kind: str, layers: int, dtype: torch.dtype) -> None:
    model = getattr(nn, kind)(512, 512, layers).to(dtype).eval().requires_grad_(False)
    program = kitsune_mlir.compile(model, (torch.randn(32, 8, 512, dtype=dtype),), target="sm_90a")
    (kernel,) = program.summary["kernels"]
    assert kernel["spill_store_bytes"] == 0
    assert engines(program).count("recurrence") == layers
