"""All checks on a GPU, side by side: what `make gpu-kits` builds and `make gpu-test` runs.

    python -m test.gpu.checks build DIR [kinds...] [--jobs N]                       needs the compiler (torch-mlir), no GPU
    python -m test.gpu.checks run DIR [kinds...] [--jobs N] [--seconds S] [--results DIR]      needs a Hopper GPU, no compiler

A kind is a program of this folder; what it builds goes to DIR/KIND, what it prints to DIR/log. Each has a time limit, and a
line here. Quick ones come first; what has not begun when all the time is over, or when the command is told to end, is said to
have not run, which is no success. Tables of the soak and of the sanitizers go to the folder of results (default:
bench/results), by the device's name.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["KINDS", "Kind"]

PART = 12
"""Cases that a process builds."""
BUILD_SECONDS = 1200
RUN_SECONDS = 600
LEAST_SECONDS, MARGIN_SECONDS = 10, 8
"""What a kind begins with, at least; what one that keeps to a time itself is told less than it has."""
LOOK_SECONDS = 0.5
"""How often a command's clock is looked at."""
SHOWN = 6
"""Lines of a failed check that are shown here."""
_BAD = re.compile(r"FAIL|WRONG|BAD|Error|hung|crashed|SPILLS|failed")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A program with the modes `build` and `run`.

    Attributes:
        name: of the module, and of the folder of what it builds.
        seconds: that `run` may take.
        cases: names of its cases, by which `build` can be divided among processes; None: one process builds all.
        chosen: arguments of `build` for some of these names.
        module, mode, folder: where they are not the name, "run" and the name; a kind with another's folder builds nothing.
        options: of `run`; "{kits}" is the folder of all kinds, "{results}" that of results, "{device}" the device's name,
            "{seconds}" what there is left for it.
        alone: uses all processors: runs when all others have ended.
    """

    name: str
    seconds: float = 120
    cases: Callable[[], Sequence[str]] | None = None
    chosen: Callable[[Sequence[str]], list[str]] = list
    module: str = ""
    mode: str = "run"
    folder: str = ""
    options: tuple[str, ...] = ()
    alone: bool = False

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-u", "-m", f"test.gpu.{self.module or self.name}"]


def _names(module: str, *tables: str) -> Callable[[], list[str]]:
    """Names in tables of a program, which is imported when they are asked for."""

    def names() -> list[str]:
        program = importlib.import_module(f"test.gpu.{module}")
        return [name for table in tables for name in getattr(program, table)]

    return names


def _hand_written() -> list[str]:
    return [case.name for case in importlib.import_module("test.gpu.run_programs").all_cases(())]


def _queues() -> list[str]:
    return [*importlib.import_module("test.gpu.queue_kernels").PROBES, *_names("queue_programs", "MODELS")()]


def _only(names: Sequence[str]) -> list[str]:
    return ["--only", f"^({'|'.join(map(re.escape, names))})$"]


GRAPHS = 120


def _graphs(numbers: Sequence[str]) -> list[str]:
    return ["--count", str(GRAPHS), "--only", *numbers]


# Quick ones first. On an H200 with 16 processor cores those before `run_programs` take 8 to 25 s each.
KINDS = (
    Kind("mma_programs", 120, _names("mma_programs", "CASES")),
    Kind("attention_programs", 120, _names("attention_programs", "CASES")),
    Kind("attention_gradient_programs", 120, _names("attention_gradient_programs", "CASES")),
    Kind("gemv_programs", 120, _names("gemv_programs", "CASES")),
    Kind("conv_programs", 120, _names("conv_programs", "CASES")),
    Kind("range_programs", 120, _names("range_programs", "CASES")),
    Kind("row_programs", 120, _names("row_programs", "CASES")),
    Kind("reduction_programs", 120, _names("reduction_programs", "CASES")),
    Kind("scatter_programs"),
    Kind("in_place_programs"),
    Kind("window_programs"),
    Kind("request_programs", 120, _names("request_programs", "CASES")),
    Kind("live_programs", 120, _names("live_programs", "CASES")),
    Kind("simt_programs", 120, _names("simt_programs", "CASES"), _only),
    Kind("primitives_check"),
    Kind("hang_programs"),
    Kind("handoff_programs"),
    Kind("graphs", 120, lambda: [str(number) for number in range(GRAPHS)], _graphs),
    Kind("operator_programs", 120, _names("operator_programs", "CASES")),
    Kind("run_programs", 150, _hand_written),
    Kind("chain_programs", 150, _names("chain_programs", "CASES")),
    Kind("queue_programs", 150, _queues),
    Kind("zoo", 150, _names("zoo", "ZOO", "VARIANTS"), options=("--jobs", "3")),
    Kind("soak", 150, module="zoo", mode="soak", folder="zoo", options=(
        *("--jobs", "5"), *("--json", "{results}/soak-{device}.json"),
    )),
    Kind("sanitize", 240, _names("sanitizer_cases", "CASES"), alone=True, options=(
        *("--zoo", "{kits}/zoo"), *("--json", "{results}/sanitizer-{device}.json"), *("--seconds", "{seconds:.0f}"),
    )),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended: whether it was right, seconds, what it printed, and whether it had begun at all."""

    right: bool
    seconds: float
    text: str
    ran: bool = True


class Clock:
    """The time that there is for everything.

    Args:
        seconds: until it is over.
    """

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def stop(self) -> None:
        """It is over now."""
        self._end = time.monotonic()


def execute(command: Sequence[str], log: Path, limit: float, clock: Clock | None = None) -> Ended:
    """Run a command with its children in a group of their own, which ends with it; its output goes to a file.

    Args:
        limit: seconds that it may take.
        clock: it ends at the latest when this is over.
    """
    start = time.monotonic()
    with log.open("w") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        while child.poll() is None and time.monotonic() - start < limit and (clock is None or clock.left > 0):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_SECONDS)
        late = child.poll() is None
        if late:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    seconds = time.monotonic() - start
    written = log.read_text(errors="replace")
    return Ended(child.returncode == 0, seconds, f"{written}\n{f'no end in {seconds:.0f} s' if late else ''}")


def told(name: str, ended: Sequence[Ended], log: Path) -> str:
    """The line of a kind, and what was wrong below it."""
    right, seconds = all(one.right for one in ended), max(one.seconds for one in ended)
    lines = [line for one in ended for line in one.text.splitlines() if line.strip()]
    word = "ok  " if right else "FAIL" if all(one.ran for one in ended) else "none"
    line = f"{word} {name:20s} {seconds:4.0f} s  {lines[-1][:100] if lines else ''}"
    if word == "none":
        return line
    bad = [] if right else [line for line in lines if _BAD.search(line)][:SHOWN] or lines[-SHOWN:]
    return "\n".join([line, *(f"       {text[:160]}" for text in bad), *([] if right else [f"       all of it: {log}"])])


def build(folder: Path, kinds: Sequence[Kind], jobs: int) -> int:
    """Build the packages of all kinds, in parts, side by side; how many kinds failed."""
    if importlib.util.find_spec("torch_mlir") is None:
        print(
            "torch-mlir is not installed here, so nothing can be compiled. Build the packages where it is (make gpu-kits), "
            "copy their folder (out/gpu/kits) here, and run them: make gpu-test KITS=FOLDER PYTHON=python3"
        )
        return 1
    start, bad = time.monotonic(), 0
    (folder / "log").mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting: dict[str, list[concurrent.futures.Future[Ended]]] = {}
        for kind in kinds:
            if kind.folder:
                continue
            names = list(kind.cases()) if kind.cases is not None else []
            count = max(1, -(-len(names) // PART))
            for number in range(count):
                # Every count-th name: neighbours cost alike.
                chosen = kind.chosen(names[number::count]) if names else []
                log = folder / "log" / f"build.{kind.name}.{number}.txt"
                command = [*kind.command, "build", str(folder / kind.name), *chosen]
                waiting.setdefault(kind.name, []).append(pool.submit(execute, command, log, BUILD_SECONDS))
        for name, parts in waiting.items():
            ended = [part.result() for part in parts]
            bad += not all(one.right for one in ended)
            print(told(name, ended, folder / "log" / f"build.{name}.*"), flush=True)
    print(f"built {len(waiting) - bad} of {len(waiting)} kinds into {folder} in {time.monotonic() - start:.0f} s")
    return bad


def run(folder: Path, kinds: Sequence[Kind], jobs: int, results: Path, seconds: float) -> int:
    """Run what was built; how many kinds failed or did not run."""
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("no Hopper GPU here (compute capability 9.0)")
        return 1
    device = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower().removeprefix("nvidia")).strip("-")
    clock = Clock(seconds)
    signal.signal(signal.SIGTERM, lambda *_: clock.stop())
    return run_on(device, folder, kinds, jobs, results, clock)


def run_on(device: str, folder: Path, kinds: Sequence[Kind], jobs: int, results: Path, clock: Clock) -> int:
    """Run kinds, a few at a time, on the device of that name; how many failed or did not run."""
    places = {"kits": str(folder), "results": str(results), "device": device}
    start, bad, missed = time.monotonic(), 0, 0
    (folder / "log").mkdir(parents=True, exist_ok=True)

    def one(kind: Kind) -> tuple[Kind, Ended, Path]:
        log, source = folder / "log" / f"run.{kind.name}.txt", folder / (kind.folder or kind.name)
        if not source.exists():
            return kind, Ended(False, 0.0, f"{source} is not there: build it first (make gpu-kits)"), log
        limit = min(kind.seconds, clock.left)
        if limit < LEAST_SECONDS:
            return kind, Ended(False, 0.0, "not run: no time was left", ran=False), log
        options = [option.format(**places, seconds=limit - MARGIN_SECONDS) for option in kind.options]
        if "--json" in options:  # this run's table, not also that of programs before
            Path(options[options.index("--json") + 1]).unlink(missing_ok=True)
        return kind, execute([*kind.command, kind.mode, str(source), *options], log, limit, clock), log

    for part in ([kind for kind in kinds if not kind.alone], [kind for kind in kinds if kind.alone]):
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for done in concurrent.futures.as_completed([pool.submit(one, kind) for kind in part]):
                kind, ended, log = done.result()
                bad += ended.ran and not ended.right
                missed += not ended.ran
                print(told(kind.name, [ended], log), flush=True)
    right = len(kinds) - bad - missed
    print(f"{right} of {len(kinds)} kinds right, {bad} not, {missed} not run, on {device} in {time.monotonic() - start:.0f} s")
    return bad + missed


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=", ".join(kind.name for kind in KINDS))
    parser.add_argument("--jobs", type=int, help="processes side by side; default: all processors to build, 6 to run")
    parser.add_argument("--seconds", type=float, default=RUN_SECONDS, help="that all of `run` may take; default: %(default)s")
    parser.add_argument("--results", type=Path, default=Path("bench/results"))
    given = parser.parse_intermixed_args()
    unknown = set(given.kinds) - {kind.name for kind in KINDS}
    if unknown:
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    kinds = [kind for kind in KINDS if not given.kinds or kind.name in given.kinds]
    if given.mode == "build":
        return min(1, build(given.folder, kinds, given.jobs or os.cpu_count() or 2))
    return min(1, run(given.folder, kinds, given.jobs or 6, given.results, given.seconds))


if __name__ == "__main__":
    sys.exit(main())
