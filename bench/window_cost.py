"""What a window costs the host: the check for hazards alone, and all of an append.

    python -m bench.window_cost [--json FILE]

The check is of entries with ten ranges (of whole tensors: eight read, two written) in a window that is full, of 32 and of 128
entries: an append and the retirement of the oldest entry, called from Python; compiled ("hazards"), compiled where all but the
pointers is known, as it is of programs ("placed"), and in Python ("python"). "code" is the compiled functions alone, without
what Python does around them. The append is of a program of two inputs and one result, run by nobody meanwhile. Least of several
rounds, processor time of one thread. (ACS, arXiv 2401.12377, has 1.64 us for 32 entries of ten ranges.)
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.records import Record
from bench.timing import commit_of
from kitsune_mlir.runtime.timer import device_name
from kitsune_mlir.windows.compiled_hazards import CompiledHazards, Placed, Places
from kitsune_mlir.windows.hazards import READ, WRITE, Hazards

ROUNDS, COUNT = 9, 2000
SEGMENTS, WRITTEN = 10, 2


def streams(tensors: int = 400) -> list[list[tuple[int, int, int]]]:
    """The ranges of entries over a pool of tensors."""
    draw = random.Random(0)
    entries = []
    for _ in range(COUNT):
        chosen = draw.sample(range(tensors), SEGMENTS)
        places = [(4096 * n, 4096 * n + 4000) for n in chosen]
        entries.append([(low, high, WRITE if n >= SEGMENTS - WRITTEN else READ) for n, (low, high) in enumerate(places)])
    return entries


def hazard_check(make: Callable[[int], Hazards | CompiledHazards], size: int, placed: bool = False) -> float:
    """Microseconds of an append, retirement of the oldest entry included."""
    entries: list[Any] = streams()
    best = float("inf")
    if placed:
        modes = [mode for _, _, mode in entries[0]]
        places = Places([(n, 0, 4000, mode) for n, mode in enumerate(modes)], SEGMENTS)
        entries = [Placed(places, tuple(low for low, _, _ in ranges)) for ranges in entries]
    for _ in range(ROUNDS):
        hazards = make(size)
        for ranges in entries[:size]:
            hazards.append(ranges)
        append, retire = hazards.append, hazards.retire
        start = time.thread_time()
        for number, ranges in enumerate(entries[size:]):
            retire(number)
            append(ranges)
        best = min(best, (time.thread_time() - start) / (COUNT - size))
    return 1e6 * best


def code_cost(size: int) -> float:
    """Microseconds of the compiled functions alone: an append, and the oldest entry's retirement."""
    hazards, entries, best = CompiledHazards(size), streams(), float("inf")
    for ranges in entries:
        hazards.append(ranges)  # which makes room for all pieces
        hazards.retire(hazards.oldest)
    append, retire, table = hazards._code["append"], hazards._code["retire"], hazards._table
    for _ in range(ROUNDS):
        for number, ranges in enumerate(entries[:size]):
            append(table, number, number, ranges)
        slot = 0
        start = time.thread_time()
        for ranges in entries[size:]:
            retire(table, slot)
            append(table, slot, slot, ranges)
            slot = slot + 1 if slot + 1 < size else 0
        best = min(best, (time.thread_time() - start) / (COUNT - size))
        for slot in range(size):
            retire(table, slot)
    return 1e6 * best


def append_cost() -> tuple[float, float]:
    """Microseconds of `Window.append`, and of a call of the same program."""
    import kitsune_mlir

    program = kitsune_mlir.compile(lambda x, y: x + y, (torch.randn(8, 8), torch.randn(8, 8)), target="host")
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    best = called = float("inf")
    for _ in range(5 * ROUNDS):
        window = kitsune_mlir.Window(size=256, threads=0)
        window.append(program, (x, y)).result()
        start = time.thread_time()
        for _ in range(200):
            window.append(program, (x, y))
        best = min(best, (time.thread_time() - start) / 200)
        window.flush()
        start = time.thread_time()
        for _ in range(200):
            program(x, y)
        called = min(called, (time.thread_time() - start) / 200)
    return 1e6 * best, 1e6 * called


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    record = Record.open(asked.json)
    record.begin({"command": "python -m bench.window_cost", "commit": commit_of(), "device": device_name("cpu")})
    kinds = {"hazards": (CompiledHazards, False), "placed": (CompiledHazards, True), "python": (Hazards, False)}
    for kind, (make, placed) in kinds.items():
        for size in (32, 128):
            cost = round(hazard_check(make, size, placed), 2)
            print(f"{kind}, {size} entries of {SEGMENTS} ranges: {cost} us an entry")
            record.add({"case": f"{kind} {size}", "ok": True, "microseconds": cost})
    for size in (32, 128):
        cost = round(code_cost(size), 2)
        print(f"code, {size} entries of {SEGMENTS} ranges: {cost} us an entry")
        record.add({"case": f"code {size}", "ok": True, "microseconds": cost})
    append, call = (round(cost, 2) for cost in append_cost())
    print(f"append of a program: {append} us; a call of it {call} us")
    record.add({"case": "append", "ok": True, "microseconds": append, "call": call})


if __name__ == "__main__":
    main()
