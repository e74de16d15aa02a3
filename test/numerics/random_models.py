"""Random small models: compiled, and compared with PyTorch in float64. From the checkout's root:

    python -m test.numerics.random_models --seeds 500 --target host
    python -m test.numerics.random_models --seeds 300 --target sm_90a           # PTX, and the GPU's plan with the host's code
    python -m test.numerics.random_models --seeds 300 --target sm_90a --ptxas   # assembles as well
    python -m test.numerics.random_models --seeds 300 --target sm_90a --run     # and runs, which needs a Hopper GPU
    python -m test.numerics.random_models --seeds 100 --target h200 --large     # models that fill the machine: slow stages
    python -m test.numerics.random_models --first 123 --seeds 1 --target host --shrink    # prints the model that fails

`--json FILE` records the seeds, and by family how many models were right, refused and failed; with `--resume` FILE's seeds are
left out. Its `runs` say where and when, and with which commit. A model comes out right (`compare.beside_eager`) or is refused
by a `KitsuneError` that names what is not supported (an `UnsupportedError` or a `FrontendError`); anything else, a
`CompileError` included, is a failure. A process of its own compiles models, and is replaced where one crashes it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import kitsune_mlir
from bench.host import environment
from bench.worker import Worker
from kitsune_mlir.errors import FrontendError, PerformanceWarning, UnsupportedError
from test.gpu.unassembled import unassembled
from test.numerics.compare import beside_eager
from test.numerics.random_families import FAMILIES, drawn
from test.numerics.recorded import Model, shrunk
from test.programs.compiled import compiled_with_host_code

CHUNK = 50
"""Models after which a process is replaced."""
SECONDS = 300
"""That a model may take."""


@dataclass
class Outcome:
    """What became of a model.

    Attributes:
        failed: what is wrong; "" where it is right or refused.
        refused: the error that says what is not supported.
        slow: reasons of stages that the compiler says are slow.
    """

    failed: str = ""
    refused: str = ""
    slow: list[str] = field(default_factory=list)


def checked(model: Model, target: str, device: str | None = None) -> Outcome:
    """Compile a model, and compare what it gives.

    Args:
        target: "host"; or a GPU, whose plan the host runs unless there is a device.
        device: where to run what is compiled for a GPU; "meta": nowhere.
    """
    args, found = model.arguments, Outcome()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            options = {"convolution_precision": "highest"}
            if target == "host" or device:
                program = run = kitsune_mlir.compile(model, args, target=target, options=options)
            else:
                program, run = compiled_with_host_code(model, *args, target=target, **options)
            found.slow = [stage["reason"] for stage in program.summary.get("slow", ())]
            if device == "meta":
                return found
            if device:
                model, args = model.to(device), tuple(a.to(device) for a in args)
            wrong = beside_eager(model, args, run(*args), by_atomics=target != "host" and not device)
    except (UnsupportedError, FrontendError) as error:
        found.refused = f"{type(error).__name__}: {error}"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        found.failed = f"{type(error).__name__} in {place.filename.rsplit('/', 1)[-1]}:{place.name}: {error}"
    else:
        found.failed = f"wrong: {'; '.join(wrong)}" if wrong else ""
    return found


def failure(model: Model, target: str, device: str | None = None) -> str | None:
    """What goes wrong with a model, or None; refusals that name an operator or a limit are no failures."""
    return checked(model, target, device).failed or None


def smaller(model: Model, fails: Callable[[Model], str]) -> Model:
    """The smallest part of a model that was found to fail in the same way."""

    def kind(text: str) -> str:
        return re.sub(r"[^A-Za-z ]+", "", text)[:40]

    wanted = kind(fails(model))
    return shrunk(model, lambda part: kind(fails(part)) == wanted)


def work(given: argparse.Namespace) -> None:
    """The second process: reads seeds, one a line, and answers each with a line of JSON."""
    device = "cuda" if given.run else "meta" if given.large else None
    print("{}", flush=True)
    with contextlib.nullcontext() if given.ptxas or given.run else unassembled():
        for line in sys.stdin:
            start = time.perf_counter()
            model = drawn(int(line), given.large)
            found = checked(model, given.target, device)
            answer = {"ok": not found.failed, **asdict(found), "seconds": round(time.perf_counter() - start, 1)}
            if found.failed and given.shrink:
                part = smaller(model, lambda m: checked(m, given.target, device).failed)
                answer["model"] = f"{part.source()}\n{checked(part, given.target, device).failed}"
            print(json.dumps(answer), flush=True)


def summed(answers: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """By family: models, those that were right, refused, failed and had slow stages."""
    table: dict[str, dict[str, int]] = {}
    for seed, answer in answers.items():
        name = FAMILIES[int(seed) % len(FAMILIES)].__name__
        row = table.setdefault(name, dict.fromkeys(("models", "right", "refused", "failed", "slow"), 0))
        row["models"] += 1
        row["failed" if not answer["ok"] else "refused" if answer.get("refused") else "right"] += 1
        row["slow"] += bool(answer.get("slow"))
    return table


def main() -> int:
    """The command line; 1 where a seed failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help=f"between seeds; {len(FAMILIES)} stays in one family")
    parser.add_argument("--target", default="host", choices=("host", "sm_90a", "h200"))
    parser.add_argument("--ptxas", action="store_true", help="GPU: assemble as well")
    parser.add_argument("--run", action="store_true", help="GPU: assemble, and run on this machine's GPU")
    parser.add_argument("--large", action="store_true", help="sizes that fill a GPU; compiled, and not run here")
    parser.add_argument("--shrink", action="store_true", help="make models that fail smaller, and print them")
    parser.add_argument("--json", type=Path, help="where to record what became of the models")
    parser.add_argument("--resume", action="store_true", help="leave out the seeds that the file has")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given)
        return 0
    words = [f"--target={given.target}"]
    words += [f"--{word}" for word in ("ptxas", "run", "large", "shrink") if getattr(given, word)]
    record: dict[str, Any] = {"answers": {}}
    if given.resume and given.json is not None and given.json.exists():
        record = json.loads(given.json.read_text())
    record["command"] = " ".join(("python -m test.numerics.random_models", *words))
    seeds = range(given.first, given.first + given.seeds * given.step, given.step)
    if given.json is not None:
        record.setdefault("runs", []).append({"environment": environment(), "seeds": [given.first, seeds[-1], given.step]})
    worker = Worker([sys.executable, "-u", "-m", "test.numerics.random_models", "--work", *words])
    for number, seed in enumerate(seed for seed in seeds if str(seed) not in record["answers"]):
        if number % CHUNK == 0:
            worker.close()
        answer = worker.ask(str(seed), SECONDS)
        if "problem" in answer:
            answer["failed"] = answer.pop("problem")
        record["answers"][str(seed)] = answer
        if not answer["ok"]:
            print(f"seed {seed}: FAILED: {answer['failed']}\n{answer.get('model', '')}".rstrip(), flush=True)
        if given.json and (number % CHUNK == CHUNK - 1 or seed == seeds[-1]):
            given.json.write_text(json.dumps({**record, "families": summed(record["answers"])}, indent=1) + "\n")
    worker.close()
    mine = {str(seed): record["answers"][str(seed)] for seed in seeds}
    for name, row in summed(mine).items():
        print(f"{name:14s} " + ", ".join(f"{count} {what}" for what, count in row.items()))
    failed = sum(not answer["ok"] for answer in mine.values())
    print(f"{len(mine)} seeds, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
