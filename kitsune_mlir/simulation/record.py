"""Programs in numbers as JSON: what a recorded prediction is made from again, without the model and its compiler."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kitsune_mlir.machine.stage_cost import Work
from kitsune_mlir.machine.target import Target
from kitsune_mlir.simulation.program import SimPost, SimProgram, SimTask, SimWait, Touch, simulated_cost

__all__ = ["program_from", "record_of"]


def record_of(program: SimProgram) -> dict[str, Any]:
    """The program as plain values. Costs are not in it: they are computed again from the work."""
    tasks = []
    for task in program.tasks:
        assert task.work is not None, "a program that was made by hand has no work to record"
        tasks.append(
            {
                "work": {k: v for k, v in dataclasses.asdict(task.work).items() if v},
                "waits": [[w.semaphore, _runs(w.lo), _runs(w.hi), w.count] for w in task.waits],
                "posts": [[p.semaphore, _runs(p.slot)] for p in task.posts],
                "touches": [list(map(float, dataclasses.astuple(touch))) for touch in task.touches],
                **{
                    f.name: getattr(task, f.name)
                    for f in dataclasses.fields(SimTask)
                    if f.name not in ("cost", "whole_cost", "work", "waits", "posts", "touches")
                },
            }
        )
    fields = {"name": program.name, "slots": list(program.slots), "resident": program.resident, "streaming": program.streaming}
    return {**fields, "tasks": tasks}


def program_from(record: dict[str, Any], machine: Target) -> SimProgram:
    """The program of a record, with the costs of its work on a machine."""
    tasks = []
    for entry in record["tasks"]:
        fields = dict(entry)
        work = Work(**fields.pop("work"))
        waits = [SimWait(s, _unfold(lo), _unfold(hi), count) for s, lo, hi, count in fields.pop("waits")]
        posts = [SimPost(s, _unfold(slot)) for s, slot in fields.pop("posts")]
        touches = [
            Touch(int(memory), int(low), int(high), asked, bool(writes), bool(between), bool(ring))
            for memory, low, high, asked, writes, between, ring in fields.pop("touches")
        ]
        whole = simulated_cost(dataclasses.replace(work, pieces=1), machine) if fields["whole"] else None
        share = tuple(fields.pop("share")) if fields["share"] else None
        fields.pop("share", None)
        given = {"waits": waits, "posts": posts, "touches": touches, "whole_cost": whole, "work": work, "share": share}
        tasks.append(SimTask(cost=simulated_cost(work, machine), **given, **fields))
    return SimProgram(record["name"], tasks, record["slots"], record["resident"], record["streaming"])


def _runs(values: np.ndarray) -> list[list[int]]:
    """An array as runs: [first value, difference from one to the next, how many]."""
    found: list[list[int]] = []
    for value in values.tolist():
        if found and found[-1][2] == 1:
            found[-1][1:] = [value - found[-1][0], 2]
        elif found and value == found[-1][0] + found[-1][1] * found[-1][2]:
            found[-1][2] += 1
        else:
            found.append([value, 0, 1])
    return found


def _unfold(runs: list[list[int]]) -> np.ndarray:
    return np.concatenate([first + step * np.arange(count) for first, step, count in runs])
