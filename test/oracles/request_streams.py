"""Random requests of many clients to an engine: every one is answered rightly or has its own error, and none is lost.

    python -m test.oracles.request_streams [--requests 1000000] [--clients 4] [--seed 0] [--device cpu] [--json FILE]

Clients hurry, cancel, hand in one by one or many at once, what does not fit or reads out of range, read their answers late, or
go away without reading; one model changes a buffer of its own, which must have seen every answered request once. Resident
memory is looked at after a fifth of the requests and at the end. (What reads out of range is an error on the host only.)
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, BusyError, DeadlineError, KitsuneError
from kitsune_mlir.runtime.program import Program

__all__ = ["Counter", "Lookup", "Tower", "models", "soak"]

PENDING = 64
"""Requests that a client hands in before it reads the oldest answer."""

TOWERS, ROWS, WIDTH, DRAWN = 6, 2, 16, 8

SIZES = (2, 5, 12, 30)
"""Calls that are handed in at once."""

LIMIT = 16
"""Requests of a launch."""


class Tower(nn.Module):
    """Two layers, [rows, width] to [rows, 3]."""

    def __init__(self, width: int = WIDTH):
        super().__init__()
        self.first, self.second = nn.Linear(width, 33), nn.Linear(33, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Of [rows, width]."""
        return self.second(torch.relu(self.first(x)))


class Lookup(nn.Module):
    """Rows of a table, whose index may be out of range."""

    def forward(self, table: Tensor, index: Tensor) -> Tensor:
        """Rows of [n, width], and 1."""
        return table[index] + 1


class Counter(nn.Module):
    """Adds to a buffer."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """The sum of what came up to now."""
        self.total.add_(x)
        return self.total * 1


def models(device: str = "cpu") -> tuple[dict[str, Tower], dict[str, Program]]:
    """The towers, and programs of them that share their code, of a lookup ("lookup") and of a counter ("counter")."""
    towers = {f"tower{n}": Tower().to(device) for n in range(TOWERS)}
    options = {} if device == "cpu" else {"requests": LIMIT, "matmul_precision": "highest"}

    def compiled(model: nn.Module, *args: Tensor) -> Program:
        return kitsune_mlir.compile(model.to(device), tuple(arg.to(device) for arg in args), options=options)

    first = compiled(towers["tower0"], torch.randn(ROWS, WIDTH))
    programs = {name: first.with_weights(dict(tower.named_parameters())) for name, tower in towers.items()}
    programs["lookup"] = compiled(Lookup(), torch.randn(5, 4), torch.tensor([0, 1]))
    programs["counter"] = compiled(Counter(), torch.zeros(4))
    return towers, programs


class Client:
    """One thread's requests; `counts` says what became of them, `problems` what is wrong."""

    def __init__(self, engine: Any, calls: Mapping[str, Sequence[tuple[str, tuple, Any]]], seed: int):
        self.engine, self.calls, self.draw = engine, calls, random.Random(seed)
        self.counts, self.problems = collections.Counter[str](), list[str]()
        self.added = 0
        self._pending = collections.deque[tuple[str, Any, Future]]()

    def run(self, requests: int) -> None:
        """Hand in so many requests and read, or leave, the answers."""
        left = requests
        while left:
            many = self.draw.random() < 0.2
            left -= self._submit_many(min(left, self.draw.choice(SIZES))) if many else self._submit()
            while len(self._pending) > PENDING:
                self._read(*self._pending.popleft())
        while self._pending:
            self._read(*self._pending.popleft())

    def _drawn(self) -> tuple[str, tuple[str, tuple, Any]]:
        """A kind of call, and one."""
        kind = self.draw.choice([*(["tower"] * 8), *(kind for kind in self.calls if kind != "tower")])
        return kind, self.draw.choice(self.calls[kind])

    def _submit(self) -> int:
        """Hand in one."""
        draw, (kind, (model, args, wanted)) = self.draw, self._drawn()
        try:
            future = self.engine.submit(model, args, deadline=draw.choice((None, None, 1e-4, 0.05, 5.0)))
        except BusyError:
            self.counts["refused"] += 1
            time.sleep(0.001)
            return 1
        if draw.random() < 0.1:
            future.cancel()
        self._keep(kind, wanted, future)
        return 1

    def _submit_many(self, count: int) -> int:
        """Hand in so many at once, mostly of one code."""
        draw = self.draw
        towers = draw.random() < 0.8
        drawn = [("tower", draw.choice(self.calls["tower"])) if towers else self._drawn() for _ in range(count)]
        futures = [Future() for _ in drawn]

        def done(places: Sequence[int], outputs: Sequence[Any]) -> None:
            for place, output in zip(places, outputs, strict=True):
                if isinstance(output, BaseException):
                    futures[place].set_exception(output)
                else:
                    futures[place].set_result(output)

        deadline = draw.choice((None, 1e-4, 0.05, 5.0, [draw.choice((1e-3, 0.05, 5.0)) for _ in drawn]))
        group = self.engine.submit_many([(model, args) for _, (model, args, _) in drawn], done, deadline=deadline)
        if draw.random() < 0.05:
            group.cancel()
        for (kind, (_, _, wanted)), future in zip(drawn, futures, strict=True):
            self._keep(kind, wanted, future)
        return count

    def _keep(self, kind: str, wanted: Any, future: Future) -> None:
        """Read the answer later, or go away."""
        if kind != "counter" and self.draw.random() < 0.02:
            self.counts["left"] += 1  # the client goes away
        else:
            self._pending.append((kind, wanted, future))

    def _read(self, kind: str, wanted: Any, future: Future) -> None:
        if self.draw.random() < 0.0005:
            time.sleep(0.02)  # a slow one
        try:
            got, word = future.result(60), "right"
            self.added += kind == "counter"
            if not isinstance(wanted, Tensor) or (kind != "counter" and not torch.allclose(got, wanted, atol=1e-5)):
                self.problems.append(f"{kind}: {got}")
        except CancelledError:
            word = "cancelled"
        except DeadlineError:
            word = "expired"
        except BusyError:
            word = "refused"
        except Exception as error:
            word = "faulty"
            if isinstance(wanted, Tensor) or not isinstance(error, wanted):
                self.problems.append(f"{kind}: {error!r}")
        self.counts[word] += 1


def soak(
    towers: Mapping[str, Tower], programs: Mapping[str, Program], requests: int, clients: int = 4, seed: int = 0, **serve: Any
) -> dict[str, Any]:
    """Serve random requests of some clients.

    Args:
        towers, programs: as of `models`.
        requests: of all clients together.
        serve: as of `kitsune_mlir.serve`.

    Returns:
        "requests", "problems" (in words), "right", "cancelled", "expired", "refused", "faulty", "left" (unread) as clients
        counted them, "stats" of the engine summed over models, "seconds", "threads" and resident "megabytes", each after a
        fifth of the requests and at the end.
    """
    device = programs["lookup"].device
    drawn = [(name, torch.randn(ROWS, WIDTH, device=device)) for name in towers for _ in range(DRAWN)]
    table = torch.randn(5, 4, device=device)
    calls = {
        "tower": [(name, (x,), towers[name](x).detach()) for name, x in drawn],
        "lookup": [("lookup", (table, i), table[i] + 1) for i in torch.tensor([[4, 3], [0, 0]], device=device).clone()],
        "shape": [("tower0", (torch.randn(ROWS + 1, WIDTH, device=device),), ArgumentError)],
        "counter": [("counter", (torch.ones(4, device=device),), torch.ones(4))],
    }
    if device == "cpu":
        calls["outside"] = [("lookup", (table, torch.tensor([4, 5])), KitsuneError)]
    programs["counter"].weights["total"].zero_()
    engine = kitsune_mlir.serve(programs, **serve)
    # One thread each for a fifth, and then for the rest.
    people = [Client(engine, calls, seed + n) for n in range(clients)]
    memory, threads = list[float](), list[int]()
    start = time.monotonic()
    for part in (requests // 5, requests - requests // 5):
        shares = [part // clients + (n < part % clients) for n in range(clients)]
        running = [threading.Thread(target=one.run, args=(n,)) for one, n in zip(people, shares, strict=True)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        memory.append(_resident())
        threads.append(threading.active_count())
    engine.close()
    stats = engine.stats()
    total = collections.Counter[str]()
    for one in stats["models"].values():
        total.update({name: count for name, count in one.items() if isinstance(count, int)})
    counts = sum((one.counts for one in people), collections.Counter[str]())
    problems = [problem for one in people for problem in one.problems]
    added = sum(one.added for one in people)
    if not programs["counter"].weights["total"].eq(added).all():
        problems.append(f"the counter has seen {programs['counter'].weights['total'][0]:.0f} requests of {added}")
    if stats["waiting"] or total["submitted"] != total["answered"] + total["failed"] + total["cancelled"]:
        problems.append(f"the engine's counts do not add up: {dict(total)}")
    words = ("right", "cancelled", "expired", "refused", "faulty", "left")
    found = {word: counts[word] for word in words}
    if sum(found.values()) != requests:
        problems.append(f"requests are lost: {found}")
    facts = {"requests": requests, "problems": problems, **found, "stats": dict(total), "threads": threads, "megabytes": memory}
    return {**facts, "seconds": round(time.monotonic() - start, 1)}


def _resident() -> float:
    """Megabytes of this process that are in memory."""
    return round(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def main() -> int:
    """The command."""
    from bench.records import Record
    from bench.timing import commit_of
    from kitsune_mlir.runtime.timer import device_name

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    found = soak(*models(asked.device), asked.requests, asked.clients, asked.seed, limit=LIMIT, capacity=200)
    for problem in found["problems"][:20]:
        print(problem)
    print({name: value for name, value in found.items() if name != "problems"})
    record = Record.open(asked.json)
    record.begin(
        {"command": "python -m test.oracles.request_streams", "commit": commit_of(), "device": device_name(asked.device)}
    )
    record.add({"case": "requests", "ok": not found["problems"], "clients": asked.clients, "seed": asked.seed, **found})
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
