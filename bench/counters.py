"""DRAM traffic of one call, from the hardware's counters: `python -m bench.counters DIR [PATTERN...] --json FILE`.

Runs ncu (Nsight Compute) over one process that calls each case's program, and the model in PyTorch, once. L2 is cold and clean:
a large buffer was read last, so that nothing of what was written before goes to memory meanwhile. What the call itself
leaves in L2 is written back by reading that buffer again, and counted. The sums go into the cases' entries of FILE,
which `bench.suite run` wrote; where the counters cannot be read, the reason does.
"""

from __future__ import annotations

import argparse
import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

__all__ = ["add_counters", "segments"]

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
MARKER = "spin_kernel"  # what torch.cuda._sleep launches: it separates the calls in ncu's list of kernels
SUBJECTS = ("kitsune", "eager")
PARTS = 2  # segments a call: the call itself, and the flush behind it, of which only what it writes counts
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def calls(folder: Path, names: Iterable[str]) -> None:
    """What ncu watches: for each case and subject a marker, then one call, a marker, then a flush."""
    from bench.cases import all_cases
    from bench.measure import prepared

    flush = torch.zeros(1 << 26, dtype=torch.float32, device="cuda")
    runtime = torch.cuda.cudart()
    assert runtime is not None
    for name in names:
        (model, args), program = prepared(folder / f"{name}.kit", all_cases()[name])
        with torch.no_grad():
            for run in (program, model):
                for _ in range(2):
                    run(*args)
                flush.sum()
                torch.cuda.synchronize()
                runtime.cudaProfilerStart()
                torch.cuda._sleep(1)
                run(*args)
                torch.cuda._sleep(1)
                flush.sum()
                torch.cuda.synchronize()
                runtime.cudaProfilerStop()
        del model, args, program, run
        torch.cuda.empty_cache()


def segments(text: str) -> list[float]:
    """Bytes of each call from ncu's CSV (a row a metric of a kernel): read and written by it, written by the flush behind it.

    Raises:
        ValueError: the text is no such table; the message is its last line.
    """
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        said = [line for line in lines if line.startswith("==ERROR==")] or lines[-1:] or ["ncu said nothing"]
        raise ValueError(said[0].removeprefix("==ERROR== "))
    sums: list[float] = []
    seen: set[str] = set()
    segment = -1
    for row in csv.DictReader(io.StringIO("\n".join(lines[first:]))):
        if MARKER in row["Kernel Name"]:
            if row["ID"] not in seen:
                seen.add(row["ID"])
                segment += 1
                sums += [0.0] if segment % PARTS == 0 else []
        elif row["Metric Name"] in (METRICS if segment % PARTS == 0 else METRICS[1:]) and sums:
            sums[-1] += float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
    return sums


def read(folder: Path, names: list[str], limit: float) -> tuple[list[float], str]:
    """Bytes of every case and subject in order, or why there are none."""
    ncu = shutil.which("ncu") or next(iter(map(str, sorted(Path("/usr/local").glob("cuda*/bin/ncu")))), None)
    if ncu is None:
        return [], "ncu is not installed"
    command = [ncu, "--csv", "--metrics", ",".join(METRICS), "--profile-from-start", "off"]
    # The caches stay as the kernel before left them: a chain of kernels hands data on in L2.
    command += ["--cache-control", "none", "--clock-control", "none"]
    command += [sys.executable, "-m", "bench.counters", str(folder), *names, "--calls"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        found = segments(done.stdout)
    except subprocess.TimeoutExpired:
        return [], f"ncu did not end within {limit:g} s"
    except ValueError as error:
        return [], str(error)
    wanted = len(names) * len(SUBJECTS)
    return (found, "") if len(found) == wanted else ([], f"ncu saw {len(found)} of {wanted} calls")


def add_counters(path: Path, folder: Path, names: list[str], limit: float) -> None:
    """Put DRAM bytes by subject, or the reason why not, into the entries of a record."""
    from bench.records import Record

    record = Record.open(path)
    names = [name for name in names if name in record.cases]
    found, reason = read(folder, names, limit)
    for number, name in enumerate(names):
        part = found[number * len(SUBJECTS) : (number + 1) * len(SUBJECTS)]
        record.cases[name]["dram_bytes"] = dict(zip(SUBJECTS, part, strict=True)) if part else None
        record.cases[name]["dram_missing"] = reason
        print(f"{name}: " + (", ".join(f"{s} {b / 1e6:.1f} MB" for s, b in zip(SUBJECTS, part, strict=False)) or reason))
    record.write()


def main() -> int:
    """Command line."""
    from bench.suite import found

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--limit", type=float, default=300, help="seconds")
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.calls:
        calls(given.folder, given.patterns)
        return 0
    if given.json is None:
        parser.error("--json is needed")
    add_counters(given.json, given.folder, [c.name for c in found(given.folder, given.patterns)], given.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
