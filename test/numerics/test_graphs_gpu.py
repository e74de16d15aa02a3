"""Generated graphs planned for the GPU, their tasks run by the generic engine's code thread by thread on the processor."""

from hypothesis import HealthCheck, Phase, given, settings

import kitsune_mlir
from test.emulators.runner import emulated
from test.numerics.compare import exact, problems
from test.numerics.graphs import GraphModel, inputs_of, recipes


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
@given(recipes())
def test_generated_graphs(recipe: dict) -> None:
    model, args = GraphModel(recipe), inputs_of(recipe)
    compiled = kitsune_mlir.compile(model, args, target="sm_90a")
    program = emulated(compiled) if compiled.summary["stages"] else compiled  # views of inputs need no code
    assert problems(program(*args), exact(model, args), model(*args)) == []
