"""bf16 on the host: LLVM's instruction selection has holes there, so its values are integers, and casts go through f32."""

from __future__ import annotations

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.codegen.host.bf16 import bf16_as_integers


class Moves(torch.nn.Module):
    """Copies, choices and casts of bf16, [rows, columns]."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x: bf16; n: i64."""
        choice = torch.where(x > 0, x, x.flip(0))
        casts = (n.to(torch.bfloat16), (x > 0).to(torch.bfloat16), x.double(), x.double().to(torch.bfloat16), x.to(torch.int64))
        return torch.cat([x, x], 0), choice, x.amax(-1), x.to(torch.float16).to(torch.bfloat16), *casts


@pytest.mark.parametrize("columns", [3, 9, 17, 33])
def test_moves_choices_and_casts(columns: int) -> None:
    x, n = torch.randn(7, columns).bfloat16() * 3, torch.randint(-(2**40), 2**40, (7, columns))
    with torch.no_grad():
        program = kitsune_mlir.compile(Moves(), (x, n), target="host")
        for got, wanted in zip(program(x, n), Moves()(x, n), strict=True):
            assert torch.equal(got, wanted)
    assert "bfloat" not in program.ir("llvm")


def test_text() -> None:
    lines = (
        "%1 = select <3 x i1> %0, <3 x bfloat> splat (bfloat 0xR7FC0), <3 x bfloat> %bfloat",
        '@text = constant [10 x i8] c"bfloat 0xR7FC0"',
        "%2 = call <8 x bfloat> @llvm.masked.load.v8bf16.p0(ptr %p, <8 x i1> %m, <8 x bfloat> poison)",
        "%3 = phi bfloat [ 0xR0000, %4 ], [ %5, %6 ]",
    )
    assert bf16_as_integers("\n".join(lines)).split("\n") == [
        "%1 = select <3 x i1> %0, <3 x i16> splat (i16 u0x7FC0), <3 x i16> %bfloat",
        lines[1],
        "%2 = call <8 x i16> @llvm.masked.load.v8i16.p0(ptr %p, <8 x i1> %m, <8 x i16> poison)",
        "%3 = phi i16 [ u0x0000, %4 ], [ %5, %6 ]",
    ]
