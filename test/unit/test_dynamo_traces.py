"""What torch.compile's backend says of graphs: PyTorch's structured traces, TORCH_LOGS, and options of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kitsune_mlir.dynamo.graph_options import options_of_backend
from kitsune_mlir.errors import ArgumentError

SCRIPT = """
import torch
fast = torch.compile(
    lambda x: torch.linalg.qr(torch.relu(x) + 1)[1].abs() + 1, backend="kitsune", options={"min_part": 1, "trace_ir": LEVELS}
)
with torch.no_grad():
    fast(torch.randn(4, 4))
"""


def called(levels: list[str], **environment: str) -> str:
    """What a process says on standard error that compiles a graph with an island."""
    script = SCRIPT.replace("LEVELS", repr(levels))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **environment}, check=True
    )
    return done.stderr


def artifacts(folder: Path) -> dict[str, tuple[str, bool]]:
    """Of the traces in a folder, by name: the text, and whether it is known which compilation it belongs to."""
    found = {}
    (file,) = folder.iterdir()
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        head = json.loads(line[line.index("{") :]) if line.startswith("V") and "{" in line else {}
        if (name := head.get("artifact", {}).get("name", "")).startswith("kitsune"):
            payload = []
            while number + 1 < len(lines) and lines[number + 1].startswith("\t"):
                number += 1
                payload.append(lines[number][1:])
            found[name] = "\n".join(payload), head.get("frame_id") is not None
    return found


def test_traces_for_tlparse(tmp_path):
    said = called(["stages", "tiles"], TORCH_TRACE=str(tmp_path))
    found = artifacts(tmp_path)
    text, known = found.pop("kitsune_inference_graph")
    assert known and "2 programs" in text and "aten.linalg_qr.default" in text and "launch" in text
    names = {f"kitsune_inference_program_{n}_{level}" for n in range(2) for level in ("stages", "tiles")}
    assert set(found) == names and all("func.func" in text for text, _ in found.values())
    assert "kitsune" not in said


def test_the_logger_is_one_of_torch_logs():
    for asked in ("kitsune_mlir.dynamo", "+kitsune_mlir.dynamo"):
        said = called([], TORCH_LOGS=asked)
        assert "inference graph of" in said and "aten.linalg_qr.default" in said


def test_levels_that_there_are_not():
    with pytest.raises(ArgumentError, match="no level abacus; levels are linalg, stages"):
        options_of_backend(None, {"trace_ir": ["stages", "abacus"]})
    with pytest.raises(ArgumentError, match="a sequence of levels"):
        options_of_backend(None, {"trace_ir": "stages"})
