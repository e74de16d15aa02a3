"""Timelines: what is read back becomes a table and a trace; without timestamps there is a clear error."""

import json

import numpy as np
import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.manifest import TIMESTAMP_BYTES, Manifest
from kitsune_mlir.runtime.timeline import Timeline

TASKS = [("product_0", "mma", 3), ("map_1", "simt", 1)]
# Two blocks: the second has no tile of the second task.
TIMES = np.array([[[0.0, 2.0], [2.0, 5.0]], [[0.5, 4.0], [4.0, 4.0]]])


def test_a_table_has_a_line_a_task(tmp_path) -> None:
    timeline = Timeline(TASKS, TIMES)
    head, first, second = timeline.table().splitlines()
    assert timeline.total == 5.0
    assert head.split() == ["task", "engine", "tiles", "first", "start", "end", "last", "share"]
    assert first.split() == ["product_0", "mma", "3", "0.0", "0.2", "3.0", "4.0", "55.0%"]
    assert second.split() == ["map_1", "simt", "1", "2.0", "3.0", "4.5", "5.0", "30.0%"]


def test_a_trace_has_a_row_a_block(tmp_path) -> None:
    Timeline(TASKS, TIMES).save(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events] == [
        ("product_0", 0, 0.0, 2.0),
        ("map_1", 0, 2.0, 3.0),
        ("product_0", 1, 0.5, 3.5),
    ]


def test_a_kernel_with_timestamps_reads_the_clock_twice_a_task() -> None:
    model, x = torch.nn.Sequential(torch.nn.Softmax(-1)), torch.randn(64, 32)
    plain = kitsune_mlir.compile(model, (x,), target="sm_90a")
    timed = kitsune_mlir.compile(model, (x,), target="sm_90a", options={"timestamps": True})
    tasks = len(timed.summary["stages"])
    assert plain.ir("ptx").count("%globaltimer") == 0
    assert timed.ir("ptx").count("%globaltimer") == 2 * tasks


def test_the_workspace_has_room_for_every_block_and_task() -> None:
    sizes = {
        timed: Manifest(
            *("k", "sm_90a", (), 256, 0, 5, 256, 0, (), (), 4, tuple(TASKS)),
            timestamps=timed,
        ).workspace_bytes(10)
        for timed in (False, True)
    }
    assert sizes[True] - sizes[False] == 10 * len(TASKS) * TIMESTAMP_BYTES


def test_the_host_has_no_timeline() -> None:
    program = kitsune_mlir.compile(torch.nn.ReLU(), (torch.randn(8),), target="host")
    with pytest.raises(ArgumentError, match="a program for target 'host' has no timeline"):
        program.timeline()
