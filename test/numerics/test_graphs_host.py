"""Generated graphs on the host target against PyTorch in float64; others each turn."""

from hypothesis import HealthCheck, given, seed, settings

import kitsune_mlir
from test.numerics.compare import beside_eager, exact, problems
from test.numerics.graphs import GraphModel, inputs_of, recipes
from test.rotation import turn


@seed(turn())
@settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(recipes())
def test_generated_graphs(recipe: dict) -> None:
    model, args = GraphModel(recipe), inputs_of(recipe)
    program = kitsune_mlir.compile(model, args, target="host")
    got = program(*args)
    found = problems(got, exact(model, args), model(*args))
    # What should be zero has no relative error: there PyTorch's own, on inputs a rounding away too, is the measure.
    assert not found or beside_eager(model, args, got) == [], found
