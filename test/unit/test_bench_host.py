"""The host target's benchmark: its cases, its rounds, its table."""

import time

import torch

from bench.host import line_of, milliseconds
from bench.host_cases import HOST_CASES, MobileNet, ResNet18
from bench.tables import host_table


def test_cases_are_the_published_models():
    assert len({c.name for c in HOST_CASES}) == len(HOST_CASES)
    assert sum(not c.small for c in HOST_CASES) >= 12
    sizes = [sum(p.numel() for p in made().parameters()) for made in (ResNet18, MobileNet)]
    assert sizes == [11_689_512, 2_542_856]  # torchvision's resnet18 and mobilenet_v3_small


def test_a_case_is_the_same_each_time():
    case = next(c for c in HOST_CASES if c.name == "mlp_b64")
    (model, args), (again, same) = case.make(), case.make()
    assert torch.equal(model(*args), again(*same))


def test_rounds_tell_which_call_is_faster():
    found = milliseconds({"slow": lambda: time.sleep(4e-3), "fast": lambda: time.sleep(1e-3)}, 0.0)
    assert found["slow"]["least"] > 2 * found["fast"]["least"] >= 2
    assert all(t["median"] >= t["least"] for t in found.values())


def _entry(case: str, own: float, eager: float, small: bool) -> dict:
    times = {"kitsune": own, "eager": eager, "compile": 2 * eager}
    return {
        "case": case, "small": small, "ok": True, "errors": {"kitsune": 1e-7}, "speedup": eager / own,
        "milliseconds": {name: {"median": t, "least": t} for name, t in times.items()},
    }  # fmt: skip


def test_the_table_has_losses_first_and_failures_named():
    entries = {"a": _entry("a", 1, 4, True), "b": _entry("b", 2, 1, True), "c": {"case": "c", "problem": "no", "ok": False}}
    lines = host_table(entries)
    assert [line.split(" ")[1] for line in lines[2:4]] == ["b", "a"]
    assert "2 small nets: geometric mean 1.41, least 0.50." in lines[4]
    assert lines[-1].endswith("Wrong or failed: c.")
    assert line_of(entries["c"]) == "c: no"
