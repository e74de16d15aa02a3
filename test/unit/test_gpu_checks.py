"""How the checks on a GPU are built and run side by side: limits, lines, what is said where there is no compiler."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from test.gpu import checks, operator_programs
from test.gpu.checks import KINDS, Kind
from test.gpu.driver import spilled_bytes


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


class Script(Kind):
    """A kind whose program is a line of Python, with the name's."""

    lines = {
        "right": "print('1 passed')",
        "wrong": "print('FAIL a'); raise SystemExit(1)",
        "long": "import time; print('begun', flush=True); time.sleep(60)",
    }

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", self.lines[self.name]]


def test_a_builder_that_fails_says_so(monkeypatch, capsys, tmp_path):
    """In its line and by its exit status, also where other parts of the kind and other kinds are right."""
    monkeypatch.setattr(checks, "KINDS", (Script("right"), Script("wrong")))
    for kinds, status in (["right"], 0), (["right", "wrong"], 1), (["wrong"], 1):
        monkeypatch.setattr(sys, "argv", ["checks", "build", str(tmp_path), *kinds, "--jobs", "2"])
        assert checks.main() == status
        said = capsys.readouterr().out
        assert ("FAIL wrong" in said) == bool(status) and f"built {len(kinds) - status} of {len(kinds)} kinds" in said


def test_what_has_no_time_has_not_run(capsys, tmp_path):
    kinds = [Script("right"), Script("long"), Script("wrong"), Script("alone", alone=True)]
    for kind in kinds:
        (tmp_path / kind.name).mkdir()
    assert checks.run_on("h200", tmp_path, kinds, 1, tmp_path, checks.Clock(checks.LEAST_SECONDS + 2)) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok   right ") and lines[1].startswith("FAIL long ") and "no end in 1" in lines[1]
    assert [line.split()[:2] for line in lines if line.startswith("none")] == [["none", "wrong"], ["none", "alone"]]
    assert lines[-1].startswith("1 of 4 kinds right, 1 not, 2 not run, on h200 in")


def test_a_run_that_is_told_to_end_says_what_it_has_not_done(capsys, tmp_path):
    clock = checks.Clock(600)
    for name in ("long", "right"):
        (tmp_path / name).mkdir()
    threading.Timer(1.5, clock.stop).start()
    assert checks.run_on("h200", tmp_path, [Script("long"), Script("right")], 1, tmp_path, clock) == 2
    assert "0 of 2 kinds right, 1 not, 1 not run" in capsys.readouterr().out


def test_missing_packages_are_no_success(capsys, tmp_path):
    assert checks.run_on("h200", tmp_path, [Script("right")], 1, tmp_path, checks.Clock(60)) == 1
    assert "is not there: build it first (make gpu-kits)" in capsys.readouterr().out


def test_a_model_without_a_package_is_no_success(monkeypatch, capsys, tmp_path):
    """What is refused when it is compiled has none."""
    monkeypatch.setattr(operator_programs, "answers_beside", lambda *given: [{"case": one, "ok": True} for one in given[3]])
    refused = next(name for name, case in operator_programs.CASES.items() if case.refused)
    compiled = [name for name, case in operator_programs.CASES.items() if not case.refused][:3]
    for name in compiled[:2]:
        (tmp_path / f"{name}.kit").touch()
    assert operator_programs.run(tmp_path, [*compiled, refused], argparse.Namespace()) == 1
    assert "2 right, 0 wrong or failed, 1 have no package; 1 are refused" in capsys.readouterr().out


def test_spills_of_every_kernel_count():
    """A program of several launches has several kernels."""
    kernels = [{"spill_store_bytes": spilled} for spilled in (0, 76, 4)]
    assert spilled_bytes(SimpleNamespace(summary={"kernels": kernels})) == 80


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_a_program(kind: Kind):
    assert importlib.util.find_spec(f"test.gpu.{kind.module or kind.name}") is not None
    assert not kind.folder or kind.folder in {other.name for other in KINDS}
    if kind.cases is not None:
        names = list(kind.cases())
        assert names and len(set(names)) == len(names)
