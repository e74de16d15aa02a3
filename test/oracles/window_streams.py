"""Random windows of work on shared memory, beside the same work one after the other.

    python -m test.oracles.window_streams [--windows 1000000] [--length 6] [--seed 0] [--json FILE]

Views that overlap, changes in place, unknown accesses, full windows, with threads and without; values are read
between. Whatever order a window takes, memory is the same to the bit.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kitsune_mlir.windows.hazards import BOTH, READ, WRITE
from kitsune_mlir.windows.task import Call, extent
from kitsune_mlir.windows.template import in_order
from kitsune_mlir.windows.window import Window

__all__ = ["run_stream"]


def run_stream(
    draw: random.Random, window: Window, read: Callable[[Window, Any, torch.Tensor], None], length: int = 60, naps: bool = True
) -> None:
    """Append random work to a window.

    Args:
        read: called now and then with the window, a task and what memory should hold if everything had run.
        naps: whether work sleeps for a while, which mixes threads.

    Raises:
        AssertionError: memory differs from that of the same work one after the other.
    """
    memory, same = torch.zeros(32, dtype=torch.int64), torch.zeros(32, dtype=torch.int64)
    tasks = []
    for step in range(length):
        pieces = [slice(low := draw.randrange(31), low + draw.randrange(1, 33 - low)) for _ in range(3)]
        add = draw.random() < 0.5

        def work(store: torch.Tensor, pieces=pieces, step=step, add=add) -> None:
            value = store[pieces[0]].sum() + store[pieces[1]].max() + step
            store[pieces[2]] = (store[pieces[2]] if add else 0) + value % 1009

        def run(stream: int, work=work) -> None:
            if naps:
                time.sleep(0.00002 * draw.randrange(3))
            work(memory)

        views = [memory[piece] for piece in pieces]
        modes = (READ, READ, BOTH if add else WRITE)
        ranges = in_order([extent(view, mode) for view, mode in zip(views, modes, strict=True)])
        tasks.append(window.append_call(Call(run, ranges if draw.random() < 0.95 else None, None, [memory], views[2:])))
        work(same)
        if draw.random() < 0.1:
            read(window, draw.choice(tasks), same)
        if draw.random() < 0.1:
            window.wait_for([extent(memory, READ)])
            assert memory.equal(same)
    window.flush()
    assert memory.equal(same) and len(window) == 0


def main() -> None:
    """The command."""
    from bench.records import Record
    from bench.timing import commit_of
    from kitsune_mlir.runtime.timer import device_name

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=6, help="entries of a window")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    for number in range(asked.windows):
        draw = random.Random(asked.seed + number)
        window = Window(size=draw.choice((1, 3, 16)), threads=draw.choice((0, 0, 0, 2)))
        try:
            run_stream(draw, window, lambda window, task, same: window.wait(task), asked.length, naps=number % 100 == 0)
        except AssertionError as error:
            raise AssertionError(f"window {asked.seed + number}: memory differs") from error
    seconds = round(time.monotonic() - start, 1)
    print(f"{asked.windows} windows of {asked.length} entries, all right, {seconds} s")
    record = Record.open(asked.json)
    record.begin({"command": "python -m test.oracles.window_streams", "commit": commit_of(), "device": device_name("cpu")})
    facts = {"windows": asked.windows, "length": asked.length, "seed": asked.seed, "wrong": 0, "seconds": seconds}
    record.add({"case": "windows", "ok": True, **facts})


if __name__ == "__main__":
    main()
