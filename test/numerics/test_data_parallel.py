"""DistributedDataParallel: two processes of this machine, whose gradients are eager's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from test.numerics.data_parallel import CASES, PROCESSES
from test.rotation import todays

SECONDS = 300


@pytest.mark.parametrize("case", todays(list(CASES), 1))
def test_data_parallel(case: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "test.numerics.data_parallel"]
    about = {"env": {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, "cwd": Path(__file__).parents[2], "text": True}
    both = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting"), case], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **about
        )
        for rank in range(PROCESSES)
    ]
    try:
        for process in both:
            said, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0 and said.rstrip().endswith("right"), said[-4000:]
    finally:
        for process in both:
            process.kill()
