"""The chain engine without a GPU: what it takes and declines, its plans, and that its kernels assemble without spills."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.compile import compile_gpu
from kitsune_mlir.codegen.gpu.engines.chain import layers
from kitsune_mlir.codegen.gpu.engines.chain.core.liveness import order_of
from kitsune_mlir.codegen.gpu.engines.chain.core.match import match_chain
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import panels_of
from kitsune_mlir.codegen.gpu.engines.chain.core.records import ChainPlan
from kitsune_mlir.codegen.gpu.engines.chain.engine import ChainEngine
from kitsune_mlir.codegen.gpu.engines.chain.wide.plan import ROW_COLS, WidePlan
from kitsune_mlir.codegen.gpu.interface.plan import Decline, KernelOptions, Plan
from kitsune_mlir.codegen.gpu.kernel.executor import build
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.tile_reader import ProgramView
from kitsune_mlir.dialects.tile_records import TaskView
from test.emulators.chain import run_chain
from test.gpu.chain_programs import CASES, Edge, Gated, Joined, Normalised, WideEdges, mlp
from test.gpu.sanitizer_makers import OddTable
from test.programs.compiled import planned
from test.programs.kept import kept
from test.rotation import in_turn

BF16 = torch.bfloat16


def compiled(model: nn.Module, *args: torch.Tensor, dtype: torch.dtype = BF16, **passes: str):
    """A model whose row-local ops all become chains, compiled up to its tile program."""
    given = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    return planned(model.to(dtype).eval(), *given, passes={"kitsune-form-stages": "chains=true", **passes})


def tiles(model: nn.Module, *args: torch.Tensor, dtype: torch.dtype = BF16, **passes: str) -> str:
    """The tile program of a model whose row-local ops all become chains."""
    return compiled(model, *args, dtype=dtype, **passes).ir("tiles")


def task_of(text: str, number: int = -1) -> TaskView:
    return ProgramView(kept(text)).tasks[number]


def decided(text: str, number: int = -1) -> ChainPlan:
    plan = ChainEngine().plan(task_of(text, number), KernelOptions())
    assert isinstance(plan, Plan), plan
    return plan.private


@pytest.mark.parametrize("length", [1, 8, 13, 16, 27, 48, 63, 64, 65, 100, 128, 283, 320])
def test_panels_cover_a_range(length: int) -> None:
    panels = panels_of(length)
    assert panels[0].start == 0
    for panel, after in zip(panels, panels[1:], strict=False):
        assert panel.start + panel.width == after.start
    assert length <= panels[-1].start + panels[-1].width < length + 16
    assert all(panel.width % 16 == 0 and panel.width <= panel.box <= 64 for panel in panels)


def test_skip_connections_stay_in_registers_until_their_last_use(context) -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(128, 3)

        def forward(self, x):
            h = torch.relu(self.a(x))
            return self.c(torch.cat([torch.relu(self.b(h)), h], -1))

    chain = match_chain(task_of(tiles(Skip(), torch.randn(1000, 64))))
    order = order_of(chain)
    assert [len(layer.ranges) for layer in chain.layers] == [1, 1, 2]
    assert [len(kept) for kept in order.kept] == [1, 2, 0]
    assert [len(stores) for stores in order.stores] == [0, 0, 1]


def test_the_bias_is_what_sums_start_from(context) -> None:
    text = tiles(mlp([64, 128, 64]), torch.randn(1000, 64))
    code = compile_gpu(ir.Module.parse(text), "main_p0")
    # Neither the bias nor the activation has an instruction of its own: sums start from one, rounding does the other.
    assert not re.search(r"\b(add|max|fma)(\.\w+)*\.(f32|f16x2|bf16x2|bf16)\b", code.ptx)
    assert "cvt.rn.relu.bf16x2" in code.ptx


def test_rows_choose_the_warpgroups(context) -> None:
    model = mlp([64, 64, 64])
    few, many = (decided(tiles(model, torch.randn(rows, 64))) for rows in (1000, 100_000))
    assert (few.groups, few.chain.rows) == (1, 64)
    assert few.covered and many.groups == 2


def test_weights_stay_or_stream(context) -> None:
    small = decided(tiles(mlp([128] * 4), torch.randn(100_000, 128)))
    assert all(place is not None for place in small.resident) and not small.sequence
    large = decided(tiles(mlp([256] * 5), torch.randn(100_000, 256)))
    assert all(place is None for place in large.resident)
    assert [stage.layer for stage in large.sequence] == [n for n in range(4) for _ in range(4)]
    assert all(large.turns)


def test_ragged_operands_are_copied(context) -> None:
    """Sums so short stay where they are; of 27, a weight is placed with wider rows (`passes/pad_sums.py`)."""
    plan = decided(tiles(mlp([13, 64, 11, 3], last=False), torch.randn(1000, 13)))
    assert not decided(tiles(mlp([13, 64, 27, 3], last=False), torch.randn(1000, 13))).weights[2].why
    assert not plan.slots[0].source.maps and "multiple of 16" in plan.slots[0].source.why
    assert plan.weights[0].why and plan.weights[2].why
    assert plan.resident[0] is not None


@pytest.mark.parametrize("first, why", [(13, "starts at 26 bytes"), (27, "starts at 54 bytes"), (8, ""), (16, "")])
def test_weights_of_ranges_that_start_between_16_bytes_are_copied(first: int, why: str, context) -> None:
    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(40, 64), nn.Linear(64, 32)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(torch.cat([x, y], -1))))

    plan = decided(tiles(Joined(), torch.randn(20000, first), torch.randn(20000, 40 - first)))
    assert why in plan.weights[0].why if why else not plan.weights[0].why
    assert not plan.weights[1].why


def test_gathered_rows_and_rows_held_in_registers(context) -> None:
    index = torch.zeros(100_000, dtype=torch.int64)
    nodes, edges = torch.randn(90_000, 128), torch.randn(100_000, 128)
    plan = decided(tiles(Edge(128), nodes, edges, index, index.clone()))
    assert [slot.source.gather is not None for slot in plan.slots] == [True, True]
    assert len(plan.held) == 1 and all(vector.short for vector in plan.vectors.values())
    assert plan.outputs[0].wide and all(place is not None for place in plan.resident)


def test_declines_say_why(context) -> None:
    def reason(text: str) -> str:
        decision = ChainEngine().plan(task_of(text), KernelOptions())
        assert isinstance(decision, Decline)
        return decision.reason

    def texts(model: nn.Module, *args: torch.Tensor, dtype: torch.dtype = BF16) -> str:
        return tiles(model, *args, dtype=dtype)

    assert "f32" in reason(texts(mlp([64, 64, 64]), torch.randn(1000, 64), dtype=torch.float32))
    assert "no product" in reason(texts(nn.LayerNorm(64), torch.randn(1000, 64)))
    assert "computed, or differ" in reason(texts(nn.Linear(64, 512), torch.randn(64, 64)))


@pytest.mark.parametrize(
    "name", in_turn(["ragged_13_27_3", "ragged_47_1", "two_129_kn", "layer_norm", "heads", "gated", "edge", "wide_320_129"], 4)
)
def test_cases_assemble_without_spills(name: str, context) -> None:
    make_model, make_args = CASES[name]
    args = make_args(torch.device("cpu"), BF16)
    code = compile_gpu(ir.Module.parse(tiles(make_model(), *args)), "main_p0")
    assert "chain" in {choice.engine for choice in code.engines}
    assert not code.resources.spills and not code.warnings


class OddPieces(nn.Module):
    """A layer of rows beside gathered ones of nine pieces of 16 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(136, 27)

    def forward(self, x: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(torch.cat([x, table[index]], -1)))


def test_copying_rows_of_an_odd_number_of_pieces_does_not_spill(context) -> None:
    """The warp that copies has few registers, and each piece of such rows needs a division."""
    x, table, index = torch.randn(300, 64).to(BF16), torch.randn(321, 72).to(BF16), torch.randint(0, 321, (300,))
    code = compile_gpu(ir.Module.parse(tiles(OddPieces(), x, table, index)), "main_p0")
    assert [choice.engine for choice in code.engines] == ["chain"]
    assert not code.resources.spills and not code.warnings


def wide_edges(count: int, width: int = 320) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    nodes = 50
    values = [torch.randn(n, width).to(BF16) for n in (count, nodes, nodes)]
    return WideEdges(width), (*values, *(torch.randint(0, nodes, (count,)) for _ in range(2)))


class OneWide(nn.Module):
    """A layer and a norm: a chain of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(512, 320), nn.LayerNorm(320)

    def forward(self, x):
        return self.norm(self.layer(x))


def wide(text: str) -> WidePlan:
    plan = ChainEngine().plan(task_of(text), KernelOptions())
    assert isinstance(plan, Plan) and isinstance(plan.private, WidePlan), plan
    return plan.private


def test_wide_layers_are_multiplied_in_passes(context) -> None:
    plan = wide(tiles(Normalised(512), torch.randn(20_000, 512)))
    assert [[part.cols for part in layer.passes] for layer in plan.layers] == [[128] * 4] * 3
    assert plan.stays and plan.slots == 8 and plan.stages == 5 and plan.loads == 8
    assert len(plan.vectors) == 5 and all(vector.short for vector in plan.vectors.values())
    assert [len(layer.settled) for layer in plan.layers] == [1, 1, 1]
    assert all(sorted(part.registers()) == list(range(part.cols // 2)) for part in plan.layers[0].passes)


def test_rows_that_do_not_fit_come_for_every_pass(context) -> None:
    plan = wide(tiles(mlp([512, 288, 320]), torch.randn(20_000, 512)))
    assert not plan.stays and plan.slots == 5 and plan.loads == 24
    assert plan.layers[1].panels == 4 and plan.layers[1].tail == 32


def test_rows_that_are_added_or_reduced_are_finished_one_by_one(context) -> None:
    model, args = wide_edges(20_000, 512)
    plan = wide(tiles(model, *args))
    assert plan.by_rows and plan.layers[-1].layer.cols % ROW_COLS == 0
    assert wide(tiles(Normalised(512), torch.randn(20_000, 512))).by_rows
    model, args = wide_edges(20_000)
    assert not wide(tiles(model, *args)).by_rows  # 320 columns are no whole number of lanes' pieces
    assert not wide(tiles(mlp([512, 512, 512]), torch.randn(20_000, 512))).by_rows


def test_one_wide_layer_has_two_places_for_panels(context) -> None:
    plan = wide(tiles(OneWide(), torch.randn(200, 512).to(BF16)))
    assert not plan.stays and plan.slots == 2 and plan.loads == 8 * len(plan.layers[0].passes)


def test_wide_chains_decline_what_stays_in_registers_from_layer_to_layer(context) -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(320, 320), nn.Linear(320, 320)

        def forward(self, x):
            h = torch.relu(self.a(x))
            return h + torch.relu(self.b(h))

    model, x = Skip(), torch.randn(70_000, 320)
    assert tiles(model, x).count('engine = "chain"') == 0
    assert tiles(mlp([320] * 3), x).count('engine = "chain"') == 1


def test_gates_are_combined_before_they_are_rounded_twice(context) -> None:
    chain = match_chain(task_of(tiles(Gated(64, 128), torch.randn(1000, 64))))
    assert [layer.cols for layer in chain.layers] == [128, 128, 64]
    assert len(order_of(chain).kept[0]) == 1


@pytest.mark.parametrize("left", [1, 27, 36])
def test_tensors_joined_between_the_lanes_columns_are_for_products_only(left: int, context) -> None:
    x, model = torch.randn(1000, 64), Joined(64, left, 64)
    chosen = kitsune_mlir.compile(model.to(BF16), (x.to(BF16),), target="sm_90a")
    assert "chain" not in [engine["engine"] for engine in chosen.summary["engines"]]
    rows = {"kitsune-partition-streams": "tiles=product_0:128"}  # it offers nothing for this stage
    declined = ChainEngine().plan(task_of(tiles(model, x, **rows)), KernelOptions())
    assert isinstance(declined, Decline) and f"joined at columns [{left}]" in declined.reason


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == BF16 else tensor.numpy()


def widened(weight: torch.Tensor, wide: Sequence[int]) -> torch.Tensor:
    """As it lies in memory: with zeros at the ends of dimensions."""
    more = [part for size, held in zip(reversed(weight.shape), reversed(wide), strict=False) for part in (0, held - size)]
    return torch.nn.functional.pad(weight, more) if wide else weight


def few_rows(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    make_model, make_args = CASES[name]
    return make_model(), tuple(x[:70] for x in make_args(torch.device("cpu"), BF16))


def few_edges(count: int = 9000) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    nodes, edges = torch.randn(count, 128).to(BF16), torch.randn(300, 128).to(BF16)
    return Edge(128), (nodes, edges, *(torch.randint(0, count, (300,)) for _ in range(2)))


def odd_table() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """What follows a row in memory is not read, or multiplied with zeros."""
    table = torch.randn(90, 136).to(BF16)
    table[:, 131:] = torch.nan
    return OddTable(), (table, torch.randint(0, 90, (300,)))


class JoinedColumn(nn.Module):
    """A column of memory is the last of what layers of a tile see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cross, self.last = nn.Linear(32, 16), nn.Linear(17, 17), nn.Linear(17, 24)

    def forward(self, x: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([self.first(x), column], -1)
        return self.last(joined * self.cross(joined) + joined)


class Roots(nn.Module):
    """A product of what is computed, by a function that libdevice and ptxas do with a branch."""

    def __init__(self, run: Callable[..., torch.Tensor] = torch.hypot) -> None:
        super().__init__()
        self.run, self.layer = run, nn.Linear(100, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(self.run(x, y))


@pytest.mark.parametrize("dtype", [torch.float16, BF16])
@pytest.mark.parametrize(
    "run, instruction",
    [(torch.hypot, "nvvm.sqrt.approx"), (torch.div, "nvvm.divf"), (lambda x, y: torch.round(x / y), "")],
)
def test_functions_before_a_product_have_no_branches(run, instruction: str, dtype: torch.dtype, context) -> None:
    """Of 16-bit results, unless they jump: a branch an element lets no load begin before the last one is used."""
    task = ProgramView(kept(tiles(Roots(run), torch.randn(64, 100), torch.randn(64, 100), dtype=dtype)))
    text = str(build(task, "kernel", KernelOptions()).module)
    assert not instruction or instruction in text
    assert ("math.sqrt" in text or "arith.divf" in text) == (not instruction)


EMULATED = {
    **{
        name: (lambda name=name: few_rows(name), 64)
        for name in ("heads", "gated", "ragged_13_27_3", "two_129_kn", "layer_norm", "joined", "joined_to_itself")
    },
    "roots": (lambda: (Roots(), (torch.randn(70, 100).to(BF16), torch.randn(70, 100).to(BF16))), 64),
    "ring_and_turns": (lambda: (mlp([256] * 4), (torch.randn(300, 256).to(BF16),)), 128),
    "two_warpgroups": (lambda: (mlp([96] * 3), (torch.randn(300, 96).to(BF16),)), 128),
    "gathered": (few_edges, 128),
    "gathered_odd_rows": (odd_table, 64),
    "gathered_from_one_row": (lambda: few_edges(1), 128),
    "joined_column": (lambda: (JoinedColumn(), (torch.randn(70, 32).to(BF16), torch.randn(70, 1).to(BF16))), 64),
    "wide": (lambda: (Normalised(320), (torch.randn(300, 320).to(BF16),)), 128),
    "wide_streamed": (lambda: (mlp([512, 288, 320]), (torch.randn(70, 512).to(BF16),)), 64),
    "wide_edges": (lambda: wide_edges(200), 128),
    "wide_edges_by_rows": (lambda: wide_edges(200, 512), 128),
    "wide_norm_by_rows": (lambda: (Normalised(512), (torch.randn(100, 512).to(BF16),)), 128),
    "wide_alone": (lambda: (OneWide(), (torch.randn(200, 512).to(BF16),)), 64),
    "mgn_small": (lambda: (CASES["mgn_small"][0](), CASES["mgn_small"][1](torch.device("cpu"), BF16)), 64),
}
"""Models and the rows of their tiles."""


@pytest.mark.parametrize("name", in_turn(list(EMULATED), 4))
def test_emulated_kernels_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    make, height = EMULATED[name]
    monkeypatch.setattr(layers, "tile_rows", lambda rows, target: min(rows, height))
    model, args = make()
    program = compiled(model, *args)
    state = dict(model.named_parameters())
    inputs = [to_numpy(widened(state[weight.name], weight.wide)) for weight in program.signature.weights]
    inputs += [to_numpy(args[item.position]) for item in program.signature.inputs]
    with torch.no_grad():
        wanted = model.double()(*[a.double() if a.is_floating_point() else a for a in args])
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    results = [np.zeros(tuple(w.shape), ml_dtypes.bfloat16) for w in wanted]
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program.ir("tiles"))
        kernel = build(ProgramView(list(module.body.operations)[0].operation), "kernel", KernelOptions())
        assert "chain" in [decision.plan.engine for decision in kernel.decisions]
        run_chain(kernel.module.operation, kernel.manifest, inputs, results)
    for result, want in zip(results, wanted, strict=True):
        got = torch.from_numpy(result.astype(np.float64))
        assert ((got - want).norm() / want.norm()).item() < 6e-3
