"""Requests in one launch (`Program.batch`) beside PyTorch's ways of running the same.

    python -m bench.requests.coalesced host [PATTERN...] [--json FILE] [--resume] [--seconds 1.5]
    python -m bench.requests.coalesced build DIR              # for a GPU; needs the compiler, no GPU
    python -m bench.requests.coalesced run DIR [PATTERN...] [--json FILE] [--resume]     # needs a GPU, no compiler

`product_R`: R products of 256×1152 and 1152×128 in f32, each of operands of its own ("The OoO VLIW JIT Compiler for GPU
Inference"). `towers_K`: K of 64 towers 512-1024-512-256-1 with weights of their own, for one row each; f32 on the host, bf16 on
a GPU. Peers: the same program, called one after the other ("singly"); "eager" one after the other; "stacked": `bmm` of operands
that lie behind each other already, or `vmap` over all towers' weights, copied into stacks before; "gathered", which picks the K
of them in the call. On a GPU each is replayed from a graph, and there are "streams", eager on eight of them, and "compile", the
stacked or gathered form through `torch.compile`; and "calls", eager without a graph, which waits for the host. Results are
compared with float64. Milliseconds of a call with all requests; on the host as `bench.host` takes them.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import fnmatch
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench import host
from bench.measure import exact, relative_errors
from bench.records import Record
from bench.timing import environment, graphed, note_commit, sample_calls, summary

__all__ = ["CASES", "Case", "Product", "calls_of"]

MODELS = 64
WIDTHS = (512, 1024, 512, 256, 1)
STREAMS = 8
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y


def tower() -> nn.Sequential:
    """512-1024-512-256-1, with ReLU between."""
    layers = [part for i, o in zip(WIDTHS, WIDTHS[1:], strict=False) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


@dataclasses.dataclass(frozen=True)
class Case:
    """So many requests.

    Attributes:
        kind: "product" or "towers".
        count: requests.
    """

    kind: str
    count: int

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.count}"

    def dtype(self, device: str) -> torch.dtype:
        return torch.bfloat16 if self.kind == "towers" and device == "cuda" else torch.float32

    def example(self, device: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """A model and arguments."""
        if self.kind == "product":
            return Product(), (torch.randn(256, 1152), torch.randn(1152, 128))
        dtype = self.dtype(device)
        return tower().to(dtype), (torch.randn(1, WIDTHS[0], dtype=dtype),)


CASES = [Case("product", count) for count in (2, 4, 8, 16, 32, 64, 120)] + [Case("towers", count) for count in (16, MODELS)]
LIMITS = {"product": 120, "towers": MODELS}


def calls_of(case: Case, program: Any, device: str) -> tuple[dict[str, Callable[[], Any]], list[Tensor]]:
    """Calls that do all requests of a case, each gives their results; and the results in float64.

    Args:
        program: of the case's example, with any weights.
    """
    together = program.batch(LIMITS[case.kind])
    if case.kind == "product":
        left, right = torch.randn(case.count, 256, 1152).to(device), torch.randn(case.count, 1152, 128).to(device)
        pairs = list(zip(left.unbind(), right.unbind(), strict=True))
        calls: dict[str, Callable[[], Any]] = {
            "kitsune": lambda: together(pairs),
            "singly": lambda: [program(x, y) for x, y in pairs],
            "eager": lambda: [x @ y for x, y in pairs],
            "stacked": lambda: torch.bmm(left, right),
        }
        if device == "cuda":
            calls |= {"streams": lambda: on_streams([lambda x=x, y=y: x @ y for x, y in pairs])}
        return calls, [x.double() @ y.double() for x, y in pairs]
    models = [tower().to(device, case.dtype(device)) for _ in range(MODELS)]
    chosen = sorted(random.Random(0).sample(range(MODELS), case.count))
    programs = [program.with_weights(dict(models[n].named_parameters())) for n in chosen]
    rows = torch.randn(MODELS, 1, WIDTHS[0]).to(device, case.dtype(device))
    inputs = [rows[n] for n in chosen]
    stacks, _ = torch.func.stack_module_state(models)  # type: ignore[arg-type]
    shape = copy.deepcopy(models[0]).to("meta")
    whole, picks = case.count == MODELS, torch.tensor(chosen, device=device)

    def stacked() -> Tensor:
        return torch.vmap(lambda weights, x: torch.func.functional_call(shape, weights, (x,)))(stacks, rows)

    def gathered() -> Tensor:
        weights = {name: stack[picks] for name, stack in stacks.items()}
        return torch.vmap(lambda w, x: torch.func.functional_call(shape, w, (x,)))(weights, rows[picks])

    calls = {
        "kitsune": lambda: together([(x,) for x in inputs], programs),
        "singly": lambda: [one(x) for one, x in zip(programs, inputs, strict=True)],
        "eager": lambda: [models[n](x) for n, x in zip(chosen, inputs, strict=True)],
        "stacked": stacked,
    }
    if not whole:
        calls["gathered"] = gathered
    if device == "cuda":
        calls["streams"] = lambda: on_streams([lambda n=n, x=x: models[n](x) for n, x in zip(chosen, inputs, strict=True)])
        calls["compile"] = torch.compile(stacked if whole else gathered, dynamic=False)
    return calls, [exact(models[n], (x,)) for n, x in zip(chosen, inputs, strict=True)]


def on_streams(works: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
    """The works' results, dealt out to streams that begin and end with the current one."""
    now, results = torch.cuda.current_stream(), list[Tensor]()
    streams = _streams()
    for stream in streams:
        stream.wait_stream(now)
    for number, work in enumerate(works):
        with torch.cuda.stream(streams[number % STREAMS]):
            results.append(work())
    for stream in streams:
        now.wait_stream(stream)
    return results


_made: list[Any] = []


def _streams() -> list[Any]:
    if not _made:
        _made.extend(torch.cuda.Stream() for _ in range(STREAMS))
    return _made


def errors_of(case: Case, calls: Mapping[str, Callable[[], Any]], wanted: Sequence[Tensor]) -> dict[str, float]:
    """The largest error of a request's result, of each call that gives those of the case's requests."""
    found = {}
    for name, call in calls.items():
        results = list(call())
        if len(results) == len(wanted):  # else all towers' results
            found[name] = max(max(relative_errors(got, want)) for got, want in zip(results, wanted, strict=True))
    return found


def _entry(case: Case, errors: Mapping[str, float], dtype: torch.dtype, times: Mapping[str, Any]) -> dict[str, Any]:
    best = min((name for name in times if name not in ("kitsune", "singly")), key=lambda name: times[name]["median"])
    ratios = {name: round(one["median"] / times["kitsune"]["median"], 3) for name, one in times.items() if name != "kitsune"}
    ok = errors["kitsune"] <= max(2 * errors["eager"], NEAR[dtype])
    return {
        "case": case.name,
        "ok": ok,
        "errors": dict(errors),
        "milliseconds": dict(times),
        "best_peer": best,
        "times": ratios,
    }


def on_host(case: Case, seconds: float) -> dict[str, Any]:
    """Measure a case on the host."""
    import kitsune_mlir

    torch.manual_seed(0)
    with torch.no_grad():
        program = kitsune_mlir.compile(*case.example("cpu"), target="host")
        calls, wanted = calls_of(case, program, "cpu")
        return _entry(case, errors_of(case, calls, wanted), case.dtype("cpu"), host.milliseconds(calls, seconds))


def build(folder: Path) -> None:
    """Compile the programs for a GPU."""
    import kitsune_mlir

    folder.mkdir(parents=True, exist_ok=True)
    note_commit(folder)
    for kind, limit in LIMITS.items():
        case = next(case for case in CASES if case.kind == kind)
        program = kitsune_mlir.compile(*case.example("cuda"), target="sm_90a", options={"requests": limit})
        program.save(folder / f"{kind}.kit", ir=False)
        print(f"{kind}: {', '.join(engine['engine'] for engine in program.summary['engines'])}", flush=True)


def on_gpu(case: Case, folder: Path) -> dict[str, Any]:
    """Measure a case on a GPU."""
    import kitsune_mlir

    torch.manual_seed(0)
    with torch.no_grad():
        weights = {n: p.cuda() for n, p in case.example("cuda")[0].named_parameters()}
        program = kitsune_mlir.load(folder / f"{case.kind}.kit", weights)
        calls, wanted = calls_of(case, program, "cuda")
        errors = errors_of(case, calls, wanted)
        replays = {name: graphed(call) for name, call in calls.items()}
        samples = sample_calls(replays, queued=True) | sample_calls({"calls": calls["eager"]})
        times = {name: summary(each) for name, each in samples.items()}
        return _entry(case, errors, case.dtype("cuda"), times)


def line_of(entry: Mapping[str, Any]) -> str:
    """A case in one line: how many times as long as one launch the others take."""
    own = entry["milliseconds"]["kitsune"]["median"]
    others = "  ".join(f"{name} {ratio:.2f}x" for name, ratio in entry["times"].items())
    return f"{'     ' if entry['ok'] else 'WRONG'} {entry['case']:12s} {own:9.4f} ms  {others}"


def main() -> int:
    """Command line; the exit status is the number of cases that are wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["host", "build", "run"])
    parser.add_argument("words", nargs="*", help="a folder, but for 'host'; then patterns of cases")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each peer, on the host")
    given = parser.parse_intermixed_args()
    if given.mode != "host" and not given.words:
        parser.error("a folder is needed")
    if given.mode == "build":
        build(Path(given.words[0]))
        return 0
    folder = Path(given.words[0]) if given.mode == "run" else None
    patterns = given.words[folder is not None :] or ["*"]
    record = Record.open(given.json, given.resume)
    record.begin({
        "environment": environment(folder) if folder else host.environment(),
        "command": f"python -m bench.requests.coalesced {given.mode}",
    })  # fmt: skip
    for case in CASES:
        if any(fnmatch.fnmatch(case.name, one) for one in patterns) and case.name not in record.cases:
            entry = on_gpu(case, folder) if folder else on_host(case, given.seconds)
            record.add(entry)
            print(line_of(entry), flush=True)
    return sum(not entry["ok"] for entry in record.cases.values())


if __name__ == "__main__":
    sys.exit(main())
