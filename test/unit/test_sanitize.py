"""The table of sanitizers: what is read from the tools' output, which kernels are covered, and files that processes share."""

from __future__ import annotations

import concurrent.futures
import json

import pytest

from bench import timing
from kitsune_mlir.codegen.gpu.engines.registry import ENGINES
from test.gpu import sanitize
from test.gpu.sanitizer_cases import CASES
from test.gpu.shared_results import add_results

RACES = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at main_p0+0x242e0
=========     and Read access at main_p0+0x25d80 [144 hazards]
=========
{"case": "decode", "ok": true, "errors": [0.001]}
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = """========= COMPUTE-SANITIZER
{"case": "decode", "ok": true, "errors": [0.001]}
{"case": "join", "ok": true, "errors": [0.001]}
========= ERROR SUMMARY: 0 errors
"""


def test_findings_are_counted():
    found = sanitize.read(RACES)
    assert found.count == 1
    assert found.findings == ("Error: Race reported between Write access at main_p0+0x242e0",)
    assert found.results["decode"]["ok"]


def test_a_clean_run():
    found = sanitize.read(CLEAN)
    assert (found.count, found.findings, sorted(found.results)) == (0, (), ["decode", "join"])


def test_a_run_without_a_summary_is_not_clean():
    found = sanitize.read(CLEAN.rsplit("=========", 1)[0])
    assert found.count is None and found.problem


def test_a_process_with_findings_is_divided(monkeypatch, tmp_path):
    """Of two cases in a process the one that is not clean gets the findings."""
    paths = [tmp_path / "decode.kit", tmp_path / "join.kit"]
    alone = CLEAN.replace('{"case": "decode", "ok": true, "errors": [0.001]}\n', "")
    told = {("decode", "join"): RACES, ("decode",): RACES, ("join",): alone}
    monkeypatch.setattr(sanitize, "under", lambda tool, program, some: sanitize.read(told[tuple(p.stem for p in some)]))
    results = {result["case"]: result for result in sanitize.judged("racecheck", "compute-sanitizer", paths, float("inf"))}
    assert (results["decode"]["errors"], results["join"]["errors"]) == (1, 0)
    assert "findings" in results["decode"] and "findings" not in results["join"]


def test_every_engine_has_a_case():
    assert set(ENGINES) <= {case.engine for case in CASES.values()}


def test_processes_add_to_one_file(tmp_path):
    path = tmp_path / "results.json"
    with concurrent.futures.ProcessPoolExecutor(4) as pool:
        list(pool.map(_add, [path] * 40, range(40)))
    add_results(path, {"environment": "new"}, [{"case": "007", "ok": False}])
    data = json.loads(path.read_text())
    assert data["environment"] == "new"
    assert [result["case"] for result in data["results"]] == [f"{number:03d}" for number in range(40)]
    assert [result["case"] for result in data["results"] if not result["ok"]] == ["007"]


def _add(path, number):
    add_results(path, {"environment": "old"}, [{"case": f"{number:03d}", "ok": True}])


def test_results_that_stay_keep_their_commit(tmp_path):
    path = tmp_path / "table"
    for commit, cases in (("one", "ab"), ("two", "bc"), ("three", "c")):
        add_results(path, {"environment": {"commit": commit}}, [{"case": case} for case in cases])
    results = json.loads(path.read_text())["results"]
    assert results == [{"commit": "one", "case": "a"}, {"commit": "two", "case": "b"}, {"case": "c"}]


def test_parts_of_one_commit_become_a_table(tmp_path):
    environment = {"commit": "one", "device": "NVIDIA H200", "driver": "1"}

    def part(name, commit, results):
        head = {"environment": environment | {"commit": commit}, "command": "tool"}
        add_results(tmp_path / name, head, results, ("tool", "case"))
        return tmp_path / name

    clean = {"tool": "memcheck", "case": "a", "errors": 0, "right": True}
    parts = [part("1", "one", [clean]), part("2", "one", [clean | {"tool": "racecheck", "errors": 3}])]
    assert sanitize.merge(tmp_path / "table", parts) == 1
    table = json.loads((tmp_path / "table").read_text())
    assert table["environment"] == environment and [one["tool"] for one in table["results"]] == ["memcheck", "racecheck"]
    with pytest.raises(ValueError, match="are of 2 commits: one, two"):
        sanitize.merge(tmp_path / "table", [*parts, part("3", "two", [clean])])


def test_what_has_no_time_has_not_run(monkeypatch, tmp_path, capsys):
    """It is no success, and no line of the table."""
    monkeypatch.setattr(sanitize, "sanitizer", lambda: "compute-sanitizer")
    monkeypatch.setattr(timing, "environment", lambda folder: {})
    paths = [tmp_path / f"{name}.kit" for name in ("a", "b")]
    assert sanitize.run(paths, ["memcheck", "racecheck"], 2, 1, tmp_path / "table.json", seconds=-1.0) == 4
    assert "0 runs clean, 0 not, 4 not run" in capsys.readouterr().out and not (tmp_path / "table.json").exists()
