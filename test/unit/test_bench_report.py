"""bench/README.md says what the recorded runs say; records are kept by device and date."""

import json
from pathlib import Path

import pytest

from bench import report as page
from bench.records import Record
from bench.tables import mode_table


def test_report_is_up_to_date() -> None:
    text = (Path(__file__).parents[2] / "bench" / "README.md").read_text()
    assert text == page.report(), "run: python -m bench.report"


def run(device: str, date: str, hour: int = 10) -> dict:
    where = {"device": device, "date": f"{date}T{hour}:00:00+00:00", "driver": "1", "torch": "2", "commit": "c" * 40 + "-dirty"}
    return {"environment": where, "rates": {"matrix": 8e14, "copy": 4e12}, "command": "python -m bench.suite run DIR"}


def entry(name: str, median: float) -> dict:
    spread = {"median": median, "min": median, "p10": median, "p90": median, "samples": 30}
    return {
        "case": name, "group": "headline", "ok": True, "error": 1e-3, "floor": 0.5, "goal": 2.0, "measure": "speedup",
        "launches": 1, "milliseconds": {"kitsune": spread, "eager": {**spread, "median": 3 * median}}, "missing": {},
        "operations": 10, "bytes": 10, "own": median, "best_peer": "eager", "speedup": 3.0, "fraction": 0.5 / median,
    }  # fmt: skip


def test_records_are_kept_by_device_and_date_and_the_newest_counts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path / "results")

    def record(name: str, where: dict, **cases: float) -> Path:
        made = Record(tmp_path / name, [where])
        for case, median in cases.items():
            made.add(entry(case, median))
        return tmp_path / name

    first = record("a.json", run("NVIDIA H200", "2026-11-21"), nerf_256k=1.0, stitch_4096x1024=2.0)
    again = record("b.json", run("NVIDIA H200", "2026-11-21", 11), stitch_4096x1024=1.5)
    later = record("c.json", run("NVIDIA H200", "2026-12-02"), nerf_256k=0.5, no_such_case=1.0)
    page.keep([first, again])
    page.keep([later])
    names = sorted(p.name for p in (tmp_path / "results").iterdir())
    assert names == ["bench-nvidia-h200-2026-11-21.json", "bench-nvidia-h200-2026-12-02.json"]
    kept = json.loads((tmp_path / "results" / names[0]).read_text())
    assert kept["cases"]["stitch_4096x1024"]["own"] == 1.5 and len(kept["runs"]) == 2
    shown = page.ordered(page.newest())
    assert {name: e["own"] for name, e in shown.items()} == {"nerf_256k": 0.5, "stitch_4096x1024": 1.5}
    table = "\n".join(page.headline(shown))
    assert "Goals reached: 2 of 2: nerf_256k, stitch_4096x1024." in table and "| nerf_256k | 1 (–) | 0.500 ±0 % |" in table
    assert "commit `cccccccccccc-dirty`" in page.where(run("NVIDIA H200", "2026-12-02"))
    missing = page.missing(shown)
    assert any(line.startswith("- headline: 12 of 14 cases: dlrm_2048, ") for line in missing)
    assert "- max-autotune, graph: measured for 0 of 2 recorded cases." in missing


def test_charts_are_the_same_for_the_same_records(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.charts import draw

    entries = {"nerf_256k": entry("nerf_256k", 1.0), "stitch_4096x1024": entry("stitch_4096x1024", 2.0)}
    rates = {"matrix": 8e14, "copy": 4e12}
    first, second = (draw(entries, rates, tmp_path / name) for name in ("a", "b"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes() and b"nerf_256k" in one.read_bytes()


def test_modes_beside_the_choice() -> None:
    near = {
        "auto": {"mode": "temporal", "one": 10.0},
        "temporal": {"mode": "temporal", "same_as": "auto"},
        "separate": {"mode": "separate", "one": 9.8},
        "spatial": {"problem": "cannot be spatial: a is its only stage"},
    }
    far = {**near, "separate": {"mode": "separate", "one": 8.0}}
    lines = mode_table([{"case": "a", "modes": near}, {"case": "b", "modes": far}, {"case": "c", "problem": "no answer"}])
    assert "| a | 10.0 | – | 9.8 | temporal 10.0 | 1.02 |" in lines
    assert "| b | 10.0 | – | 8.0 | temporal 10.0 | 1.25 |" in lines
    assert "Chosen within 5 % of the best: 1 of 2; the others: b." in lines
    assert "- a, spatial: cannot be spatial: a is its only stage." in lines and "- c: no answer." in lines
