"""Text that Transformers' generate() makes token by token, through torch.compile: programs, tokens, and time beside Inductor's.

    python -m bench.generation [--caches default static] [--ways NAME...] [--tokens 256] [--kept] [--prepare] [--json FILE]

The model is a Llama of the 1B shape with four layers and random weights; its forward is compiled, prompts and single tokens
alike. First prompts of several lengths are continued, and the tokens compared with eager's; then one prompt is continued for so
many tokens, in turns, and the wall time of the whole call is noted: the least of some. `kitsune` and `Inductor` have their CUDA
graphs on (where a cache grows, every length would be another graph), and with `calls` off. `--prepare` fills the caches on disk
and times nothing. On the host (`--device cpu --small`) there are no graphs, and the model is a small one.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import host
from bench.case import DTYPES
from bench.library_models import imported
from bench.records import Record
from bench.timing import environment

SHAPE = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 4, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip
SMALL = {
    **SHAPE,
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LENGTHS = (64, 9, 33, 100, 20)
"""Tokens of prompts whose tokens are compared, the first of which is the one that is timed."""
MOST = 256
"""Tokens that a static cache has room for behind those."""
FEW = 12
"""Tokens behind those that are compared only."""

WAYS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "kitsune": {"backend": "kitsune", "options": {"guard": False, "cudagraphs": True}},
    "kitsune, calls": {"backend": "kitsune", "options": {"guard": False}},
    "Inductor": {"backend": "inductor", "mode": "reduce-overhead"},
    "Inductor, calls": {"backend": "inductor"},
}
"""What torch.compile is called with; None: not called."""


class Generator:
    """generate() of a model, one way.

    Args:
        model: of Transformers; its `forward` is exchanged in calls.
        how: torch.compile's arguments, or None.
        cache: "default", which grows, or "static".
        kept: keep programs on disk, and take them from there.
    """

    def __init__(self, model: Any, how: dict[str, Any] | None, cache: str, kept: bool = False):
        self.model, self.graphs, self._kept = model, list[Any](), kept
        self._cache = static_cache(model) if cache == "static" else None
        self._forward = model.forward if how is None else torch.compile(apart(model.forward), **self._noting(how))

    def _noting(self, how: dict[str, Any]) -> dict[str, Any]:
        """The same arguments, which note what of each graph becomes."""
        if how["backend"] != "kitsune":
            return how
        from kitsune_mlir.dynamo.backend import compiled_graph
        from kitsune_mlir.dynamo.graph_options import options_of_backend

        asked = options_of_backend(None, {**how["options"], "cache": self._kept})
        return {"backend": lambda gm, given: compiled_graph(gm, given, *asked, keep=self.graphs.append)}

    def __call__(self, prompt: Tensor, count: int) -> Tensor:
        """The prompt [1, T] and `count` tokens behind it."""
        kind = {} if self._cache is None else {"past_key_values": self._cache}
        if self._cache is not None:
            self._cache.reset()
        before, self.model.forward = self.model.forward, self._forward
        try:
            asked = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "disable_compile": True, **kind}
            return self.model.generate(prompt, **asked)
        finally:
            self.model.forward = before


def static_cache(model: Any) -> Any:
    """A cache for the longest prompt and what follows, whose memory is there and marked as what stays: CUDA graphs need it."""
    config = model.config
    cache = imported("transformers").StaticCache(config=config, max_cache_len=max(LENGTHS) + MOST)
    width = config.hidden_size // config.num_attention_heads
    cache.early_initialization(1, config.num_key_value_heads, width, model.dtype, model.device)
    return cache


def apart(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with code of its own: Dynamo keeps what it compiles by code, and counts all of that."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    own = types.FunctionType(function.__code__.replace(), globals(), closure=function.__closure__)
    return functools.wraps(forward)(own)


def least_seconds(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least wall time of each call, in turns, with the device's work done."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            least[name] = min(least[name], time.perf_counter() - start)
    return least


@torch.no_grad()
def measure(
    cache: str, ways: list[str], device: str, dtype: str, tokens: int, small: bool, rounds: int, kept: bool, count: int
) -> dict[str, Any]:
    """One cache: what each way compiled, whether the tokens of so many prompts are eager's, seconds of generate() (`rounds` 0:
    none)."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    transformers = imported("transformers")
    shape = SMALL if small else SHAPE
    config = transformers.LlamaConfig(**shape, pad_token_id=0, bos_token_id=None, eos_token_id=None)
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).eval().to(DTYPES[dtype])
    prompts = [torch.randint(1, shape["vocab_size"], (1, length), device=device) for length in LENGTHS[:count]]
    made = {name: Generator(model, WAYS[name], cache, kept) for name in ways}
    wanted = [made["eager"](prompt, FEW if n else tokens) for n, prompt in enumerate(prompts)]
    right, first = dict[str, int](), dict[str, int]()
    for name, generator in made.items():
        found = [generator(prompts[0], tokens)]
        first[name] = len(generator.graphs)
        found += [generator(prompt, FEW) for prompt in prompts[1:]]
        same = [torch.equal(got, want) for got, want in zip(found, wanted, strict=True)]
        right[name] = sum(same)
        print(f"{cache} {name}: {right[name]} of {len(same)} prompts as eager", flush=True)
    calls = {name: functools.partial(generator, prompts[0], tokens) for name, generator in made.items()}
    seconds = least_seconds(calls, rounds) if rounds else {}
    ours = next((name for name in ways if name.startswith("kitsune")), "eager")
    return {
        "case": f"llama {cache} {dtype}",
        "prompts": len(prompts),
        "prompts_as_eager": right,
        "graphs_of_the_first_prompt": first[ours],
        "programs": [f"{graph.sizes}: {len(graph.programs)}, {len(graph.islands)} islands" for graph in made[ours].graphs],
        "tokens": tokens,
        "milliseconds_a_token": {name: round(1e3 * each / tokens, 4) for name, each in seconds.items()},
    }


def main() -> int:
    """Command line; the exit status is 1 where tokens in f32 are not eager's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caches", nargs="+", default=["default", "static"], choices=("default", "static"))
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="f32", choices=("f32", "bf16"))
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=len(LENGTHS), help="how many are compared")
    parser.add_argument("--kept", action="store_true", help="keep programs on disk, and take them from there")
    parser.add_argument("--small", action="store_true", help="a small model")
    parser.add_argument("--prepare", action="store_true", help="compile all, and time nothing")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    record = Record.open(given.json)
    about = host.environment() if given.device == "cpu" else environment()
    record.begin({"environment": about, "command": f"python -m bench.generation --device {given.device} --dtype {given.dtype}"})
    good = True
    ways = [*dict.fromkeys(["eager", *given.ways])]
    for cache in given.caches:
        rounds = 0 if given.prepare else given.rounds
        answer = measure(cache, ways, given.device, given.dtype, given.tokens, given.small, rounds, given.kept, given.prompts)
        if not given.prepare:
            record.add(answer)
        print(json.dumps(answer, ensure_ascii=False), flush=True)
        good &= given.dtype != "f32" or all(n == answer["prompts"] for n in answer["prompts_as_eager"].values())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
