"""Chains of layers through the `chain` engine on a device: models built on one machine, run and checked on another.

    python -m test.gpu.chain_programs build DIR [names...]     # needs the compiler, no GPU
    python -m test.gpu.chain_programs run DIR [names...] [--time] [--json FILE]     # needs a Hopper GPU; no compiler

Models run in a few processes, on fresh random inputs, against float64; one that hangs costs only itself. With `--time`, beside
eager PyTorch under a CUDA graph (and `torch.compile` under one with `--compiled`), interleaved.
"""

from __future__ import annotations

import copy
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

from test.gpu.driver import answers_beside, program_main, spilled_bytes

LIMIT_SECONDS = 40
SIDE_BY_SIDE = 4
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-3}


def mlp(widths: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU, last: bool = True) -> nn.Module:
    """Linear layers with an activation behind each (behind the last one: if `last`)."""
    layers: list[nn.Module] = []
    for number, (a, b) in enumerate(zip(widths, widths[1:], strict=False)):
        layers.append(nn.Linear(a, b))
        if last or number < len(widths) - 2:
            layers.append(activation())
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """y = x + norm(mlp(x)), with the sum's square root of x beside it."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.layers, self.norm = mlp([width] * 3, last=False), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.layers(x))


class Gated(nn.Module):
    """silu(gate(x)) * up(x), then down."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, hidden), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Heads(nn.Module):
    """Two results of one trunk, one of them narrow, and a softmax."""

    def __init__(self, width: int):
        super().__init__()
        self.trunk, self.wide, self.narrow = mlp([width, width, width]), nn.Linear(width, 96), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.trunk(x)
        return torch.softmax(self.wide(h), -1), self.narrow(h), h


class Edge(nn.Module):
    """Rows of a table by two indices beside the rows themselves, through a chain."""

    def __init__(self, width: int):
        super().__init__()
        self.layers, self.norm = mlp([3 * width, width, width], last=False), nn.LayerNorm(width)

    def forward(self, nodes: Tensor, edges: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return edges + self.norm(self.layers(torch.cat([edges, nodes[source], nodes[target]], -1)))


class Normalised(nn.Module):
    """y = x + norm(three layers of x): a chain whose layers are wider than a warpgroup's accumulators."""

    def __init__(self, width: int):
        super().__init__()
        self.layers, self.norm = mlp([width] * 4, last=False), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.layers(x))


class WideEdges(nn.Module):
    """A graph network's edges: rows of two tables added to a product, wide layers, a norm, sums by target."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.layers, self.norm = nn.Linear(width, width), mlp([width] * 3, last=False), nn.LayerNorm(width)

    def forward(self, edges: Tensor, one: Tensor, other: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.first(edges) + one[source] + other[target])
        edges = edges + self.norm(self.layers(hidden))
        return torch.zeros_like(one).index_add(0, target, edges), edges


class Joined(nn.Module):
    """silu and norm of two layers' results side by side, or of one result beside itself."""

    def __init__(self, width: int, left: int, right: int = 0):
        super().__init__()
        self.left, self.right = nn.Linear(width, left), nn.Linear(width, right) if right else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [rows, width]."""
        left = self.left(x)
        both = torch.cat([left, left if self.right is None else self.right(x)], -1)
        return nn.functional.silu(both), nn.functional.layer_norm(both, both.shape[-1:])


class Columns(nn.Module):
    """x @ W with W as it lies: sum x columns."""

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(a, b) for a, b in zip(widths, widths[1:], strict=False))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.relu(x @ weight)
        return x


def rows(count: int, width: int) -> Callable[[torch.device, torch.dtype], tuple[Tensor, ...]]:
    return lambda device, dtype: (torch.randn(count, width, device=device).to(dtype),)


def edges(nodes: int, count: int, width: int) -> Callable[[torch.device, torch.dtype], tuple[Tensor, ...]]:
    def make(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        values = [torch.randn(n, width, device=device).to(dtype) for n in (nodes, count)]
        return (*values, *(torch.randint(0, nodes, (count,), device=device) for _ in range(2)))

    return make


def two_tables(nodes: int, count: int, width: int) -> Callable[[torch.device, torch.dtype], tuple[Tensor, ...]]:
    def make(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        values = [torch.randn(n, width, device=device).to(dtype) for n in (count, nodes, nodes)]
        return (*values, *(torch.randint(0, nodes, (count,), device=device) for _ in range(2)))

    return make


def zoo(name: str, size: str):
    from bench.models import make

    def model() -> nn.Module:
        return make(name, size=size, dtype=torch.bfloat16, seed=0)[0]

    def args(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        _, given = make(name, size=size, dtype=dtype, seed=0)
        return tuple(torch.randn_like(a, device=device) if a.is_floating_point() else a.to(device) for a in given)

    return model, args


CASES: dict[str, tuple[Callable[[], nn.Module], Callable]] = {
    "two_1000": (lambda: mlp([64, 256, 256]), rows(1000, 64)),
    "two_7": (lambda: mlp([64, 64, 64]), rows(7, 64)),
    "two_129": (lambda: mlp([64, 128, 64]), rows(129, 64)),
    "two_129_kn": (lambda: Columns([64, 96, 80]), rows(129, 64)),
    "ragged_13_27_3": (lambda: mlp([13, 64, 27, 3], last=False), rows(1000, 13)),
    "ragged_47_1": (lambda: mlp([47, 64, 48, 1], last=False), rows(65, 47)),
    "ragged_63_1": (lambda: mlp([63, 128, 1], last=False), rows(300, 63)),
    "gelu": (lambda: mlp([64, 128, 64], nn.GELU), rows(300, 64)),
    "tanh": (lambda: mlp([48, 48, 48], nn.Tanh), rows(300, 48)),
    "layer_norm": (lambda: Residual(128, nn.LayerNorm), rows(1000, 128)),
    "rms_norm": (lambda: Residual(96, nn.RMSNorm), rows(1000, 96)),
    "gated": (lambda: Gated(64, 128), rows(1000, 64)),
    "heads": (lambda: Heads(128), rows(1000, 128)),
    "joined": (lambda: Joined(64, 24, 40), rows(1000, 64)),
    "joined_to_itself": (lambda: Joined(64, 96), rows(1000, 64)),
    "edge": (lambda: Edge(64), edges(500, 1000, 64)),
    "edge_128": (lambda: Edge(128), edges(2000, 120000, 128)),
    "halved_edges": (lambda: Edge(64), edges(500, 17_923, 64)),  # 141 tiles: two blocks for each of the last nine
    "halved_one": (lambda: mlp([64, 96, 64]), rows(17_000, 64)),  # 133 tiles, the last one of 104 rows
    "narrow_16x8": (lambda: mlp([16] * 9), rows(1_000_001, 16)),
    "mlp_256x8": (lambda: mlp([256] * 9), rows(262144, 256)),
    "mlp_64_256x8": (lambda: mlp([64] + [256] * 8), rows(262144, 64)),
    "mlp_256x2": (lambda: mlp([256] * 3), rows(262144, 256)),
    "wide_512": (lambda: Normalised(512), rows(61_440, 512)),
    "wide_512_1000": (lambda: Normalised(512), rows(1000, 512)),
    "wide_320_129": (lambda: Normalised(320), rows(129, 320)),
    "wide_288_7": (lambda: mlp([512, 288, 288, 384], nn.GELU), rows(7, 512)),
    "wide_512x4": (lambda: mlp([512] * 5), rows(65_536, 512)),
    **{f"wide_edges_{count}": (lambda: WideEdges(512), two_tables(300, count, 512)) for count in (1, 7, 129, 1000, 40_001)},
    "wide_edges_320": (lambda: WideEdges(320), two_tables(300, 1000, 320)),
    "gcast": zoo("gcast", "full"),
    "nerf_small": zoo("nerf", "small"),
    "nerf": zoo("nerf", "full"),
    "mgn_small": zoo("mgn", "small"),
    "mgn": zoo("mgn", "full"),
}


ONE_ROW = ("wide_edges_1",)
"""No chain: nothing is shared along rows where there is one, so other engines do it."""


def sweep_case(name: str) -> tuple[Callable[[], nn.Module], Callable]:
    """`sweep_WIDTH_DEPTH_ROWS`: a chain of equal layers."""
    width, depth, count = (int(part) for part in name.split("_")[1:])
    return (lambda: mlp([width] * (depth + 1))), rows(count, width)


def case(name: str) -> tuple[Callable[[], nn.Module], Callable]:
    name = name.partition("__")[0]  # what follows names a variant of the package
    return sweep_case(name) if name.startswith("sweep_") else CASES[name]


CHAINS = {"kitsune-form-stages": "chains=true"}


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile models to packages without weights; the number of those that spill, or have no chain and should.

    Layers become chains whatever the planner thinks of it.
    """
    import kitsune_mlir
    from kitsune_mlir.passes.stages import grouping

    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    for name in names or CASES:
        torch.manual_seed(0)
        make_model, make_args = case(name)
        model = make_model().to(torch.bfloat16).eval()
        args = make_args(torch.device("cpu"), torch.bfloat16)
        with mock.patch.object(grouping, "least_tiles", lambda space: 1):  # no merge leaves fewer tiles than there were
            program = kitsune_mlir.compile(model, args, target="sm_90a", options={"passes": CHAINS})
        program.save(folder / f"{name}.kit", weights=False)
        spilled, engines = spilled_bytes(program), program.summary["engines"]
        chained = any(e["engine"] == "chain" for e in engines)
        wrong = spilled > 0 or chained == (name in ONE_ROW)
        bad += wrong
        told = f"{', '.join(e['engine'] for e in engines)}; {spilled} bytes spilled"
        print(f"{'BAD  ' if wrong else ''}{name}: {told}", flush=True)
        for engine in engines:
            print(f"    {engine['task']} {engine['tiles']} tiles {engine['parameters']} {engine['declined'] or ''}"[:300])
    return bad


def one(path: Path, timed: bool, compiled: bool) -> dict:
    """Run one package twice against float64; time it if asked."""
    from torch.utils import _pytree as pytree

    import kitsune_mlir
    from bench.timing import graphed, time_calls

    torch.manual_seed(0)
    make_model, make_args = case(path.stem)
    model = make_model().to(torch.bfloat16).eval().cuda()
    torch.manual_seed(1)
    args = make_args(torch.device("cuda"), torch.bfloat16)
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    program = kitsune_mlir.load(path, weights=state)
    with torch.no_grad():
        part = [a.double() if a.is_floating_point() else a for a in args]
        wanted = pytree.tree_leaves(copy.deepcopy(model).double()(*part))
        errors = []
        for _ in range(2):
            got = pytree.tree_leaves(program(*args))
            torch.cuda.synchronize()
            errors.append([((g.double() - w).norm() / w.norm()).item() for g, w in zip(got, wanted, strict=True)])
        result = {"case": path.stem, "errors": errors, "ok": all(e <= TOLERANCE[torch.bfloat16] for run in errors for e in run)}
        if timed:
            calls = {"kitsune": graphed(lambda: program(*args)), "eager": graphed(lambda: model(*args))}
            if compiled:
                fast = torch.compile(model)
                calls["compile"] = graphed(lambda: fast(*args))
            n = 8192
            a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            if path.stem.startswith(("mlp", "nerf")):
                calls["product_8192"] = lambda: a @ b
            result["milliseconds"] = time_calls(calls)
    return result


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run packages; the number of those that failed."""
    found = [path.stem for path in sorted(folder.glob("*.kit")) if not names or path.stem in names]
    options = [*["--time"] * given.time, *["--compiled"] * given.compiled]
    failed, records, count = 0, [], 1 if given.time else SIDE_BY_SIDE
    for record in answers_beside(count, "test.gpu.chain_programs", folder, found, LIMIT_SECONDS, options):
        records.append(record)
        failed += not record["ok"]
        print(json.dumps(record), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(records, indent=1))
    print(f"{len(records) - failed} passed, {failed} failed")
    return failed


def part(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Run packages in this process: a line of JSON each."""
    for name in names:
        print(json.dumps(one(folder / f"{name}.kit", given.time, given.compiled)), flush=True)
        torch.cuda.empty_cache()
    return 0


SWITCHES = {"time": "beside eager PyTorch", "compiled": "and beside torch.compile"}

if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run, part, SWITCHES))
