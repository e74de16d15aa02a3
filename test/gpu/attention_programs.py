"""Attention through the `attention` engine on a device: programs built on one machine, run and checked on another.

    python -m test.gpu.attention_programs build DIR [NAME...]     # needs the compiler, no GPU
    python -m test.gpu.attention_programs run DIR [NAME...] [--time] [--json FILE]     # needs a Hopper GPU and torch

Errors of three units are allowed (`test.gpu.exact_programs`), as the weights are rounded too. With `--time` the cases of
`TIMED` are timed beside every backend of `scaled_dot_product_attention` that takes them, interleaved, all under CUDA graphs.
"""

from __future__ import annotations

from typing import Any

from test.gpu.attention_cases import CASES, TIMED, Case, inputs_of, keys_of, model_of, reference, thirds
from test.gpu.exact_programs import Programs


def sizes_of(case: Case, exact: list[Any]) -> list[Any]:
    """Each row's own size."""
    return [out.pow(2).mean(-1, keepdim=True).sqrt() for out in exact]


def peers_of(case: Case, given: dict[str, Any]) -> dict[str, Any]:
    """`scaled_dot_product_attention` by each backend that takes the case, and as torch chooses."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = thirds(case, given["qkv"]) if "qkv" in given else (given[name] for name in "qkv")
    more = {
        "attn_mask": keys_of(case, given["mask"]) if case.mask == "length" else given.get("mask"),
        "is_causal": case.causal,
        "enable_gqa": case.heads != case.kv_heads,
    }
    found: dict[str, Any] = {"torch": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):

        def call(backend=backend):
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **more)

        try:
            call()
        except RuntimeError:
            continue
        found[backend.name.split("_")[0].lower()] = call
    if case.rows == 1:  # reading is what counts: a copy reads and writes
        source = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        found["copy"] = lambda: target.copy_(source)
    return found


def told(case: Case, microseconds: dict[str, float]) -> dict[str, float]:
    """Operations a second; of one row how fast it reads, beside a copy."""
    work = 4 * case.batch * case.heads * case.rows * case.keys * case.width * (0.5 if case.causal else 1)
    found = {"tflops": work / microseconds["ours"] * 1e-6}
    if "copy" in microseconds:
        bytes = 4 * case.batch * case.kv_heads * case.keys * case.width
        found["bandwidth"] = bytes / microseconds["ours"] / (2 * COPIED / microseconds["copy"])
    return found


COPIED = 1 << 28
PROGRAMS = Programs(
    "test.gpu.attention_programs",
    CASES,
    TIMED,
    model_of,
    inputs_of,
    lambda case, given: [reference(case, given)],
    sizes_of,
    "attention",
    lambda case: 1,
    peers_of,
    told,
    allowed=3,
    results=("out",),
)

if __name__ == "__main__":
    raise SystemExit(PROGRAMS.main(__doc__))
