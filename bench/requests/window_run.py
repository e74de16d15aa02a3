"""Networks whose calls depend on values, through `kitsune_mlir.window()` and as others run them, in turns.

    python -m bench.requests.window_run [NET...] [--device cpu] [--peers 'eager; window; ...'] [--calls 40] [--rounds 5]
        [--paths 200] [--size 128] [--after N] [--small] [--json FILE]

Every call has a new input. Paths must be eager's, and values agree; calls go on until `--paths` distinct paths were compared.
Peers: `bench/requests/window_peers.py` (by default eager and the window on the host, all on a GPU): "segments" is torch.compile
with this backend, "compile" that with graph breaks, "compile, graph" its mode reduce-overhead, "dense, compile, graph" all
branches at once, in a graph; "graph" and "branched graph" were recorded for the very input, with all calls one after the other
or on 16 streams by what they read. Milliseconds of a call, with the host's part, from all calls of a round: median of the
rounds after the first, which is shown apart; of graphs also the device's alone. Segments are compiled as they come; `--after`
is when.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from bench import host
from bench.records import Record
from bench.requests.window_nets import NETS, STATIC, Net
from bench.requests.window_peers import DEFAULT, KNOWN, Peers
from bench.timing import environment, time_calls

NEAR = 1e-3
"""Of the largest value of a round: compiled segments add in another order."""
OURS = ("parts, trace tree", "trace tree", "window", "window, synchronized")
Nets = Mapping[str, Net]


class Compared:
    """What was compared with eager. Attributes: `errors` by peer, and all `paths`."""

    def __init__(self, name: str):
        self.name = name
        self.errors: dict[str, float] = {}
        self.paths: set[Any] = set()

    def add(self, peer: str, found: Any, expected: Any) -> None:
        """Compare a peer's results with eager's.

        Raises:
            AssertionError: it took another path.
        """
        # One result alone may be nearly zero (a gate that is hardly open), and then has hardly a right digit in eager either.
        largest = max(1e-6, *(float(other.abs().max()) for other, _ in expected))
        for (value, path), (other, same) in zip(found, expected, strict=True):
            if path is not None and path != same:
                raise AssertionError(f"{self.name}: {peer} takes the path {path}, eager {same}")
            if value is None:
                continue
            error = float((value - other).abs().max()) / largest
            self.errors[peer] = max(self.errors.get(peer, 0.0), error if error == error else float("inf"))
            self.paths.add(same)


def measure(name: str, net: Net, asked: argparse.Namespace, paths: int = 0, near: float = NEAR) -> dict[str, Any]:
    """One network's entry of the record.

    Args:
        asked: what the command line says.
        paths: how many distinct ones are compared at least, if so many are found.
        near: the error that is allowed, by the largest value of a round's results.
    """
    torch.manual_seed(0)
    draw = random.Random(0)
    model, make = net.make(asked.small)
    model.eval().to(asked.device)
    peers, compared = Peers(model, asked), Compared(name)

    def inputs() -> list[Any]:
        return [
            tree_map(lambda x: x.to(asked.device) if isinstance(x, torch.Tensor) else x, make(draw)) for _ in range(asked.calls)
        ]

    seconds: dict[str, list[float]] = {}
    device: dict[str, float] = {}
    for number in range(asked.rounds + 1):
        given, expected = inputs(), None
        gc.collect()
        gc.freeze()  # every capture of a graph collects garbage
        for peer in asked.peers:
            call = peers.prepare(peer, given)
            if call is None:
                continue
            start = time.perf_counter()
            found = call()
            if asked.device == "cuda":
                torch.cuda.synchronize()
            seconds.setdefault(peer, []).append(time.perf_counter() - start)
            expected = expected or found
            compared.add(peer, found, expected)
            if number == asked.rounds and asked.device == "cuda" and peer in KNOWN:
                device[peer] = round(time_calls({peer: call}, rounds=1)[peer] / asked.calls, 4)
    calls = (asked.rounds + 1) * asked.calls
    ours = next((kind for kind in OURS if kind in asked.peers), None)
    while ours and len(compared.paths) < paths and calls < 16 * paths:
        given = inputs()
        expected, found = (peers.prepare(peer, given) for peer in ("eager", ours))
        assert expected is not None and found is not None
        compared.add(ours, found(), expected())
        calls += asked.calls
    return {"case": name, "ok": max(compared.errors.values()) < near, **_figures(compared, seconds, device, peers, asked.calls)}


def _figures(
    compared: Compared, seconds: dict[str, list[float]], device: dict[str, float], peers: Peers, calls: int
) -> dict[str, Any]:
    each = {kind: round(1e3 * statistics.median(times[1:]) / calls, 4) for kind, times in seconds.items() if times[1:]}
    others = {kind: value for kind, value in each.items() if kind not in OURS and kind not in KNOWN}
    best = min(others, key=lambda kind: others[kind])
    ours = next((kind for kind in OURS if kind in each), "eager")
    window = peers.captured.get("window")
    return {
        "milliseconds": each,
        "device alone": device,
        "best_peer": best,
        "times": {kind: round(value / each[ours], 3) for kind, value in each.items() if kind != ours},
        "first round, seconds": {kind: round(times[0], 3) for kind, times in seconds.items()},
        "paths": len(compared.paths),
        "errors": compared.errors,
        "missing": peers.missing,
        "calls captured": window.taken if window else 0,
        "segments": dict(window.segments) if window else {},
        "eager": dict(window.eager) if window else {},
        "trace tree": peers.traced,
    }


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The command line that networks for windows share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cpu", choices=list(DEFAULT))
    parser.add_argument("--peers", help="names, between semicolons; eager is always there")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--after", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--json", type=Path)
    return parser


def run(command: str, nets: Nets, asked: argparse.Namespace, paths: Callable[[str], int], near: float = NEAR) -> int:
    """Measure networks, print and record them.

    Args:
        command: as it is noted.
        paths: of a network by its name, as of `measure`.

    Returns:
        How many were wrong, or failed.
    """
    torch.backends.cudnn.allow_tf32 = False  # f32 is f32, else paths differ
    peers = [one.strip() for one in asked.peers.split(";")] if asked.peers else DEFAULT[asked.device]
    asked.peers = tuple(dict.fromkeys(("eager", *peers)))
    record = Record.open(asked.json)
    where = environment() if asked.device == "cuda" else host.environment()
    record.begin({"command": command, "environment": where, "calls": asked.calls, "rounds": asked.rounds, "size": asked.size})
    wrong = 0
    for name in asked.names or nets:
        try:
            with torch.no_grad():
                entry = measure(name, nets[name], asked, paths(name), near)
            print(f"{name}: {entry['milliseconds']} ms a call, the best peer is {entry['best_peer']}, {entry['times']}")
            print(
                *(f"  {what}: {entry[what]}" for what in ("paths", "errors", "segments", "trace tree", "missing")),
                sep="\n",
                flush=True,
            )
        except Exception as error:  # one that fails costs only itself
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
            entry = {"case": name, "ok": False, "problem": problem}
            print(f"{name}: {problem}", flush=True)
        record.add(entry)
        wrong += not entry["ok"]
    return wrong


def main() -> int:
    """The command; the exit status is how many were wrong."""
    parser = parser_of(__doc__)
    parser.add_argument("--paths", type=int, default=200)
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    command = "python -m bench.requests.window_run" + " --small" * asked.small
    return run(command, NETS | STATIC, asked, lambda name: asked.paths if name in NETS else 1)


if __name__ == "__main__":
    sys.exit(main())
