"""GPU primitives on a device, in two halves that may run on different machines.

    python -m test.gpu.primitives_check build FOLDER     compiles every case (needs the compiler, no GPU)
    python -m test.gpu.primitives_check run FOLDER       runs and checks them (needs a GPU, torch, cuda-bindings; no compiler)

`--only REGEX` selects cases by name. Inputs of products and reductions are small integers wherever that makes the exact result
representable, and then the comparison is for equality.

Cases run one after the other in a process of their own. When one of them loses the CUDA context, ends the process or
takes longer than `--limit` seconds, it counts as failed, and a fresh process goes on with the next.
"""

from __future__ import annotations

import argparse
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

STARTING = 300.0
"""Seconds that a process gets to import torch and make its CUDA context."""
MARK = "\x1e"
"""Begins each line by which the process that runs the cases reports; its other lines are shown as they are."""


def build(folder: Path, only: str) -> int:
    """Compile the cases into `folder`; returns the number that failed."""
    from test.gpu import cases_products, cases_roles, cases_scalar, cases_tiles  # noqa: F401
    from test.gpu.case import CASES

    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in CASES if re.search(only, name)]
    failed = 0
    for name in names:
        try:
            CASES[name]().write(folder, name)
            print(f"built {name}", flush=True)
        except Exception as error:  # every other case is still worth building
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    print(f"built {len(names) - failed} cases into {folder}, {failed} failed")
    return failed


def run(folder: Path, only: str, limit: float, worker: Sequence[str] = ()) -> int:
    """Run and check the cases of `folder`, those that are meant to trap last; returns the number that failed.

    Args:
        limit: seconds for one case.
        worker: the command that is given `folder` and the names of cases; default: this module's mode "cases".
    """
    worker = worker or [sys.executable, "-m", "test.gpu.primitives_check", "cases"]
    checks = {path.stem: json.loads(path.read_text())["check"] for path in folder.glob("*.json")}
    left = sorted((name for name in checks if re.search(only, name)), key=lambda name: (checks[name] == "starve", name))
    if not left:
        print(f"no case of {folder} is selected", flush=True)
        return 1
    total, failed = len(left), []
    while left:
        for name, right, remark in _attempt([*worker, str(folder), *left], tuple(left), limit):
            print(f"{'ok  ' if right else 'FAIL'} {name}{': ' + remark if remark else ''}", flush=True)
            failed += [] if right else [name]
            left.remove(name)
    print(f"{total} cases, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}", flush=True)
    return len(failed)


def _attempt(command: Sequence[str], names: Sequence[str], limit: float) -> Iterator[tuple[str, bool, str]]:
    """Run a process over `names`, in order, as far as it gets; (name, right, remark) of at least one of them."""
    lines: queue.Queue[str | None] = queue.Queue()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    started, done = False, 0
    try:
        while done < len(names):
            try:
                line = lines.get(timeout=limit if started else STARTING)
            except queue.Empty:
                wrong = f"did not end within {limit:.0f} s" if started else f"did not start within {STARTING:.0f} s"
                yield names[done], False, wrong
                return
            if line is None:
                yield names[done], False, f"the process ended with status {process.wait()}"
                return
            if not line.startswith(MARK):
                print(line, flush=True)
            elif line == MARK:
                started = True
            else:
                name, right, remark, go_on = json.loads(line[1:])
                done += 1
                yield name, right, remark
                if not go_on:
                    return
    finally:
        process.kill()  # it has nothing left to do, or hangs, or has lost its context
        process.wait()


def cases(folder: Path, names: Sequence[str]) -> int:
    """Run the cases `names`, reporting each, until the CUDA context is lost."""
    import torch

    from test.gpu.primitives_device import check_case

    torch.zeros(1, device="cuda")  # makes the context current
    print(MARK, flush=True)
    for name in names:
        right, remark, go_on = check_case(folder, name)
        print(MARK + json.dumps([name, right, remark, go_on]), flush=True)
        if not go_on:
            return 0
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", "cases"], help="'cases': what 'run' starts, for named cases")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="for 'cases'")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one case")
    options = parser.parse_args()
    if options.mode == "build":
        return int(bool(build(options.folder, options.only)))
    if options.mode == "run":
        return int(bool(run(options.folder, options.only, options.limit)))
    return cases(options.folder, options.names)


if __name__ == "__main__":
    sys.exit(main())
