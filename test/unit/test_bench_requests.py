"""The benchmark of requests in one launch: what is compared does the same, and is checked."""

import pytest
import torch

import kitsune_mlir
from bench.requests import engine_cost, ensembles
from bench.requests.coalesced import CASES, Case, calls_of, errors_of, line_of, on_host
from test.rotation import in_turn


@pytest.mark.parametrize("case", [Case("product", 3), Case("towers", 3), Case("towers", 64)], ids=lambda case: case.name)
def test_all_ways_give_the_same(case: Case):
    with torch.no_grad():
        program = kitsune_mlir.compile(*case.example("cpu"), target="host")
        calls, wanted = calls_of(case, program, "cpu")
        errors = errors_of(case, calls, wanted)
    assert {"kitsune", "singly", "eager"} <= errors.keys() and max(errors.values()) < 1e-3
    assert ("stacked" in errors) == (case.name != "towers_3")
    calls["kitsune"] = lambda: [torch.zeros_like(one) for one in wanted]
    assert errors_of(case, calls, wanted)["kitsune"] > 0.5


def test_an_entry_says_who_is_faster():
    entry = on_host(Case("product", 2), 0.0)
    assert entry["ok"] and entry["best_peer"] in ("eager", "stacked") and entry["case"] == "product_2"
    assert entry["times"]["eager"] == pytest.approx(
        entry["milliseconds"]["eager"]["median"] / entry["milliseconds"]["kitsune"]["median"], abs=1e-3
    )
    assert line_of(entry).split()[0] == "product_2" and line_of({**entry, "ok": False}).startswith("WRONG")
    assert len({case.name for case in CASES}) == len(CASES)


def test_models_on_one_input():
    ((case, only),) = in_turn([("alike_4", ("batch", "vmap")), ("alike_4", ("window",)), ("unlike_4", ("one program",))], 1)
    entry = ensembles.measure(case, "cpu", True, 0.0, only)
    ways = {"one after the other", *only}
    assert entry["ok"] and entry["errors"].keys() == entry["times one"].keys() == ways and not entry["missing"]
    longest = entry["milliseconds"][entry["longest"]]["median"]
    assert longest == max(one["median"] for name, one in entry["milliseconds"].items() if name.startswith("alone"))
    assert len(entry["milliseconds"]) == len(ways) + int(case.partition("_")[2])


def test_a_way_that_fails_is_missing_and_named():
    models, x = ensembles.models_of("unlike_4", True)
    broken = torch.nn.Sequential(*[*models.values()][:1], torch.nn.Linear(3, 3))
    calls, missing = ensembles.ways("unlike_4", [broken], x)
    assert not calls and "shapes cannot be multiplied" in missing["one after the other"]


def test_what_an_engine_costs_is_counted_by_thread():
    program, x = kitsune_mlir.compile(torch.nn.Linear(8, 4).eval(), (torch.randn(1, 8),), target="host"), torch.randn(1, 8)
    models = {str(number): program for number in range(engine_cost.MODELS)}
    with kitsune_mlir.serve(models, measure=False) as engine:
        for times, at_once in ((1, 1), (2, 32)):
            submit, serve = engine_cost.burst(engine, x, 100, None, at_once)
            assert submit > 0 and serve > 0 and engine.stats()["models"]["0"]["answered"] == 3 * times
