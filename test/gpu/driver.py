"""The command line that the programs of this folder share: `build` where the compiler is, `run` where the GPU is.

`run` may start processes of its own for some cases each (`part`), so that one that hangs costs only itself.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import queue
import select
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["answers", "answers_beside", "check_each", "program_main", "report", "run_of", "spilled_bytes"]

Build = Callable[[Path, Sequence[str]], int | None]
Run = Callable[[Path, Sequence[str], Namespace], int | None]


def program_main(
    description: str | None, build: Build, run: Run, part: Run | None = None, switches: Mapping[str, str] | None = None
) -> int:
    """Parse the command line `build|run|part FOLDER [NAME...] [--SWITCH...] [--json FILE]` and do what it says.

    Args:
        description: the program's docstring.
        build, run, part: for each mode; they return how many cases failed, or None. `run` and `part` also get the switches, and
            `json`, the file that figures go to, or None.
        switches: names of flags, with their help.

    Returns:
        The exit status: 1 if something failed.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", *(["part"] if part else [])], help="'part' is what 'run' starts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path, help="where figures go")
    for name, help in (switches or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=help)
    given = parser.parse_intermixed_args()
    if given.mode == "build":
        return min(1, build(given.folder, given.names) or 0)
    work = part if given.mode == "part" and part else run
    return min(1, work(given.folder, given.names, given) or 0)


def run_of(check: Callable[[str, Path, bool], bool], cases: Iterable[str]) -> Run:
    """What `run` does where `check`, of a case's name, the folder and the switch `time`, prints what it finds itself.

    Args:
        check: whether a case is right.
        cases: those that are run where none are named.
    """

    def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
        import torch

        with torch.no_grad():
            return sum(not check(name, folder, given.time) for name in names or cases)

    return run


def spilled_bytes(program: Any) -> int:
    """What all kernels of a compiled program spill."""
    return sum(kernel["spill_store_bytes"] for kernel in program.summary["kernels"])


def answers(
    module: str, folder: Path, names: Sequence[str], seconds: float, switches: Sequence[str] = (), mode: str = "part"
) -> Iterator[dict[str, Any]]:
    """What `python -m MODULE MODE FOLDER NAME...` says of each case: a line of JSON with its name as "case", in order.

    One process does as many cases as it survives, as its start takes seconds. One that ends early or is silent for `seconds`
    costs the case at hand, `{"case": ..., "ok": False, "error": ...}`, and a new one goes on with the next. It may also end
    after a case that it says is not "ok".
    """
    left = list(names)
    while left:
        command = [sys.executable, "-u", "-m", module, mode, str(folder), *left, *switches]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        text, failed = b"", False
        while select.select([process.stdout], [], [], seconds)[0] and (piece := process.stdout.read1()):
            *lines, text = (text + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"{"):
                    result = json.loads(line)
                    left.remove(result["case"])
                    failed = not result["ok"]
                    yield result
        process.kill()
        if left and not failed:
            tail = process.communicate()[1].decode(errors="replace").strip().splitlines()[-1:]
            yield {"case": left.pop(0), "ok": False, "error": f"hung or crashed: {' '.join(tail)}"}
        process.wait()


def answers_beside(
    count: int,
    module: str,
    folder: Path,
    names: Sequence[str],
    seconds: float,
    switches: Sequence[str] = (),
    mode: str = "part",
) -> Iterator[dict[str, Any]]:
    """`answers` of `count` processes side by side, each with a share of the cases; in any order, as they come."""
    results: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def share(number: int) -> None:
        try:
            for result in answers(module, folder, names[number::count], seconds, switches, mode):
                results.put(result)
        finally:
            results.put(None)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        working = [pool.submit(share, number) for number in range(count)]
        for _ in working:
            while (result := results.get()) is not None:
                yield result
        for one in working:
            one.result()


def check_each(names: Sequence[str], check: Callable[[str], tuple[bool, dict[str, Any]]]) -> int:
    """What `part` mostly is: check cases one after the other, and print a line of JSON for each.

    Args:
        check: whether a case is right, and what was found.

    Returns:
        1 after a case that raised an error, which may have cost the device's context; then nothing else is tried.
    """
    for name in names:
        try:
            right, found = check(name)
        except Exception as error:
            print(json.dumps({"case": name, "ok": False, "error": f"{type(error).__name__}: {error}"}), flush=True)
            return 1
        print(json.dumps({"case": name, "ok": right, **found}), flush=True)
    return 0


def report(results: Iterable[dict[str, Any]]) -> int:
    """What `run` mostly does with its `answers`: print a line for each, and how many failed, which it returns."""
    failed = 0
    for result in results:
        name, right = result.pop("case"), result.pop("ok")
        print(f"{'ok  ' if right else 'FAIL'} {name:20s} {result}", flush=True)
        failed += not right
    print(f"{failed} failed")
    return failed
