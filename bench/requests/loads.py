"""Open loads of many small models (S1 to S7, `bench/requests/scenarios.py`): the engine beside what people have.

    python -m bench.requests.loads [S1 S2 ...] [--device cpu] [--small] [--systems 'engine; one by one; ...'] [--rates 1000,...]
        [--own 0.8] [--arrivals poisson,gamma] [--requests 20000] [--seconds 1] [--deadline 0.005] [--limit 64] [--json FILE]
        [--charts DIR]

Requests come by Poisson, or by gamma with a coefficient of variation of 4, to models by Zipf's law, whether or not earlier
ones are answered; when each comes is drawn beforehand, and all systems take from the same (`bench/requests/arrivals.py`). Rates
are shares (`SHARES`) of what "one by one" answers in a burst, unless they are given. Systems: "engine" is `kitsune_mlir.serve`,
which asks for what has come, as the others do; "engine, threads" is handed it by another thread; "one by one" (round robin),
"streams" (16), "green contexts" (4 of 32 multiprocessors) and "batched" (rows of one model, to 8) replay a graph of each model;
"vmap" does all models of a family at once, through torch.compile in a graph; "processes" have parts of the models, and take
turns; "processes, MPS" overlap. On the host there are no graphs and no streams. What is not there is recorded with the reason.
Outputs of every system are compared with eager's before it is loaded. p50 and p99 in milliseconds, of what was answered until a
quarter of a second after the last request came; goodput: requests a second in 2, 5 and 10 ms; and the share of requests within
their deadline.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import functools
import gc
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kitsune_mlir
from bench import host
from bench.measure import relative_errors
from bench.records import Record
from bench.requests.arrivals import Arrivals
from bench.requests.engine_load import EngineLoad, items_of
from bench.requests.processes import Processes, Unavailable, made, mps
from bench.requests.scenarios import ARRIVALS, BESIDE, SCENARIOS, Request, requests
from bench.requests.systems import LIMIT, Item, Work, batched, in_green_contexts, one_by_one, serve, together
from bench.timing import environment
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.serving.statistics import percentile

SHARES = {"cpu": (0.25, 0.5, 0.8, 1.2), "cuda": (0.5, 1.0, 2.0, 4.0, 8.0)}
LIMITS = (0.002, 0.005, 0.010)
"""Seconds: what goodput is counted by."""
BURST = 256
PATIENCE = 60.0
"""Seconds in which a burst is answered."""
STREAMS, PROCESSES = 16, {"cpu": 2, "cuda": 8}
NEAR = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
SYSTEMS = (
    "engine",
    "engine, threads",
    "one by one",
    "streams",
    "green contexts",
    "batched",
    "vmap",
    "processes",
    "processes, MPS",
)

Run = Callable[[Arrivals, Sequence[tuple[int, int]], dict[int, Any] | None], None]
"""Answers a load, of which it is told the model and the number of the input of each; keeps outputs where they are wanted."""


class Load:
    """A scenario's models, and the systems that serve them.

    Args:
        asked: `device`, `small`, `deadline` and `limit` of the command line.
    """

    def __init__(self, name: str, asked: argparse.Namespace):
        self.name, self.scenario, self._asked = name, SCENARIOS[name], asked
        self.device = asked.device
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.models, self.inputs = made(name, asked.small, self.device, self.dtype, 0)
        self._all = [min(one.count, 4) if asked.small else one.count for one in self.scenario.all]
        self.counts = self._all[: len(self.scenario.families)]
        self._made: list[Any] = []
        gc.collect()
        gc.freeze()  # every capture of a graph collects garbage

    @contextlib.contextmanager
    def system(self, name: str, count: int) -> Iterator[Run]:
        """A system that is ready, for loads of so many requests.

        Raises:
            Unavailable: it is not there on this machine.
        """
        if name.startswith("engine"):
            named = {str(n): program for n, program in enumerate(self.programs)}
            given = EngineLoad(self.inputs, self._asked.deadline)
            capacity = 2 * self.scenario.each * count + BURST
            source = given.source if name == "engine" else None
            with kitsune_mlir.serve(named, limit=self._asked.limit, capacity=capacity, source=source) as engine:
                try:
                    yield functools.partial(given.run, engine, source is None)
                finally:
                    given.end()
        elif name.startswith("processes"):
            parts = min(PROCESSES[self.device], len(self.models))
            with mps() if name.endswith("MPS") else contextlib.nullcontext({}) as own:
                served = Processes(self.name, self._asked.small, self.device, self.dtype, 0, parts, own)
                try:
                    yield served.run
                finally:
                    served.close()
        else:
            with torch.no_grad():
                work = self._work(name)
            yield lambda arrivals, asked, keep: serve(work, arrivals, items_of(self.inputs, asked), keep)

    def _work(self, name: str) -> Work:
        """The way of a system with one thread."""
        examples = [rows[0] for rows in self.inputs]
        if self.device == "cpu" and name in ("streams", "green contexts"):
            raise Unavailable("the host has none")
        if name == "one by one":
            return one_by_one(self.models, examples)
        if name == "streams":
            return one_by_one(self.models, examples, [torch.cuda.Stream() for _ in range(STREAMS)])
        if name == "green contexts":
            try:
                return in_green_contexts(self.models, examples)
            except (AttributeError, KitsuneError) as error:
                raise Unavailable(f"{type(error).__name__}: {error}"[:200]) from error
        if name == "batched":
            return batched(self.models, examples)
        first, works = 0, []
        for family, count in zip(self.scenario.all, self._all, strict=True):
            own = slice(first, first + count)
            works.append((first, count, together(self.models[own], examples[first], family.shared)))
            first += count
        return _by_family(works)

    @property
    def programs(self) -> list[Any]:
        """A program for each model; those of a family are one code."""
        if not self._made:
            first = 0
            for count in self._all:
                # Requests of a model that is alone come one at a time: it needs no kernels for many.
                options = {"requests": self._asked.limit} if self.device == "cuda" and count > 1 else {}
                program = kitsune_mlir.compile(self.models[first], (self.inputs[first][0],), options=options)
                names = {weight.name for weight in program.signature.supplied}
                for model in self.models[first : first + count]:
                    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
                    self._made.append(program.with_weights({n: t for n, t in state.items() if n in names}))
                first += count
            gc.collect()  # as captures of graphs do for the others
            gc.freeze()
        return self._made

    def models_of(self, request: Request) -> list[int]:
        """Numbers of the models that answer a request."""
        begin = sum(self.counts[: request.family])
        return [begin + n for n in request.models]

    def error(self, run: Run) -> float:
        """The largest error of what a system answers, each model asked twice at once, against eager."""
        asked = [(model, row) for model in range(len(self.models)) for row in (1, 2)]
        found: dict[int, Any] = {}
        run(Arrivals([0.0] * len(asked), PATIENCE), asked, found)
        if missing := len(asked) - len(found):
            raise TimeoutError(f"{missing} of {len(asked)} requests have no answer")
        pairs: dict[int, list[tuple[Tensor, Tensor]]] = {}  # by family
        with torch.no_grad():
            for number, (model, row) in enumerate(asked):
                if isinstance(found[number], BaseException):
                    raise found[number]
                wanted = self.models[model](self.inputs[model][row])
                family = bisect.bisect_right([*itertools.accumulate(self._all)], model)
                pairs.setdefault(family, []).append((found[number].to(wanted.device), wanted.double()))
        # Of all outputs together: one that is a single number may be near zero.
        return max(
            max(relative_errors(*(torch.cat([one.flatten() for one in own]) for own in zip(*its, strict=True))))
            for its in pairs.values()
        )

    def capacity(self, run: Run) -> float:
        """Requests a second of a burst."""
        count = min(self._asked.requests, 8 * BURST if self.device == "cuda" else BURST)
        burst = self.run(run, requests(self.counts, self.scenario.each, 1e9, count, "poisson", 0), PATIENCE)
        return burst["answered"] / burst["seconds"]

    def run(self, run: Run, load: Sequence[Request], grace: float = 0.25) -> dict[str, float]:
        """Figures of a load, whose answers count until so many seconds after the last request came."""
        dues, asked, of = list[float](), list[tuple[int, int]](), list[int]()
        for number, request in enumerate(load):
            models = self.models_of(request)
            if self.scenario.straggler is not None and number % BESIDE == 0:
                models = [len(self.models) - 1, *models]
            for model in models:
                dues.append(request.due)
                asked.append((model, request.row))
                of.append(number if model < len(self.models) - (self.scenario.straggler is not None) else -1)
        arrivals = Arrivals(dues, grace)
        gc.collect()  # what a load is made of is garbage or there to stay: looking at all of it would hold up whoever runs
        gc.freeze()
        run(arrivals, asked, None)
        times, came = arrivals.latencies(of), dues[-1]
        goodput = {f"goodput {1e3 * limit:g} ms": round(float((times <= limit).sum()) / came, 1) for limit in LIMITS}
        goodput["in their deadline"] = round(float((times <= self._asked.deadline).sum()) / len(load), 5)
        p50, p99 = (round(1e3 * percentile(times.tolist(), percent), 3) for percent in (50, 99))
        ended = arrivals.finished[np.isfinite(arrivals.finished)]
        seconds = float(ended.max(initial=0.0)) or came
        return {"p50": p50, "p99": p99, **goodput, "answered": len(times), "requests": len(load), "seconds": round(seconds, 4)}


def _by_family(works: Sequence[tuple[int, int, Work]]) -> Work:
    """Each family by its own way, which knows models by their number in the family (from `first` on, so many)."""

    def work(items: Sequence[Item]) -> tuple[list[tuple[int, Any]], Sequence[Item]]:
        ended, again = list[tuple[int, Any]](), list[Item]()
        for first, count, own in works:
            if its := [(model - first, x, number) for model, x, number in items if first <= model < first + count]:
                done, left = own(its)
                ended += done
                again += [(model + first, x, number) for model, x, number in left]
        return ended, sorted(again, key=lambda item: item[2])

    return work


def measure(name: str, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Entries of one scenario: one for each kind of arrivals and rate; again after each system, with what is known by then."""
    load = Load(name, asked)
    figures: dict[tuple[str, str], dict[str, Any]] = {}
    missing: dict[str, str] = {}
    errors: dict[str, float] = {}
    rates = list(asked.rates)
    for system in asked.systems:
        try:
            with load.system(system, asked.requests) as run:
                errors[system] = load.error(run)
                capacity = load.capacity(run) if not rates or asked.own else 0.0
                rates = rates or [round(share * capacity, 1) for share in SHARES[asked.device]]
                own = {f"{share:g} of its own": share * capacity for share in asked.own}
                for arrivals in asked.arrivals:
                    for told, rate in ({f"{rate:g}": rate for rate in rates} | own).items():
                        count = max(8, min(asked.requests, int(asked.seconds * rate)))
                        given = requests(load.counts, load.scenario.each, rate, count, arrivals, 1)
                        figures.setdefault((arrivals, told), {})[system] = {"rate": round(rate, 1), **load.run(run, given)}
        except Unavailable as error:
            missing[system] = str(error)
        except Exception as error:  # one that fails costs only itself
            missing[system] = f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
        yield from _entries(load, asked, figures, errors, missing)


def _entries(
    load: Load,
    asked: argparse.Namespace,
    figures: Mapping[tuple[str, str], Mapping[str, Any]],
    errors: Mapping[str, float],
    missing: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    ok = all(error < NEAR[load.dtype] for error in errors.values()) and not any("failed" in why for why in missing.values())
    for (arrivals, rate), found in figures.items():
        yield {
            "case": f"{load.name} {arrivals} {rate}",
            "ok": ok,
            "scenario": load.name,
            "arrivals": arrivals,
            **({"own": rate} if " " in rate else {"rate": float(rate)}),
            "deadline": asked.deadline,
            "limit": asked.limit,
            "small": asked.small,
            "systems": {**found},
            "errors": {**errors},
            "missing": {**missing},
        }


def main() -> int:
    """The command; the exit status is how many entries were wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="scenarios")
    parser.add_argument("--device", default="cpu", choices=list(SHARES))
    parser.add_argument("--small", action="store_true", help="small models, four of each family")
    parser.add_argument("--systems", default="; ".join(SYSTEMS), help="names, between semicolons")
    parser.add_argument("--rates", default="", help="requests a second, between commas")
    parser.add_argument("--own", default="", help="shares of what each system answers in a burst, between commas")
    parser.add_argument("--arrivals", default="poisson", help=f"between commas: {', '.join(ARRIVALS)}")
    parser.add_argument("--requests", type=int, default=20_000, help="of each load, at most")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load, about")
    parser.add_argument("--deadline", type=float, default=0.005, help="seconds; the engine knows it")
    parser.add_argument("--limit", type=int, default=LIMIT, help="requests of a launch of the engine's")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--charts", type=Path, help="a folder for a picture of each scenario")
    asked = parser.parse_args()
    asked.systems = sorted((one.strip() for one in asked.systems.split(";")), key=lambda one: one != "one by one")
    asked.arrivals = asked.arrivals.split(",")
    asked.own = [float(share) for share in asked.own.split(",") if share]
    asked.rates = [float(rate) for rate in asked.rates.split(",") if rate]
    record = Record.open(asked.json)
    where = environment() if asked.device == "cuda" else host.environment()
    record.begin({"command": "python -m bench.requests.loads" + " --small" * asked.small, "environment": where})
    if asked.device == "cpu":
        torch.set_num_threads(1)
    for name in asked.names or SCENARIOS:
        for entry in measure(name, asked):
            record.add(entry)
            system, found = [*entry["systems"].items()][-1]
            print(entry["case"], "ok" if entry["ok"] else "WRONG", system, found, f"error {entry['errors'][system]:.1e}")
            print("  missing", entry["missing"], flush=True)
    if asked.charts:
        from bench.charts import draw_loads

        print(*draw_loads(record.cases, asked.charts))
    return sum(not entry["ok"] for entry in record.cases.values())


if __name__ == "__main__":
    sys.exit(main())
