"""What torch.compile's backend says of graphs: PyTorch's structured traces, TORCH_LOGS, and options of both.

PyTorch reads both variables when it is imported: what they do takes a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kitsune_mlir.dynamo.graph_options import options_of_backend
from kitsune_mlir.errors import ArgumentError
from test.rotation import in_turn

QUIET = "nothing is asked for from here on"
SCRIPT = f"""
import logging, sys, torch
fast = torch.compile(
    lambda x: torch.linalg.qr(torch.relu(x) + 1)[1].abs() + 1, backend="kitsune",
    options={{"min_part": 1, "trace_ir": ["stages", "tiles"]}},
)
with torch.no_grad():
    fast(torch.randn(4, 4))
    logging.getLogger("kitsune_mlir.dynamo").setLevel(logging.NOTSET)
    print("{QUIET}", file=sys.stderr)
    torch._dynamo.reset()
    fast(torch.randn(4, 4))
"""


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


@pytest.mark.parametrize("asked", in_turn(["kitsune_mlir.dynamo", "+kitsune_mlir.dynamo"], 1))
def test_traces_for_tlparse_and_torch_logs(asked: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path), "TORCH_LOGS": asked}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=True)
    said, _, quiet = done.stderr.partition(QUIET)
    assert "inference graph of" in said and "aten.linalg_qr.default" in said
    assert quiet and "kitsune" not in quiet
    found = artifacts(tmp_path)
    text, known = found.pop("kitsune_inference_graph")
    assert known and "2 programs" in text and "aten.linalg_qr.default" in text and "launch" in text
    names = {f"kitsune_inference_program_{n}_{level}" for n in range(2) for level in ("stages", "tiles")}
    assert set(found) == names and all("func.func" in text for text, _ in found.values())


def test_levels_that_there_are_not():
    with pytest.raises(ArgumentError, match="no level abacus; levels are linalg, stages"):
        options_of_backend(None, {"trace_ir": ["stages", "abacus"]})
    with pytest.raises(ArgumentError, match="a sequence of levels"):
        options_of_backend(None, {"trace_ir": "stages"})
