"""The cases of all libraries."""

from __future__ import annotations

import dataclasses

from bench.breadth.library.graphs import graphs
from bench.breadth.library.images import diffusion, images
from bench.breadth.library.language import language
from bench.case import BenchCase

__all__ = ["library"]

AUTOTUNED = {
    "bert_base_b1", "bert_base_b16", "gpt2_b1", "gpt2_b8", "llama_b1", "llama_b8", "mistral_b1", "qwen2_b1", "t5_encoder_b1",
    "whisper_encoder_b1", "vit_s_b1", "vit_s_b16", "swin_t_b8", "convnext_t_b8", "resnet50_b1", "resnet50_b16",
    "efficientnet_b0_b8", "mixer_b16_b8", "unet_condition_b2", "pyg_gcn",
}  # fmt: skip
"""The models that matter most: they are also compared with max-autotune."""


def library() -> list[BenchCase]:
    """All of them."""
    cases = [*language(), *images(), *diffusion(), *graphs()]
    return [dataclasses.replace(case, autotuned=case.name.removeprefix("lib_") in AUTOTUNED) for case in cases]
