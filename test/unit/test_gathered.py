"""How many bytes lie side by side of what is read at an index, and what the simulator and tiles make of it."""

import pytest
import torch

from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.gathered import SECTOR, run_bytes
from kitsune_mlir.dialects.products import body_of, is_generic
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.frontend import import_model
from kitsune_mlir.machine.stage_work import count
from kitsune_mlir.passmanager.manager import run_pipeline

X, ROWS = torch.randn(129, 7, 16), torch.randint(0, 129, (1000,))


@pytest.mark.parametrize(
    "function, args, wanted",
    [
        (lambda x, i: x[i], (X, ROWS), 7 * 16 * 4),
        (lambda x, i: x.half()[i] * 2, (X, ROWS), 7 * 16 * 2),
        (lambda x, i: torch.gather(x, 0, i), (X[:, 0], torch.randint(0, 129, (1000, 16))), 4),
        (lambda x, i: torch.gather(x, 1, i[:, None].expand(-1, 5)), (X[:, 0], torch.randint(0, 16, (129,))), 4 * 5),
        (lambda x, i: x.flatten()[i], (X, ROWS), 4),
        (lambda x, i: (x.half()[i] * 2).sum(2), (X, ROWS), 7 * 16 * 2),
        (lambda x, i: x[i].sum(1), (X[:, 0], torch.randint(0, 129, (100, 5))), 16 * 4),
        (lambda x: torch.roll(x, (3, 5), (0, 2)), (X,), SECTOR),
    ],
)
def test_bytes_side_by_side(function, args, wanted):
    module = import_model(function, args, context=new_context()).module
    with module.context:
        run_pipeline(module, "builtin.module(kitsune-normalize)", target="sm_90a")
        ops = [op for op in walk(module.operation) if is_generic(op)]
        found = {run_bytes(op, one) for op in ops for one in body_of(op) if one.name == "tensor.extract"}
        assert found == {wanted}
        counted = count(ops)
        (elements,), (moved,) = counted.extracted.values(), counted.sectors.values()
        size = 2 if wanted == 7 * 16 * 2 else 4
        assert moved == elements * size * max(1, SECTOR / wanted)
