"""The command line of the GPU programs: a case that fails, crashes or hangs costs only itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from test.gpu.driver import answers, check_each, program_main, report

def check(name):
    if name == "hangs":
        time.sleep(60)
    if name == "crashes":
        os._exit(3)
    if name == "raises":
        raise ValueError("no such thing")
    return name != "wrong", {"error": 0.5, "process": os.getpid()}

def build(folder, names):
    return len(names)

def part(folder, names, given):
    return check_each(names, check)

def run(folder, names, given):
    return report(answers("program", folder, names, 2))

sys.exit(program_main("Cases.", build, run, part))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    (tmp_path / "program.py").write_text(PROGRAM)

    def call(*arguments: str) -> tuple[int, list[str]]:
        done = subprocess.run([sys.executable, "-m", "program", *arguments], capture_output=True, text=True)
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout.splitlines()

    return call


def test_every_case_is_told_whatever_others_do(program, tmp_path: Path) -> None:
    status, lines = program("run", str(tmp_path), "first", "wrong", "crashes", "raises", "hangs", "last")
    assert status == 1 and lines[-1] == "4 failed"
    assert [line.split()[:2] for line in lines[:-1]] == [
        ["ok", "first"],
        ["FAIL", "wrong"],
        ["FAIL", "crashes"],
        ["FAIL", "raises"],
        ["FAIL", "hangs"],
        ["ok", "last"],
    ]
    assert "hung or crashed" in lines[2] and "ValueError: no such thing" in lines[3] and "hung or crashed" in lines[4]
    first, wrong = (line.rpartition("process': ")[2] for line in lines[:2])
    assert first == wrong, "one process does as many cases as it survives"


def test_cases_are_told_by_processes_side_by_side(program) -> None:
    """A share that hangs does not keep the others from being told."""
    code = "from test.gpu.driver import answers_beside\n"
    code += "found = answers_beside(2, 'program', None, ['hangs', 'first', 'last', 'wrong'], 2)\n"
    code += "print(*((one['case'], one['ok'], one.get('process')) for one in found), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name: (right, process) for name, right, process in map(ast.literal_eval, done.stdout.splitlines())}
    assert {name: right for name, (right, _) in found.items()} == {"hangs": False, "first": True, "last": True, "wrong": False}
    assert found["first"][1] == found["wrong"][1] != found["last"][1]


def test_the_exit_status_says_whether_all_is_right(program, tmp_path: Path) -> None:
    assert program("run", str(tmp_path), "first", "last")[0] == 0
    assert program("build", str(tmp_path))[0] == 0
    assert program("build", str(tmp_path), "one", "two")[0] == 1
