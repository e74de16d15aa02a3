"""Models that the compiler was not built around: planned for an H200, none of their stages is far above its floor."""

from __future__ import annotations

import warnings

import pytest
import torch

import kitsune_mlir
from bench.breadth.cases import breadth
from bench.case import BenchCase
from kitsune_mlir.errors import PerformanceWarning
from test.gpu.unassembled import unassembled
from test.rotation import in_turn

CASES = {case.name.removeprefix("breadth_"): case for case in breadth()}
LONG = {"bert_base_b1", "bert_base_b8", "gpt2_b4", "lstm_512", "lstm_2x256", "gru_bi_256", "rnn_256", "dien", "dlrm_bags"}
"""Take more than ten seconds."""
SLOW = {
    "pointnet": "one block has the sixteen rows of a chain",
    "convnext_96_b8": "the model of a depthwise convolution's time is three times what was measured",
    "unet_32": "a convolution of two features",
}
"""Models with stages that are said to be slow."""


def slow_stages(case: BenchCase) -> list[str]:
    """What the compiler says of slow stages."""
    model, args = case.make("cpu", False)
    with unassembled(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        return [stage["reason"] for stage in kitsune_mlir.compile(model, args, target="h200").summary["slow"]]


@pytest.mark.parametrize("name", in_turn(sorted(set(CASES) - LONG), 2))
def test_no_stage_is_far_above_its_floor(name: str) -> None:
    assert bool(slow_stages(CASES[name])) == (name in SLOW)
