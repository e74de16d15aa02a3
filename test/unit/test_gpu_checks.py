"""How the checks on a GPU are built and run side by side: limits, lines, what is said where there is no compiler."""

from __future__ import annotations

import importlib.util
import sys
import time

import pytest

from test.gpu import checks
from test.gpu.checks import KINDS, Kind


def test_a_command_that_hangs_ends_with_its_children(tmp_path):
    """Its child would print after the limit."""
    child = "import time, sys; time.sleep(2); print('late', flush=True)"
    code = f"import subprocess, sys; print('begun', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    ended = checks.execute([sys.executable, "-c", code], tmp_path / "log", 0.8)
    assert not ended.right and "begun" in ended.text and "no end in 1 s" in ended.text
    time.sleep(2)
    assert "late" not in (tmp_path / "log").read_text()


def test_lines(tmp_path):
    right = checks.execute([sys.executable, "-c", "print('a'); print('3 passed, 0 failed')"], tmp_path / "right", 30)
    wrong = checks.execute([sys.executable, "-c", "print('ok a'); print('FAIL b'); raise SystemExit(1)"], tmp_path / "x", 30)
    assert checks.told("one", [right], tmp_path).startswith("ok   one ") and "3 passed" in checks.told("one", [right], tmp_path)
    first, *rest = checks.told("two", [right, wrong], tmp_path / "x").splitlines()
    assert first.startswith("FAIL two ")
    assert [line.strip() for line in rest] == ["3 passed, 0 failed", "FAIL b", f"all of it: {tmp_path / 'x'}"]


def test_without_a_compiler_it_says_what_to_do(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert checks.build(tmp_path, KINDS, 1) == 1
    assert "torch-mlir is not installed" in (said := capsys.readouterr().out) and "KITS=" in said


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_a_program(kind: Kind):
    assert importlib.util.find_spec(f"test.gpu.{kind.module or kind.name}") is not None
    assert not kind.folder or kind.folder in {other.name for other in KINDS}
    if kind.cases is not None:
        names = list(kind.cases())
        assert names and len(set(names)) == len(names)
