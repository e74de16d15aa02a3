"""The benchmark's cases: the models that the project is judged by, the rest of the zoo, and the families of `bench.sweeps`.

`all_cases` has them all by name, in order; `select` finds them by patterns.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bench.breadth.cases import breadth
from bench.breadth.library import library
from bench.breadth.operators import operators
from bench.breadth.random_models import random_models
from bench.case import DTYPES, BenchCase, Inputs
from bench.models import ZOO, make
from bench.modules import MixtureOfExperts
from bench.recurrent import recurrent
from bench.sweeps import sweeps

__all__ = ["all_cases", "select"]


def _model(name: str, size: str, dtype: str, numbers: dict[str, Any], device: str, values: bool) -> Inputs:
    return make(name, size, DTYPES[dtype], device=device, values=values, **numbers)


def of_zoo(model: str, dtype: str = "bf16", size: str = "full", **numbers: Any) -> Callable[[str, bool], Inputs]:
    """`BenchCase.make` for a model of the zoo."""
    return functools.partial(_model, model, size, dtype, numbers)


def _unread_rows(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    """Bytes of DLRM's tables that the indices do not name."""
    tables = model.embeddings
    assert isinstance(tables, Tensor)
    indices = args[1]
    numbered = indices + torch.arange(tables.shape[0], device=indices.device) * tables.shape[1]
    read = torch.unique(numbered).numel()
    return (tables.shape[0] * tables.shape[1] - read) * tables.shape[2] * tables.element_size()


def headline() -> list[BenchCase]:
    """The models and sizes that the project is judged by."""
    goals = {64: 1.1, 512: 1.0, 768: 1.0, 1024: 1.0, 1536: 1.0, 2048: 1.0}
    return [
        BenchCase("nerf_256k", "headline", of_zoo("nerf"), goal=3.0),
        BenchCase("dlrm_2048", "headline", of_zoo("dlrm"), goal=2.5, unread=_unread_rows),
        BenchCase("mgn_20k_120k", "headline", of_zoo("mgn"), goal=5.0),
        BenchCase("gcast_512", "headline", of_zoo("gcast"), goal=2.3),
        *(BenchCase(f"gpt3_mlp_{m}", "headline", of_zoo("gpt3_mlp", rows=m), goal=goal) for m, goal in goals.items()),
        BenchCase("llama8b_tok_b1", "headline", of_zoo("llama8b_tok", batch=1), goal=1.2),
        BenchCase("llama8b_tok_b16", "headline", of_zoo("llama8b_tok", batch=16), goal=1.6),
        BenchCase("llama8b_prefill_128", "headline", of_zoo("llama_prefill"), goal=1.4),
        BenchCase("stitch_4096x1024", "headline", of_zoo("stitch"), goal=2.5),
    ]


def undecided_routes(model: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    """`BenchCase.undecided` for a mixture of experts."""
    assert isinstance(model, MixtureOfExperts)
    return model.undecided(args[0])


def layers() -> list[BenchCase]:
    """Stacks of layers, and halves of a layer: what streams from stage to stage."""
    return [
        BenchCase("llama8b_stack8_tok_b1", "layers", of_zoo("llama8b_stack"), goal=1.25),
        *(
            BenchCase(f"attention_block_{m}", "layers", of_zoo("attention_block", tokens=m), goal=1.1)
            for m in (512, 1024, 2048)
        ),
    ]


def zoo() -> list[BenchCase]:
    """The zoo's other models in full size, and all of it in small (correctness more than speed)."""
    routed = {"moe": undecided_routes}
    others = ("resnet_block", "bert_layer", "moe")
    full = [BenchCase(f"zoo_{n}", "zoo", of_zoo(n), undecided=routed.get(n)) for n in others]
    small = [
        BenchCase(
            f"small_{name}_{dtype}",
            "small",
            of_zoo(name, dtype, "small"),
            dtype,
            undecided=routed.get(name),
        )
        for name in ZOO
        for dtype in ("bf16", "f32")
    ]
    return full + small


@functools.cache
def all_cases() -> dict[str, BenchCase]:
    """Every case by name."""
    found = {}
    for case in [
        *headline(),
        *layers(),
        *zoo(),
        *sweeps(),
        *recurrent(),
        *breadth(),
        *library(),
        *operators(),
        *random_models(),
    ]:
        assert case.name not in found, case.name
        found[case.name] = case
    return found


def select(patterns: Iterable[str]) -> list[BenchCase]:
    """Cases whose name or group matches one of the patterns (`*`, `?`, `[…]`); without patterns the headline.

    Raises:
        ValueError: a pattern matches nothing.
    """
    wanted = list(patterns) or ["headline"]
    cases = list(all_cases().values())
    chosen: dict[str, BenchCase] = {}
    for pattern in wanted:
        hits = [c for c in cases if fnmatch.fnmatchcase(c.name, pattern) or fnmatch.fnmatchcase(c.group, pattern)]
        if not hits:
            raise ValueError(
                f"no case and no group matches '{pattern}'; groups: {', '.join(dict.fromkeys(c.group for c in cases))}"
            )
        chosen.update((c.name, c) for c in hits)
    return [c for c in cases if c.name in chosen]
