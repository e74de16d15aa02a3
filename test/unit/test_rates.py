"""Cost models calculate with the rates of one table, each of which says where it comes from."""

import ast
import dataclasses
import datetime
import re
from pathlib import Path

import pytest

from kitsune_mlir.machine import rates
from kitsune_mlir.machine.rates import DISAGREEMENTS, ENGINES, SIMULATED, EngineRates, Rate, RateTable
from test.unit.test_layering import MODULES, PACKAGE

ROOT = Path(__file__).parents[2]
MODELS = [
    *("machine.stage_cost", "machine.stage_work", "machine.slow_stages", "passes.hoist_gathers", "passes.split_reductions"),
    *(
        "passes.modes",
        "passes.spatial",
        "passes.stages",
        "passes.pairs",
        "passes.partition_streams",
        "simulation",
    ),
    *("codegen.gpu.interface.memory_tiles", "codegen.gpu.interface.loop_tile"),
    *(
        f"codegen.gpu.engines.{name}"
        for name in (
            "mma.cost",
            "mma.plan",
            "mma.tiles",
            "conv",
            "generic.cost",
            "gemv",
            "attention.kv_schedule",
            "attention.tiles",
            "chain.layers",
            "simt.tiles",
        )
    ),
]
"""Modules, or packages of modules, that estimate times."""
MARGINS = {
    *("passes.spatial.allocation.SECONDS", "passes.spatial.allocation.GAP"),  # of the solver
    *("passes.modes.choice.CLEARLY_SEPARATE", "passes.modes.choice.CLEARLY_SPATIAL", "passes.modes.gathers.CLEARLY"),
    "passes.modes.times.LEAST_GAIN",
    *("passes.hoist_gathers.MARGIN", "passes.split_reductions.MARGIN", "codegen.gpu.engines.mma.tiles.NARROWER"),
    "codegen.gpu.engines.mma.cost.CLUSTER_LOSS",
    *("passes.stages.transposed_rows.TILE_ROWS", "passes.stages.transposed_rows.MOST_WASTE"),  # rows that tiles do twice
}
"""By how much a choice must be better: no rates of a machine."""
NAMED = re.compile(r"(^|_)(RATE|SECONDS|CYCLES|LATENCY|HAND_?OFF|TURN|MEET|GAP|POST|START|LAUNCH)$")


def constants(module: str) -> list[tuple[str, ast.expr]]:
    """Names that a module gives numbers at its top level, and the numbers."""
    found = []
    for node in ast.parse(MODULES[module].read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            found += [(name, node.value) for name in names]
    return found


def test_cost_models_have_no_rates_of_their_own():
    wrong = []
    modules = [m for m in MODULES if any(m == f"{PACKAGE}.{each}" or m.startswith(f"{PACKAGE}.{each}.") for each in MODELS)]
    for module in modules:
        for name, value in constants(module):
            numbers = [n.value for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, int | float)]
            floats = any(isinstance(number, float) for number in numbers)
            if floats or (numbers and NAMED.search(name)):
                wrong.append(f"{module.removeprefix(f'{PACKAGE}.')}.{name}")
    assert sorted(set(wrong) - MARGINS) == []
    assert not MARGINS - set(wrong)
    assert len(modules) > 40


@pytest.mark.parametrize("name, rate", [*rates.rates().items(), *ENGINES.items(), *SIMULATED.items()])
def test_a_rate_says_where_it_comes_from(name: str, rate: Rate | RateTable | EngineRates):
    assert rate.device and rate.source
    assert datetime.date.fromisoformat(rate.date)
    if not isinstance(rate, EngineRates):
        assert rate.unit and rate.meaning
    for path in re.findall(r"(?:bench|test|machine)/[\w/.-]+\.(?:json|py)", rate.source):
        assert (ROOT / path).exists() or (ROOT / PACKAGE / path).exists(), path


def test_rates_are_used():
    text = "\n".join(path.read_text() for module, path in MODULES.items() if module != f"{PACKAGE}.machine.rates")
    assert [name for name in rates.rates() if f"rates.{name}" not in text] == []


def test_what_disagrees_is_in_the_table():
    fields = {field.name for field in dataclasses.fields(EngineRates)}
    for each in DISAGREEMENTS:
        assert len(each.used) > 1
        for name in each.used:
            engine = re.fullmatch(r"(ENGINES|SIMULATED)\['(\w+)'\]\.(\w+)", name)
            known = name in rates.rates() or name.startswith("Target.")
            assert known or (engine and engine[2] in getattr(rates, engine[1]) and engine[3] in fields), name
