"""Sizes that change, through torch.compile(dynamic=True), beside code that is compiled for each of them.

    python -m bench.sizes [CASE...] [--device cpu] [--sizes 40] [--timed 6] [--kept] [--prepare] [--json FILE]

Each model is called with rows drawn evenly in their logarithm; every result is compared with float64. Then, at some of these
sizes, a call is timed, in turns: the one compiled model, one that was compiled for that size alone, eager. Caches on disk are
off, but with `--kept`; with `--prepare` they are filled, and nothing is timed. On the host it is the least time, on one thread;
on a GPU the median by the device's events, of calls, and of replays of a CUDA graph of each: what the device needs, copies of
padded inputs among it.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import random
import statistics
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import host
from bench.errors import is_right, relative_error
from bench.records import Record
from bench.timing import environment, graphed, sample_calls, time_calls


class Layer(nn.Module):
    """A transformer layer, of samples of 16 tokens and width 128."""

    def __init__(self, width: int = 128, heads: int = 4):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ff = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(samples, tokens, width) to the same."""
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
        x = x + self.out(attended)
        return x + self.ff(x)


class Recommender(nn.Module):
    """A DLRM: eight tables of 1,000 rows, products of all pairs."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, width) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, width))
        self.top = nn.Sequential(nn.Linear(36 + width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """(samples, 13) and (samples, 8) to (samples, 1)."""
        x = self.bottom(dense)
        vectors = torch.stack([x, *(table(ids[:, n]) for n, table in enumerate(self.tables))], 1)
        row, column = torch.tril_indices(9, 9, -1, device=dense.device)
        return torch.sigmoid(self.top(torch.cat([x, (vectors @ vectors.transpose(1, 2))[:, row, column]], 1)))


class MessagePassing(nn.Module):
    """Messages along edges, summed at nodes."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """(nodes, width) and (2, edges) to (nodes, width)."""
        source, target = edges
        sent = self.message(torch.cat([nodes[source], nodes[target]], -1))
        return self.update(torch.cat([nodes, torch.zeros_like(nodes).index_add(0, target, sent)], -1))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 256))


def _graph(rows: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, 64), torch.randint(0, rows, (2, 3 * rows + random.randint(0, rows)))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]], int]] = {
    "mlp": (_mlp, lambda rows: (torch.randn(rows, 256),), 4096),
    "dlrm": (Recommender, lambda rows: (torch.randn(rows, 13), torch.randint(0, 1000, (rows, 8))), 4096),
    "graph": (MessagePassing, _graph, 4096),
    "transformer": (Layer, lambda rows: (torch.randn(rows, 16, 128),), 256),
}
"""By name: the model, inputs of so many rows, the most rows."""


def drawn(count: int, most: int, seed: int = 0) -> list[int]:
    """Numbers from 1 to `most`, both among them, evenly in their logarithm."""
    rng = random.Random(seed)
    found = [1, most, *(round(math.exp(rng.uniform(0, math.log(most)))) for _ in range(count - 2))]
    rng.shuffle(found)
    return found


@torch.no_grad()
def measure(name: str, device: str, count: int, timed: int, kept: bool = False, prepare: bool = False) -> dict[str, Any]:
    """One case: programs that were compiled, errors at all sizes beside eager's, microseconds by size (none with `prepare`)."""
    from kitsune_mlir.dynamo import kitsune
    from kitsune_mlir.dynamo.backend import compiled_graph
    from kitsune_mlir.dynamo.graph_options import options_of_backend
    from kitsune_mlir.dynamo.report import GraphReport

    torch.manual_seed(0)
    random.seed(0)
    torch._dynamo.reset()
    make, inputs, most = CASES[name]
    model = make().eval().to(device)
    wide = copy.deepcopy(model).double()
    options = {"threads": 1, "cache": kept, "guard": False}
    graphs: list[GraphReport] = []
    asked = options_of_backend(None, options)
    fast = torch.compile(
        apart(model), backend=lambda gm, given: compiled_graph(gm, given, *asked, keep=graphs.append), dynamic=True
    )
    sizes, errors, compiles = drawn(count, most), list[tuple[float, float]](), 0
    for rows in sizes:
        args, before = [arg.to(device) for arg in inputs(rows)], len(graphs)
        want = wide(*[arg.double() if arg.is_floating_point() else arg for arg in args])
        found = fast(*args)
        compiles += len(graphs) > before
        errors.append((relative_error([found], [want]), relative_error([model(*args)], [want])))
    times: dict[int, dict[str, float]] = {}
    replays: dict[int, dict[str, float]] = {}
    for rows in drawn(timed, most, seed=1):
        args = [arg.to(device) for arg in inputs(rows)]
        alone = torch.compile(apart(copy.deepcopy(model)), backend=kitsune, options=options, dynamic=False)
        functions = {"any size": fast, "this size": alone, "eager": model}
        calls = {key: functools.partial(function, *args) for key, function in functions.items()}
        if prepare:
            alone(*args)
            continue
        if device == "cpu":
            found = {key: value["least"] for key, value in host.milliseconds(calls, 0.2).items()}
        else:
            found = time_calls(calls)
            queued = sample_calls({key: graphed(call) for key, call in calls.items()}, queued=True)
            replays[rows] = {key: round(1e3 * statistics.median(each), 1) for key, each in queued.items()}
        times[rows] = {key: round(1e3 * value, 1) for key, value in found.items()}
    device_time = {"graph_microseconds": replays, **ratios(replays, "graph_")} if replays else {}
    return {
        "case": name,
        "programs": [f"{graph.sizes}: {len(graph.programs)}" for graph in graphs],
        "calls": len(sizes),
        "calls_that_compiled": compiles,
        "error": max(error for error, _ in errors),
        "eager_error": max(eager for _, eager in errors),
        "right": all(is_right(error, eager, "f32") for error, eager in errors),
        "microseconds": times,
        **(ratios(times) if times else {}),
        **device_time,
    }


def ratios(times: Mapping[int, Mapping[str, float]], kind: str = "") -> dict[str, float]:
    """How much longer the one model takes than one that was compiled for a size: geometric mean, and the most."""
    each = [one["any size"] / one["this size"] for one in times.values()]
    return {f"{kind}ratio": round(statistics.geometric_mean(each), 3), f"{kind}worst": round(max(each), 3)}


def apart(model: nn.Module) -> Callable[..., Any]:
    """A function that calls a model, with code of its own: Dynamo keeps what it compiles by code, and looks at all of that."""

    def function(*given: Tensor) -> Tensor:
        return model(*given)

    return types.FunctionType(function.__code__.replace(), globals(), closure=function.__closure__)


def main() -> int:
    """Command line; the exit status is 1 where a result is wrong or more than three calls had something compiled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sizes", type=int, default=40)
    parser.add_argument("--timed", type=int, default=6)
    parser.add_argument("--kept", action="store_true", help="keep programs on disk, and take them from there")
    parser.add_argument("--prepare", action="store_true", help="compile all, and time nothing")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 1000
    record = Record.open(given.json)
    about = host.environment() if given.device == "cpu" else environment()
    record.begin({"environment": about, "command": f"python -m bench.sizes --device {given.device}"})
    good = True
    for name in given.cases or CASES:
        answer = measure(name, given.device, given.sizes, given.timed, given.kept, given.prepare)
        if not given.prepare:
            record.add(answer)
        print(json.dumps(answer, ensure_ascii=False), flush=True)
        good &= answer["right"] and answer["calls_that_compiled"] <= 3
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
