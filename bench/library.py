"""Models of Transformers and layers of PyG through torch.compile(backend="kitsune"): compiled or not, right or not, how fast.

    python -m bench.library [NAME...] [--device cuda] [--json FILE]

Needs the compiler, transformers and torch_geometric. Models are made from configurations, with random weights and few layers.
A model counts as compiled if at least one of its graphs became a program; graphs that stay in PyTorch are counted, with their
reasons. Times are of whole calls, of which Dynamo's guards are a part, beside the model as PyTorch runs it. Each case has a
process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.forked import answer_of
from bench.timing import environment, time_calls

SECONDS = 240
LIMIT = 2e-2
"""Largest ‖out - eager‖ / ‖eager‖ of f32 results: eager's own products may be TF32 or not, as torch is set."""

Case = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


def _text(kind: str, model: str, length: int = 64, **config: Any) -> Case:
    def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        import transformers

        settings = getattr(transformers, f"{kind}Config")(vocab_size=1000, **config)
        made = getattr(transformers, model)(settings)
        return made, (), {"input_ids": torch.randint(0, 1000, (2, length))}

    return make


def _image(kind: str, model: str, **config: Any) -> Case:
    def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        import transformers

        made = getattr(transformers, model)(getattr(transformers, f"{kind}Config")(image_size=64, patch_size=16, **config))
        return made, (), {"pixel_values": torch.randn(2, 3, 64, 64)}

    return make


def _sound() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=128, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=256, max_source_positions=50, num_mel_bins=80
    )
    return WhisperEncoder(config), (torch.randn(2, 80, 100),), {}


def _graph(layer: str) -> Case:
    def make() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        import torch_geometric.nn as pyg

        nodes, edges = 200, 1000
        index = torch.randint(0, nodes, (2, edges))
        return getattr(pyg, layer)(48, 32), (torch.randn(nodes, 48), index), {}

    return make


_BERT = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
_LLAMA = {**_BERT, "num_key_value_heads": 2}
CASES: dict[str, Case] = {
    "bert": _text("Bert", "BertModel", **_BERT),
    "distilbert": _text("DistilBert", "DistilBertModel", dim=128, n_layers=2, n_heads=4, hidden_dim=256),
    "gpt2": _text("GPT2", "GPT2Model", n_embd=128, n_layer=2, n_head=4),
    "llama": _text("Llama", "LlamaModel", **_LLAMA),
    "qwen3": _text("Qwen3", "Qwen3Model", head_dim=32, **_LLAMA),
    "t5_encoder": _text("T5", "T5EncoderModel", d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4),
    "vit": _image("ViT", "ViTModel", **_BERT),
    "whisper_encoder": lambda: _sound(),
    "pyg_gcn": _graph("GCNConv"),
    "pyg_gat": _graph("GATConv"),
    "pyg_sage": _graph("SAGEConv"),
}


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of a result; the caches of keys and values that language models hand out beside it are left out."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if hasattr(value, "values") else value if isinstance(value, tuple | list) else ()
    return [tensor for one in values for tensor in _tensors(one)]


def measure(name: str, device: str) -> dict[str, Any]:
    """One case: its programs, why graphs stay in PyTorch, its error, seconds of the first call, milliseconds later."""
    import kitsune_mlir.pipeline as pipeline

    torch.manual_seed(0)
    model, args, kwargs = CASES[name]()
    model = model.eval().to(device)
    args = tuple(a.to(device) for a in args)
    kwargs = {key: value.to(device) for key, value in kwargs.items()}
    programs: list[Any] = []
    compile_imported = pipeline.compile_imported

    def counting(*given: Any) -> Any:
        programs.append(compile_imported(*given))
        return programs[-1]

    pipeline.compile_imported = counting
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        want = _tensors(model(*args, **kwargs))
        fast = torch.compile(model, backend="kitsune", dynamic=False)
        start = time.perf_counter()
        got = _tensors(fast(*args, **kwargs))
        seconds = time.perf_counter() - start
        got = _tensors(fast(*args, **kwargs))
        said = [str(w.message) for w in caught if str(w.message).startswith("kitsune")]
        errors = [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(got, want, strict=True)]
        result = {
            "case": name,
            "programs": len(programs),
            "stages": [len(program.summary["stages"]) for program in programs],
            "in_pytorch": sum("runs in PyTorch" in line for line in said),
            "said": said,
            "error": max(errors),
            "first_call_seconds": round(seconds, 1),
        }
        if device == "cuda":
            calls = {"kitsune": lambda: fast(*args, **kwargs), "eager": lambda: model(*args, **kwargs)}
            result["milliseconds"] = {key: round(value, 4) for key, value in time_calls(calls, rounds=3).items()}
    return result


def main() -> int:
    """Command line; the exit status is the number of cases that are not right, or of which nothing was compiled."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results, bad = [], 0
    for name in given.names or list(CASES):
        result = answer_of(lambda name=name: measure(name, given.device), name, SECONDS)
        bad += "problem" in result or not result["error"] < LIMIT or not result["programs"]
        results.append(result)
        print(json.dumps(result), flush=True)
    if given.json is not None:
        record = {"environment": environment(), "command": "python -m bench.library", "results": results}
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return bad


if __name__ == "__main__":
    sys.exit(main())
