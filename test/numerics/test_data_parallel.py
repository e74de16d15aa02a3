"""DistributedDataParallel: two processes of this machine, whose gradients are eager's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from test.numerics.data_parallel import CASES
from test.rotation import in_turn

SECONDS = 300


@pytest.mark.parametrize("case", in_turn(list(CASES), 1))
def test_data_parallel(case: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "test.numerics.data_parallel", str(tmp_path / "meeting"), case]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, cwd=Path(__file__).parents[2],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.rstrip().endswith("right"), (done.stdout + done.stderr)[-4000:]
