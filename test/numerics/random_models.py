"""Random small models: compiled, and on the host compared with PyTorch in float64. From the checkout's root:

    python -m test.numerics.random_models --seeds 500 --target host
    python -m test.numerics.random_models --seeds 300 --target sm_90a                # compiles; --ptxas also assembles
    python -m test.numerics.random_models --seeds 300 --target sm_90a --run          # and runs, which needs a Hopper GPU
    python -m test.numerics.random_models --first 123 --seeds 1 --target host --shrink    # prints the model that fails

A model comes out right or is refused by a `KitsuneError` that names what is not supported (an `UnsupportedError` or a
`FrontendError`); anything else, a `CompileError` included, is a failure. A process of its own compiles a chunk of seeds, so
that one that crashes is found too.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import subprocess
import sys
import time
import traceback
import warnings

import torch
from torch.utils._pytree import tree_map_only

import kitsune_mlir
from kitsune_mlir.errors import FrontendError, PerformanceWarning, UnsupportedError
from test.gpu.unassembled import unassembled
from test.numerics.compare import exact, problems
from test.numerics.random_images import images
from test.numerics.random_layers import attention, graph, rows
from test.numerics.random_moves import moves
from test.numerics.recorded import Model, Recorder, shrunk

FAMILIES = (images, rows, graph, attention, moves)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)
CHUNK = 20
SECONDS = 600
"""That a chunk may take."""


def drawn(seed: int) -> Model:
    """The model of a seed; seeds walk through the families."""
    r = random.Random(seed)
    return Model(FAMILIES[seed % len(FAMILIES)](r, Recorder(seed), r.choice(DTYPES)))


def failure(model: Model, target: str, device: str | None = None) -> str | None:
    """What goes wrong with a model, or None; refusals that name an operator or a limit are no failures.

    Args:
        device: where to run what is compiled for a GPU; None: nowhere.
    """
    args, device = model.arguments, "cpu" if target == "host" else device
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            program = kitsune_mlir.compile(model, args, target=target, options={"convolution_precision": "highest"})
            if device is None:
                return None
            got = tree_map_only(torch.Tensor, torch.Tensor.cpu, program(*(a.to(device) for a in args)))
            found = problems(got, exact(model, args), model(*args))
    except (UnsupportedError, FrontendError):
        return None
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {place.filename.rsplit('/', 1)[-1]}:{place.name}: {error}"
    return f"wrong: {'; '.join(found)}" if found else None


def run(seeds: range, target: str, ptxas: bool, shrink: bool, device: str | None) -> None:
    """Print a line for each seed, with its failure if there is one, and the failing model's source."""
    with contextlib.nullcontext() if ptxas else unassembled():
        for seed in seeds:
            print(f"seed {seed}", end="", flush=True)
            start = time.perf_counter()
            model = drawn(seed)
            found = failure(model, target, device)
            print(f": {time.perf_counter() - start:.1f} s" + (f", FAILED: {found}" if found else ""), flush=True)
            if found and shrink:
                kind = re.sub(r"[^A-Za-z ]+", "", found)[:60]
                smaller = shrunk(model, lambda m: re.sub(r"[^A-Za-z ]+", "", failure(m, target, device) or "").startswith(kind))  # noqa: B023
                print(f"{smaller.source()}\n{failure(smaller, target, device)}", flush=True)


def main() -> int:
    """The command line; 1 where a seed failed."""
    parser = argparse.ArgumentParser(description="Compiles random models.")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--step", type=int, default=1, help=f"between seeds; {len(FAMILIES)} stays in one family")
    parser.add_argument("--target", default="host", choices=("host", "sm_90a"))
    parser.add_argument("--ptxas", action="store_true", help="sm_90a: assemble as well")
    parser.add_argument("--run", action="store_true", help="sm_90a: assemble, and run on this machine's GPU")
    parser.add_argument("--shrink", action="store_true", help="make models that fail smaller, and print them")
    parser.add_argument("--here", action="store_true", help="in this process")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds * given.step, given.step)
    if given.here:
        run(seeds, given.target, given.ptxas or given.run, given.shrink, "cuda" if given.run else None)
        return 0
    failed: list[str] = []
    for begin in range(0, len(seeds), CHUNK):
        left = seeds[begin : begin + CHUNK]
        while left:
            words = [sys.executable, "-m", "test.numerics.random_models", "--here", f"--target={given.target}"]
            words += [f"--first={left[0]}", f"--seeds={len(left)}", f"--step={given.step}"]
            words += [f"--{word}" for word in ("ptxas", "run", "shrink") if getattr(given, word)]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
                output, ended = done.stdout, f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
            except subprocess.TimeoutExpired as error:
                output, ended = (error.stdout or b"").decode(), f"was stopped after {SECONDS} s"
            begun = [int(n) for n in re.findall(r"^seed (\d+)", output, re.M)]
            ends = re.findall(r"^seed \d+.*: \d+\.\d s.*", output, re.M)
            failed += [line for line in ends if "FAILED" in line]
            if given.shrink:
                print(output, flush=True)
            else:
                print("".join(f"{line}\n" for line in ends if "FAILED" in line), end="", flush=True)
            if len(ends) == len(left):
                break
            # the seed at which it ended, then the rest
            last = begun[-1] if begun else left[0]
            failed.append(f"seed {last}: FAILED: {ended}")
            print(failed[-1], flush=True)
            left = left[left.index(last) + 1 :]
    print(f"{len(seeds)} seeds, {len(failed)} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
