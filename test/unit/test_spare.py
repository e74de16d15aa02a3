"""Partial results of a launch lie in the arena where nobody needs its bytes meanwhile."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_mlir import ir

import kitsune_mlir
from kitsune_mlir.codegen.gpu.kernel.spare import place_for, spare_bytes
from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.attribute_table import SPARE
from kitsune_mlir.runtime.cuda_runner import CudaRunner
from kitsune_mlir.runtime.manifest_check import check_manifest
from test.gpu.unassembled import unassembled

VIEWS = {"a": (0, 40), "b": (512, 64), "c": (1024, 64), "d": (0, 100)}
"""Buffers of f32 in the arena: where they begin, and their numbers."""


def views() -> dict[str, ir.Value]:
    lines = "".join(
        f"%i{name} = arith.constant {start} : index\n"
        f"%{name} = memref.view %arena[%i{name}][] : memref<9999xi8> to memref<{count}xf32>\n"
        for name, (start, count) in VIEWS.items()
    )
    module = ir.Module.parse(f"func.func @f(%arena: memref<9999xi8>) {{\n{lines}return }}", new_context())
    block = module.body.operations[0].regions[0].blocks[0]
    made = [op.operation.results[0] for op in block.operations if op.operation.name == "memref.view"]
    return {**dict(zip(VIEWS, made, strict=True)), "arena": block.arguments[0], "module": module}  # type: ignore[dict-item]


def test_a_buffer_is_needed_from_the_first_launch_to_the_last_that_touches_it() -> None:
    v = views()
    used = [{v["a"], v["b"]}, {v["a"], v["c"]}, {v["b"]}, {v["c"], v["d"]}, set()]
    # b is needed in the second launch, too, d takes a's place in the fourth: 400 bytes are two lines.
    assert spare_bytes(used, v["arena"]) == [
        [256, 512, 768],
        [256, 512, 768, 1024, 1280],
        [0, 512, 768, 1024, 1280],
        [512, 1024, 1280],
        [0],
    ]


@pytest.mark.parametrize(("size", "place"), [(100, 256), (256, 256), (257, 1024), (512, 1024), (513, 4096)])
def test_what_does_not_fit_between_lies_behind_all_that_is_needed(size: int, place: int) -> None:
    with new_context(), ir.Location.unknown():
        function = ir.Operation.parse("func.func private @f()")
        assert place_for(size, function, 5000) == 5120  # nothing is known
        function.attributes[SPARE] = ir.DenseI64ArrayAttr.get([256, 512, 1024, 1536, 4096])
        assert place_for(size, function, 5000) == place


class Narrow(nn.Module):
    """Wide rows of which long sums are taken, each by several blocks; the first ones are twice as wide."""

    def __init__(self) -> None:
        super().__init__()
        widths = (512, 16384, 256, 8192, 256)
        self.layers = nn.ModuleList(map(nn.Linear, widths, widths[1:]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def test_partial_results_lie_where_something_was_that_nobody_reads_any_more() -> None:
    model, args = Narrow().bfloat16().eval().requires_grad_(False), (torch.randn(256, 512).bfloat16(),)
    with unassembled():
        program = kitsune_mlir.compile(model, args, target="sm_90a", options={"schedule": "separate", "cache": False})
    manifests = [manifest for manifest, _ in CudaRunner.read_kernels(program.artifacts)]
    assert [check_manifest(manifest) for manifest in manifests] == [None] * 4
    wide, _, rest, last = ([p.offset for p in m.parameters if p.kind == "arena"] for m in manifests)
    assert wide == [0] and rest[1] == 0  # the second wide rows, 4 MiB, lie where the first were, 8 MiB
    (place,) = {*last} - {0}
    assert 4 << 20 <= place < 8 << 20
