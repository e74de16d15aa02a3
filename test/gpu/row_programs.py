"""Layers for a few rows a block on a device, alone and in a stage of pairs: built on one machine, run and checked on another.

    python test/gpu/row_programs.py build DIR [NAME ...]          # needs the compiler, no GPU
    python test/gpu/row_programs.py run DIR [NAME ...]            # needs a Hopper GPU, torch; no compiler

Each case runs twice, and from a graph, against float64. One that hangs or crashes costs only itself.
"""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

from driver import answers, check_each, program_main, report, spilled_bytes
from range_programs import graphed

LIMIT_SECONDS = 20
ENTRIES = 321
DTYPES = {"bf16": (torch.bfloat16, 2e-2), "f16": (torch.float16, 5e-3)}


@dataclasses.dataclass(frozen=True)
class Case:
    """Linear layers with ReLU between them.

    Attributes:
        rows: of the input.
        widths: of the input and of each layer.
        tables: vectors of a sample that are gathered, for products of all pairs with what the layers make; 0: only layers.
    """

    rows: int
    widths: tuple[int, ...]
    tables: int = 0
    dtype: str = "bf16"


CASES = {
    "tail": Case(2048, (512, 256, 1)),
    "odd_rows": Case(129, (96, 256, 64)),
    "thousand": Case(1000, (64, 64, 64, 64)),
    "seven": Case(7, (64, 128, 32)),
    "short": Case(1000, (13, 64, 64)),
    "short_odd": Case(129, (27, 64, 8)),
    "half": Case(777, (128, 96, 1), dtype="f16"),
    "tiles": Case(5000, (512, 256, 64)),  # up to three a block
    "pairs_tiles": Case(5000, (64, 256, 64), 9),
    "pairs_full": Case(2048, (13, 512, 256, 128), 26),
    "pairs_odd": Case(129, (13, 64, 32), 5),
    "pairs_thousand": Case(1000, (64, 128, 64), 9),
    "pairs_seven": Case(7, (7, 128, 96, 32), 3),
    "pairs_many": Case(40, (32, 64, 32), 40),
    "pairs_half": Case(300, (13, 64, 64), 8, "f16"),
}


def network(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for first, second in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Recommender(nn.Module):
    """DLRM's input: dense features through a small network, then products with one vector of each table."""

    table: Tensor
    left: Tensor
    right: Tensor

    def __init__(self, tables: int, widths: tuple[int, ...], entries: int = ENTRIES):
        super().__init__()
        self.bottom = network(*widths)
        self.embeddings = nn.Parameter(torch.randn(tables, entries, widths[-1]))
        self.register_buffer("table", torch.arange(tables))
        pairs = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("left", pairs[0].clone())
        self.register_buffer("right", pairs[1].clone())

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        x = torch.relu(self.bottom(dense))
        vectors = torch.cat([x[:, None], self.embeddings[self.table[None], indices]], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return torch.cat([x, products[:, self.left, self.right]], dim=1)


def model_of(case: Case) -> nn.Module:
    """The model, its weights from a fixed seed."""
    torch.manual_seed(0)
    model = Recommender(case.tables, case.widths) if case.tables else network(*case.widths)
    return model.to(DTYPES[case.dtype][0]).eval().requires_grad_(False)


def inputs_of(case: Case, device: str) -> tuple[Tensor, ...]:
    """Random inputs."""
    dense = torch.randn(case.rows, case.widths[0], device=device).to(DTYPES[case.dtype][0])
    if not case.tables:
        return (dense,)
    return dense, torch.randint(-ENTRIES, ENTRIES, (case.rows, case.tables), device=device)


def compiled(model: nn.Module, inputs: tuple[Tensor, ...]):
    """The program; layers alone are one chain in tiles of a few rows, whatever the planner thinks of it."""
    import kitsune_mlir
    from kitsune_mlir.passes import partition_streams
    from kitsune_mlir.passes.stages import grouping
    from kitsune_mlir.passes.tiles import rows as tiles_rows

    with (
        mock.patch.object(grouping.Grouping, "_chain_reason", lambda *_: None),
        mock.patch.object(partition_streams, "engine_of", lambda space: "chain"),
        mock.patch.object(partition_streams, "gemv_tile", lambda *_: None),
        mock.patch.object(tiles_rows, "few_rows_seconds", lambda *_: 0.0),
    ):
        return kitsune_mlir.compile(model, inputs, target="sm_90a")


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile cases; the number of those that spill, or that are not done as the case wants."""
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        case = CASES[name]
        program = compiled(model_of(case), inputs_of(case, "cpu"))
        engines = [(engine["engine"], engine["parameters"]) for engine in program.summary["engines"]]
        spills = spilled_bytes(program)
        bad += bool(spills) or [e for e, _ in engines] != ["pairs" if case.tables else "rows"] or "layers" not in engines[0][1]
        program.save(folder / f"{name}.kit", weights=False, ir=False)
        print(f"{name:20s} {engines}; {spills} spilled", flush=True)
    return bad


def check(folder: Path, name: str) -> tuple[bool, dict]:
    """Run a case and compare; whether it is right, and what was found."""
    import kitsune_mlir

    case = CASES[name]
    model, inputs = model_of(case).cuda(), inputs_of(case, "cuda")
    program = kitsune_mlir.load(folder / f"{name}.kit", weights=dict(model.state_dict()))
    with torch.no_grad():
        results = [program(*inputs) for _ in range(2)]
        replay, kept = graphed(lambda: program(*inputs))
        replay()
        torch.cuda.synchronize()
        wanted = model.double()(*(x.double() if x.is_floating_point() else x for x in inputs))
    errors = [((got.double() - wanted).norm() / wanted.norm()).item() for got in (*results, kept)]
    right = all(error <= DTYPES[case.dtype][1] for error in errors) and torch.equal(results[0], results[1])
    return right, {"error": max(errors), "bits": torch.equal(results[0], results[1])}


def part(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run cases one after the other and report each; ends when one has lost the context."""
    return check_each(names, lambda name: check(folder, name))


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run cases; the number of those that failed."""
    wanted = names or [name for name in CASES if (folder / f"{name}.kit").exists()]
    return report(answers(__file__, folder, wanted, LIMIT_SECONDS))


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run, part))
