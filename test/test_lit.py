"""Runs the lit tests, one folder of test/lit a test. By hand: `lit -v test/lit/passes`."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent / "lit"
FOLDERS = sorted({p.parent.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.mlir") if "Output" not in p.parts})


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The socket of a process that has the tools ready (test/lit/tools.py)."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own names are too long for a socket's
        path = str(Path(folder) / "tools")
        with subprocess.Popen([sys.executable, str(ROOT / "tools.py"), path], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield path
            process.terminate()


@pytest.mark.parametrize("folder", FOLDERS)
def test_lit(folder: str, tmp_path: Path, server: str) -> None:
    command = [sys.executable, "-c", "from lit.main import main; main()", "-v", "-j2", "--no-progress-bar", str(ROOT / folder)]
    env = {**os.environ, "KITSUNE_LIT_OUT": str(tmp_path), "KITSUNE_LIT_SERVER": server}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_folder_is_found() -> None:
    assert {"dialect", "host", "opt"} <= set(FOLDERS)
