"""The runner of the primitive cases: what it does when a case fails, hangs, ends the process or loses the context."""

from __future__ import annotations

import json
import sys

import pytest

from test.gpu import primitives_check

WORKER = """
import json, os, sys, time
print("\\x1e", flush=True)
for name in sys.argv[2:]:
    with open(sys.argv[1] + "/order", "a") as order:
        order.write(name + "\\n")
    if "hang" in name:
        time.sleep(600)
    if "crash" in name:
        print("something on the way", flush=True)
        os._exit(3)
    lost = "lost" in name or "starve" in name
    print("\\x1e" + json.dumps([name, "wrong" not in name and "lost" not in name, "", not lost]), flush=True)
    if lost:
        break
"""


@pytest.mark.parametrize(
    ("names", "failed"),
    [
        (["a", "b"], []),
        (["a", "b_wrong", "c"], ["b_wrong"]),
        (["a", "b_lost", "c"], ["b_lost"]),
        (["a", "b_crash", "c"], ["b_crash"]),
        (["a_hang", "b", "c_hang"], ["a_hang", "c_hang"]),
        (["z", "starve", "a_lost"], ["a_lost"]),
    ],
)
def test_every_case_runs_whatever_the_others_do(tmp_path, capsys, names, failed):
    for name in names:
        check = "starve" if name == "starve" else "copies"
        (tmp_path / f"{name}.json").write_text(json.dumps({"check": check}))
    assert primitives_check.run(tmp_path, "", 2.0, [sys.executable, "-c", WORKER]) == len(failed)
    shown = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[1].rstrip(":") for line in shown if line.startswith("FAIL")) == failed
    assert sum(line.startswith(("ok", "FAIL")) for line in shown) == len(names)
    ran = (tmp_path / "order").read_text().split()
    assert ran == sorted(names, key=lambda name: (name == "starve", name)), "each case once, the trapping one last"
    if "b_crash" in names:
        assert "something on the way" in shown
        assert "FAIL b_crash: the process ended with status 3" in shown


def test_running_nothing_is_a_failure(tmp_path):
    assert primitives_check.run(tmp_path, "", 1.0) == 1
