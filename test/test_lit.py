"""Runs the lit tests, one folder of test/lit a test. By hand: `lit -v test/lit/passes`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent / "lit"
FOLDERS = sorted({p.parent.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.mlir") if "Output" not in p.parts})


@pytest.mark.parametrize("folder", FOLDERS)
def test_lit(folder: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from lit.main import main; main()", "-v", "-j2", "--no-progress-bar", str(ROOT / folder)]
    env = {**os.environ, "KITSUNE_LIT_OUT": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_folder_is_found() -> None:
    assert {"dialect", "host", "opt"} <= set(FOLDERS)
