"""Timelines: what is read back becomes a table and a trace; without timestamps there is a clear error."""

import json

import numpy as np
import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.manifest import TIMESTAMP_BYTES, WAITS_BYTES, Manifest
from kitsune_mlir.runtime.timeline import Panel, Timeline, trace_of
from kitsune_mlir.runtime.timeline_page import page_of

TASKS = [("product_0", "mma", 3), ("map_1", "simt", 1)]
# Two blocks: the second has no tile of the second task.
TIMES = np.array([[[0.0, 2.0], [2.0, 5.0]], [[0.5, 4.0], [4.0, 4.0]]])


def test_a_table_has_a_line_a_task() -> None:
    timeline = Timeline(TASKS, TIMES)
    head, first, second = timeline.table().splitlines()
    assert timeline.total == 5.0
    assert head.split() == ["task", "engine", "tiles", "first", "start", "end", "last", "share"]
    assert first.split() == ["product_0", "mma", "3", "0.0", "0.2", "3.0", "4.0", "55.0%"]
    assert second.split() == ["map_1", "simt", "1", "2.0", "3.0", "4.5", "5.0", "30.0%"]


def test_a_trace_has_a_row_a_block(tmp_path) -> None:
    Timeline(TASKS, TIMES).save(tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert events.pop(0)["args"] == {"name": "measured"}
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in events] == [
        ("product_0", 0, 0.0, 2.0),
        ("map_1", 0, 2.0, 3.0),
        ("product_0", 1, 0.5, 3.5),
    ]


def test_waits_are_spans_of_their_own_and_a_column() -> None:
    waits = np.array([[0.0, 1.0], [0.5, 0.0]])
    timeline = Timeline(TASKS, TIMES, waits)
    head, first, second = timeline.table().splitlines()
    assert head.endswith("share   wait") and first.endswith("55.0%   5.0%") and second.endswith("30.0%  10.0%")
    events = [(e["name"], e["tid"], e["ts"], e["dur"]) for e in trace_of([timeline.panel()])["traceEvents"][1:]]
    assert ("wait (map_1)", 0, 2.0, 1.0) in events and ("map_1", 0, 3.0, 2.0) in events
    assert ("wait (product_0)", 1, 0.5, 0.5) in events and ("product_0", 1, 1.0, 3.0) in events


def test_a_page_shows_all_spans_and_needs_nothing_else() -> None:
    spans = [np.array(column) for column in ([0, 1], [0, 1], [0.0, 1.0], [0.0, 1.5], [2.0, 4.0])]
    predicted = Panel("predicted <for> h200", TASKS, *spans)
    page = page_of("a & b", [predicted, Timeline(TASKS, TIMES).panel()], "words <here>")
    assert page.count("<svg") == 2 and "a &amp; b" in page and "words &lt;here&gt;" in page and "http" not in page
    assert "predicted &lt;for&gt; h200: 4.0 us" in page and "measured: 5.0 us" in page
    data = json.loads(page.split("const DATA = ")[1].split(";\nconst tip")[0])
    assert data[0]["rows"] == [[[0, 0.0, 0.0, 2.0]], [[1, 1.0, 1.5, 4.0]]]
    assert data[0]["scale"] == data[1]["scale"] == 1200 / 5
    assert page.count("url(#wait0)") == 1 and page.count("url(#wait1)") == 0  # one task waits, in the first run


def test_an_empty_run_has_a_page() -> None:
    none = np.zeros(0, int)
    assert "0.0 us" in page_of("empty", [Panel("nothing", [], none, none, none, none, none)])


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
    assert sizes[True] - sizes[False] == 10 * len(TASKS) * (TIMESTAMP_BYTES + WAITS_BYTES)


def test_a_kernel_with_timestamps_notes_what_it_waits() -> None:
    layers = torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)
    model, x = torch.nn.Sequential(*layers).bfloat16(), torch.randn(512, 64).bfloat16()
    plain = kitsune_mlir.compile(model, (x,), target="sm_90a")
    timed = kitsune_mlir.compile(model, (x,), target="sm_90a", options={"timestamps": True})
    waiting = sum(bool(stage["waits"]) for stage in timed.summary["stages"])
    add = "red.relaxed.gpu.global.add.u64"
    assert plain.ir("ptx").count(add) == 0
    assert timed.ir("ptx").count(add) >= waiting


def test_the_host_has_no_timeline() -> None:
    program = kitsune_mlir.compile(torch.nn.ReLU(), (torch.randn(8),), target="host")
    with pytest.raises(ArgumentError, match="a program for target 'host' has no timeline"):
        program.timeline()
