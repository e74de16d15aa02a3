"""Open loads of many small models (S1 to S7, `bench/requests/scenarios.py`): the engine beside what people have.

    python -m bench.requests.loads [S1 S2 ...] [--device cpu] [--small] [--systems 'engine; one by one; ...'] [--rates 1000,...]
        [--own 0.8] [--arrivals poisson,gamma] [--requests 20000] [--seconds 1] [--deadline 0.005] [--json FILE] [--charts DIR]

Requests come by Poisson, or by gamma with a coefficient of variation of 4, to models by Zipf's law, whether or not earlier
ones are answered; one generator (`bench.requests.load.offer`) sends all systems the same. Rates are shares (`SHARES`) of what
"one by one" answers in a burst, unless they are given. Systems: "engine" is `kitsune_mlir.serve`; "one by one" (round robin),
"streams" (16), "green contexts" (4 of 32 multiprocessors) and "batched" (rows of one model, to 8) replay a graph of each model;
"vmap" does all models of a family at once, through torch.compile in a graph; "processes" have parts of the models, and take
turns; "processes, MPS" overlap. On the host there are no graphs and no streams. What is not there is recorded with the reason.
Outputs of every system are compared with eager's before it is loaded. p50 and p99 in milliseconds; goodput: requests a second
in 2, 5 and 10 ms; and the share of requests within their deadline.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kitsune_mlir
from bench import host
from bench.measure import relative_errors
from bench.records import Record
from bench.requests.load import offer
from bench.requests.processes import Processes, Unavailable, made, mps
from bench.requests.scenarios import ARRIVALS, BESIDE, SCENARIOS, Request, requests
from bench.requests.systems import LIMIT, Item, Taker, Work, batched, in_green_contexts, one_by_one, together
from bench.timing import environment
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.serving.statistics import percentile

SHARES = {"cpu": (0.25, 0.5, 0.8, 1.2), "cuda": (0.5, 1.0, 2.0, 4.0, 8.0)}
LIMITS = (0.002, 0.005, 0.010)
"""Seconds: what goodput is counted by."""
BURST = 256
STREAMS, PROCESSES = 16, {"cpu": 2, "cuda": 8}
NEAR = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
SYSTEMS = ("engine", "one by one", "streams", "green contexts", "batched", "vmap", "processes", "processes, MPS")

Send = Callable[[int, int, Callable[[Any], None]], None]
"""Hands in a model's number, its input's and what is called with the output, or error."""


class Load:
    """A scenario's models, and the systems that serve them.

    Args:
        asked: `device`, `small` and `deadline` of the command line.
    """

    def __init__(self, name: str, asked: argparse.Namespace):
        self.name, self.scenario, self._asked = name, SCENARIOS[name], asked
        self.device = asked.device
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.models, self.inputs = made(name, asked.small, self.device, self.dtype, 0)
        self._all = [min(one.count, 4) if asked.small else one.count for one in self.scenario.all]
        self.counts = self._all[: len(self.scenario.families)]
        self._programs: list[Any] = []
        gc.collect()
        gc.freeze()  # every capture of a graph collects garbage

    @contextlib.contextmanager
    def system(self, name: str, count: int) -> Iterator[Send]:
        """A system that is ready, for loads of so many requests.

        Raises:
            Unavailable: it is not there on this machine.
        """
        if name == "engine":
            named = {str(n): program for n, program in enumerate(self._compiled())}
            parts = self.scenario.each * count
            with kitsune_mlir.serve(named, limit=LIMIT, capacity=2 * parts) as engine:

                def send(model: int, row: int, ended: Callable[[Any], None]) -> None:
                    future = engine.submit(str(model), (self.inputs[model][row],), deadline=self._asked.deadline)
                    future.add_done_callback(lambda future: ended(future.exception() or future.result()))

                yield send
        elif name.startswith("processes"):
            parts = min(PROCESSES[self.device], len(self.models))
            with mps() if name.endswith("MPS") else contextlib.nullcontext({}) as own:
                served = Processes(self.name, self._asked.small, self.device, self.dtype, 0, parts, own)
                yield served.submit
                served.close()
        else:
            with torch.no_grad():
                taker = Taker(self._work(name))
            yield lambda model, row, ended: taker.submit(model, self.inputs[model][row], ended)
            taker.close()

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
            works.append((first, together(self.models[own], examples[first], family.shared)))
            first += count
        return lambda items: [one for begin, work in works for one in _of_family(items, begin, work, self._all, works)]

    def _compiled(self) -> list[Any]:
        """A program for each model; those of a family are one code."""
        if not self._programs:
            first = 0
            options = {"requests": LIMIT} if self.device == "cuda" else {}
            for count in self._all:
                program = kitsune_mlir.compile(self.models[first], (self.inputs[first][0],), options=options)
                names = {weight.name for weight in program.signature.supplied}
                for model in self.models[first : first + count]:
                    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
                    self._programs.append(program.with_weights({n: t for n, t in state.items() if n in names}))
                first += count
        return self._programs

    def models_of(self, request: Request) -> list[int]:
        """Numbers of the models that answer a request."""
        begin = sum(self.counts[: request.family])
        return [begin + n for n in request.models]

    def error(self, send: Send) -> float:
        """The largest error of what a system answers, each model asked twice at once, against eager."""
        asked = [(model, row) for model in range(len(self.models)) for row in (1, 2)]
        found: dict[int, Any] = {}
        left, done = [len(asked)], threading.Event()

        def keep(number: int, output: Any) -> None:
            found[number] = output.clone() if isinstance(output, Tensor) else output
            left[0] -= 1
            if not left[0]:
                done.set()

        for number, (model, row) in enumerate(asked):
            send(model, row, lambda output, number=number: keep(number, output))
        if not done.wait(120):
            raise TimeoutError(f"{left[0]} of {len(asked)} requests have no answer")
        worst = 0.0
        with torch.no_grad():
            for number, (model, row) in enumerate(asked):
                if isinstance(found[number], BaseException):
                    raise found[number]
                wanted = self.models[model](self.inputs[model][row])
                worst = max(worst, *relative_errors(found[number].to(wanted.device), wanted.double()))
        return worst

    def capacity(self, send: Send) -> float:
        """Requests a second of a burst."""
        count = min(self._asked.requests, 8 * BURST if self.device == "cuda" else BURST)
        burst = self.run(send, requests(self.counts, self.scenario.each, 1e9, count, "poisson", 0))
        return burst["answered"] / burst["seconds"]

    def run(self, send: Send, load: Sequence[Request]) -> dict[str, float]:
        """Figures of a load."""

        def hand_in(number: int, ended: Callable[[Any], None]) -> None:
            request = load[number]
            if self.scenario.straggler is not None and number % BESIDE == 0:
                send(len(self.models) - 1, request.row, lambda output: None)
            for model in self.models_of(request):
                send(model, request.row, ended)

        parts = len(load[0].models)
        times, seconds = offer([one.due for one in load], hand_in, parts)
        goodput = {f"goodput {1e3 * limit:g} ms": round(sum(t <= limit for t in times) / seconds, 1) for limit in LIMITS}
        deadline = self._asked.deadline
        goodput["in their deadline"] = round(sum(t <= deadline for t in times) / len(load), 5)
        p50, p99 = (round(1e3 * percentile(times, percent), 3) for percent in (50, 99))
        return {"p50": p50, "p99": p99, **goodput, "answered": len(times), "requests": len(load), "seconds": seconds}


def _of_family(items: Sequence[Item], begin: int, work: Work, counts: Sequence[int], works: Sequence[Any]) -> list[Item]:
    """Run those of the family whose first model has this number; those that wait for the next turn."""
    number = next(n for n, (first, _) in enumerate(works) if first == begin)
    own = [(model - begin, x, ended) for model, x, ended in items if begin <= model < begin + counts[number]]
    return [(model + begin, x, ended) for model, x, ended in work(own)] if own else []


def measure(name: str, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Entries of one scenario: one for each kind of arrivals and rate."""
    load = Load(name, asked)
    figures: dict[tuple[str, str], dict[str, Any]] = {}
    missing: dict[str, str] = {}
    errors: dict[str, float] = {}
    rates = list(asked.rates)
    for system in asked.systems:
        try:
            with load.system(system, asked.requests) as send:
                errors[system] = load.error(send)
                if not rates:
                    rates = [round(share * load.capacity(send), 1) for share in SHARES[asked.device]]
                own = {f"{share:g} of its own": share * load.capacity(send) for share in asked.own}
                for arrivals in asked.arrivals:
                    for told, rate in ({f"{rate:g}": rate for rate in rates} | own).items():
                        count = max(8, min(asked.requests, int(asked.seconds * rate)))
                        given = requests(load.counts, load.scenario.each, rate, count, arrivals, 1)
                        figures.setdefault((arrivals, told), {})[system] = {"rate": round(rate, 1), **load.run(send, given)}
        except Unavailable as error:
            missing[system] = str(error)
        except Exception as error:  # one that fails costs only itself
            missing[system] = f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
    ok = all(error < NEAR[load.dtype] for error in errors.values()) and not any("failed" in why for why in missing.values())
    for (arrivals, rate), found in figures.items():
        yield {
            "case": f"{name} {arrivals} {rate}",
            "ok": ok,
            "scenario": name,
            "arrivals": arrivals,
            **({"own": rate} if " " in rate else {"rate": float(rate)}),
            "deadline": asked.deadline,
            "small": asked.small,
            "systems": found,
            "errors": errors,
            "missing": missing,
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
            print(entry["case"], "ok" if entry["ok"] else "WRONG", "missing", entry["missing"])
            for system, found in entry["systems"].items():
                print(f"  {system:16s} {found} error {entry['errors'][system]:.1e}", flush=True)
    if asked.charts:
        from bench.charts import draw_loads

        print(*draw_loads(record.cases, asked.charts))
    return sum(not entry["ok"] for entry in record.cases.values())


if __name__ == "__main__":
    sys.exit(main())
