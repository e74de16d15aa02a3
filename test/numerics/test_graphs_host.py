"""Generated graphs on the host target against PyTorch in float64."""

from hypothesis import HealthCheck, given, settings

import kitsune_mlir
from test.numerics.compare import exact, problems
from test.numerics.graphs import GraphModel, inputs_of, recipes


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(recipes())
def test_generated_graphs(recipe: dict) -> None:
    model, args = GraphModel(recipe), inputs_of(recipe)
    program = kitsune_mlir.compile(model, args, target="host")
    wide, plain = exact(model, args), model(*args)
    assert problems(program(*args), wide, plain) == []
