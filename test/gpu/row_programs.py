"""Layers for a few rows a block on a device, in a stage of pairs: built on one machine, run and checked on another.

    python -m test.gpu.row_programs build DIR [NAME ...]          # needs the compiler, no GPU
    python -m test.gpu.row_programs run DIR [NAME ...]            # needs a Hopper GPU, torch; no compiler

Each case runs twice, and from a graph, against float64. One that hangs or crashes costs only itself.
"""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from test.gpu.driver import answers, check_each, program_main, report, spilled_bytes
from test.gpu.range_programs import graphed

LIMIT_SECONDS = 20
ENTRIES = 321
DTYPES = {"bf16": (torch.bfloat16, 2e-2), "f16": (torch.float16, 5e-3)}


@dataclasses.dataclass(frozen=True)
class Case:
    """Linear layers with ReLU between them, and products of all pairs of what they make and of gathered vectors.

    Attributes:
        rows: of the input.
        widths: of the input and of each layer.
        tables: vectors of a sample that are gathered.
    """

    rows: int
    widths: tuple[int, ...]
    tables: int
    dtype: str = "bf16"


CASES = {
    "pairs_tiles": Case(5000, (64, 256, 64), 9),  # up to three a block
    "pairs_deep": Case(2048, (512, 256, 64), 3),
    "pairs_uneven": Case(777, (96, 288, 64), 4),  # pieces that terms do not fill, columns that warps take turns for
    "pairs_layers": Case(1000, (64, 64, 64, 64), 5),
    "pairs_short": Case(1000, (27, 64, 32), 6),
    "pairs_full": Case(2048, (13, 512, 256, 128), 26),
    "pairs_odd": Case(129, (13, 64, 32), 5),
    "pairs_thousand": Case(1000, (64, 128, 64), 9),
    "pairs_seven": Case(7, (7, 128, 96, 32), 3),
    "pairs_many": Case(40, (32, 64, 32), 40),
    "pairs_half": Case(300, (13, 64, 64), 8, "f16"),
    "pairs_half_deep": Case(777, (128, 96, 32), 8, "f16"),
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
    return Recommender(case.tables, case.widths).to(DTYPES[case.dtype][0]).eval().requires_grad_(False)


def inputs_of(case: Case, device: str) -> tuple[Tensor, ...]:
    """Random inputs."""
    dense = torch.randn(case.rows, case.widths[0], device=device).to(DTYPES[case.dtype][0])
    return dense, torch.randint(-ENTRIES, ENTRIES, (case.rows, case.tables), device=device)


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile cases; the number of those that spill, or that are not done as the case wants."""
    import kitsune_mlir

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        case = CASES[name]
        program = kitsune_mlir.compile(model_of(case), inputs_of(case, "cpu"), target="sm_90a")
        engines = [(engine["engine"], engine["parameters"]) for engine in program.summary["engines"]]
        spills = spilled_bytes(program)
        bad += bool(spills) or [e for e, _ in engines] != ["pairs"] or "layers" not in engines[0][1]
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
    return report(answers("test.gpu.row_programs", folder, wanted, LIMIT_SECONDS))


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run, part))
