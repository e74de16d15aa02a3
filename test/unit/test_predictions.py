"""Predicted times of the zoo at full size against recorded ones (`bench.predictions`), and what timestamps cost."""

import json
import statistics
from pathlib import Path

import pytest

from bench.models import ZOO
from kitsune_mlir.machine.target import find_machine
from kitsune_mlir.simulation.record import program_from
from kitsune_mlir.simulation.simulate import simulate_program

RECORD = json.loads((Path(__file__).parents[2] / "bench" / "results" / "simulate-h200.json").read_text())
CASES = {result["case"]: result for result in RECORD["results"]}
TOLERANCE = 0.25


def predicted(case: str, machine: str = "H200") -> float:
    """Milliseconds."""
    described = find_machine(machine)
    return 1e3 * simulate_program(program_from(CASES[case]["program"], described), described).seconds


@pytest.mark.parametrize("case", CASES)
def test_predictions_are_near_what_was_measured(case: str) -> None:
    assert predicted(case) == pytest.approx(CASES[case]["milliseconds"], rel=TOLERANCE)


def test_the_whole_zoo_is_recorded_and_most_are_nearer() -> None:
    assert set(ZOO) <= set(CASES)
    errors = [abs(predicted(case) / CASES[case]["milliseconds"] - 1) for case in CASES]
    assert statistics.median(errors) < 0.12


@pytest.mark.parametrize("waits, least", [(False, 20), (True, 13)])
def test_timestamps_cost_little(waits: bool, least: int) -> None:
    times = [result for result in RECORD["timestamps"] if result["waits_recorded"] == waits]
    costs = [result["with_timestamps"] / result["milliseconds"] - 1 for result in times]
    assert len(costs) >= least and statistics.median(costs) < 0.01 and max(costs) < 0.03


def test_lesser_machines_take_longer() -> None:
    for case in ("llama_prefill", "stitch"):
        assert predicted(case, "H200") <= predicted(case, "H100") < predicted(case, "A100")
