"""Attention with its gradients through the engines on a device: programs built on one machine, run and checked on another.

    python -m test.gpu.attention_gradient_programs build DIR [NAME...]     # needs the compiler, no GPU
    python -m test.gpu.attention_gradient_programs run DIR [NAME...] [--time] [--json FILE]     # needs a Hopper GPU and torch

A program gives the result and the gradients of queries, keys and values. Errors of four units (`test.gpu.exact_programs`) of
what `sizes_of` says are allowed. With `--time` the cases of `TRAINED_TIMED` are timed beside backends of
`scaled_dot_product_attention` with their own gradients, interleaved, all under CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from test.gpu.attention_cases import TRAINED, TRAINED_TIMED, Case, inputs_of, keys_of, reference
from test.gpu.exact_programs import Programs


def model_of(case: Case) -> Any:
    """The attention and its gradients as a module of its inputs and the result's gradient."""
    import torch

    from kitsune_mlir.frontend.gradients.attention import Dropout, attention_gradients, attention_with_statistics

    class Model(torch.nn.Module):
        def forward(self, q, k, v, *rest):
            *masks, gradient = rest
            dropout = Dropout(masks.pop(0), case.dropout) if case.dropout else None
            if case.layout == "bshd":
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            if case.mask == "length":
                masks = [keys_of(case, *masks)]
            how = (masks[0] if masks else None, case.causal, case.width**-0.5 if case.scale is None else case.scale)
            out, statistics = attention_with_statistics(q, k, v, *how, dropout)
            found = attention_gradients(q, k, v, *how, out, statistics, gradient, dropout=dropout)
            return (out, *found)

    return Model()


def trained_inputs(case: Case, device: str) -> dict[str, Any]:
    """Random inputs, with the result's gradient."""
    import torch

    given = inputs_of(case, device)
    shape = (case.batch, case.heads, case.rows, case.head or case.width)
    return given | {"gradient": torch.randn(shape, device=device).to(given["q"].dtype)}


def exact_results(case: Case, given: dict[str, Any]) -> list[Any]:
    """The result and the gradients of q, k and v, their heads outside of their rows, in float64."""
    import torch

    with torch.enable_grad():
        leaves = {name: given[name].double().requires_grad_() for name in "qkv"}
        out = reference(case, given | leaves)
        found = torch.autograd.grad(out, list(leaves.values()), given["gradient"].double())
    return [out.detach(), *(x.transpose(1, 2).contiguous() if case.layout == "bshd" else x for x in found)]


def sizes_of(case: Case, exact: Sequence[Any]) -> list[Any]:
    """What errors of each row of the results are measured by: its own size, or where that is larger, that of what is summed.

    Gradients of scores are differences of sums of `head` random products, weighted as the result is for a row of queries, and
    as the gradient of values is for one of keys.
    """
    import torch

    out, dq, dk, dv = (x.pow(2).mean(-1, keepdim=True).sqrt() for x in exact)
    scale = abs(case.width**-0.5 if case.scale is None else case.scale) * (case.head or case.width) ** 0.5
    return [out, torch.maximum(dq, scale * out), torch.maximum(dk, scale * dv), dv]


def peers_of(case: Case, given: dict[str, Any]) -> dict[str, Any]:
    """`scaled_dot_product_attention` and its gradients by each backend that takes the case, and as torch chooses."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    leaves = [given[name].detach().requires_grad_() for name in "qkv"]
    more = {"attn_mask": given.get("mask"), "is_causal": case.causal, "enable_gqa": case.heads != case.kv_heads}
    more["dropout_p"] = case.dropout

    def step() -> Any:
        with torch.enable_grad():
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, **more)
            return torch.autograd.grad(out, leaves, given["gradient"])

    found: dict[str, Any] = {"torch": step}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

        def call(backend=backend):
            with sdpa_kernel(backend):
                return step()

        try:
            call()
        except RuntimeError:
            continue
        found[backend.name.split("_")[0].lower()] = call
    return found


def told(case: Case, microseconds: dict[str, float]) -> dict[str, float]:
    """Operations a second, of seven products (gradients make the scores once more)."""
    work = 14 * case.batch * case.heads * case.rows * case.keys * case.width * (0.5 if case.causal else 1)
    return {"tflops": work / microseconds["ours"] * 1e-6}


PROGRAMS = Programs(
    "test.gpu.attention_gradient_programs",
    {**TRAINED, **TRAINED_TIMED},
    TRAINED_TIMED,
    model_of,
    trained_inputs,
    exact_results,
    sizes_of,
    "attention_gradient",
    lambda case: 0 if case.rows == 1 else 2,
    peers_of,
    told,
    allowed=4,
    results=("out", "dq", "dk", "dv"),
)
CASES = PROGRAMS.cases

if __name__ == "__main__":
    raise SystemExit(PROGRAMS.main(__doc__))
