"""`make setup`'s script: progress, failures, environments that cannot be kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kitsune_mlir.tools import bootstrap

ROOT = Path(__file__).parents[2]


def test_a_silent_command_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(bootstrap, "HEARTBEAT", 0.5)
    code = "import time; print('unpacking', flush=True); time.sleep(2.5)"
    bootstrap.Progress().run("installing", [sys.executable, "-c", code])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("installing") and any(line.endswith("still at it: unpacking") for line in lines[1:])


def test_a_failing_command_shows_its_output(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        bootstrap.Progress().run("installing", [sys.executable, "-c", "print('no space left'); raise SystemExit(3)"])
    assert caught.value.code == 1
    out, err = capsys.readouterr()
    assert "no space left" in out and "make setup: 'installing' failed with status 3" in err


def test_an_old_python_looks_for_a_new_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    monkeypatch.setattr(bootstrap, "OTHERS", ["no-such-python", sys.executable])
    assert bootstrap.new_enough() == sys.executable
    monkeypatch.setattr(bootstrap, "OTHERS", ["no-such-python"])
    assert bootstrap.new_enough() is None


def test_a_moved_environment_is_not_kept(tmp_path: Path):
    stamp = tmp_path / "stamp"
    assert bootstrap.usable(sys.executable, str(stamp))
    stamp.write_text(os.getcwd() + "\n")
    assert bootstrap.usable(sys.executable, str(stamp))
    stamp.write_text("/elsewhere\n")
    assert not bootstrap.usable(sys.executable, str(stamp))
    assert not bootstrap.usable(str(tmp_path / "bin" / "python"), str(tmp_path / "none"))


@pytest.mark.parametrize(
    "target", ["setup", "demo", "demo-train", "test", "lint", "docs", "opinfo", "gpu-test", "gpu-bench", "clean"]
)
def test_make_knows_its_targets(target: str):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert f"make {target} " in shown


def test_a_missing_python_is_a_sentence(tmp_path: Path):
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    done = subprocess.run(["make", "setup", "PYTHON=/no/such python"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and "'/no/such python' not found. Python 3.11 or later is needed" in done.stderr
