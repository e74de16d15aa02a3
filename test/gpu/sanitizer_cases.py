"""Small programs of every kind of kernel, for tools that make each access many times slower."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F

from test.gpu import (
    chain_programs,
    queue_programs,
)
from test.gpu.sanitizer_makers import (
    BF16,
    F32,
    Case,
    Normalised,
    OddTable,
    added,
    attention,
    attention_gradient,
    by_maps,
    chain,
    convolution,
    function,
    gemv,
    layers,
    linear,
    matrices,
    messages,
    ranges,
    recommender,
    recurrent,
    rows,
    scattered,
    several,
    sorted_beside_a_product,
    tower,
)

__all__ = ["CASES", "compiled"]

CASES: dict[str, Case] = {
    "gemv_row": gemv("plain", 1, 640, 264),
    "gemv_7": gemv("gelu", 7, 512, 129),
    "gemv_swiglu": gemv("swiglu", 7, 512, 712),
    "gemv_qkv": gemv("qkv", 16, 512, 512),
    "gemv_f32": gemv("bias", 16, 512, 264, "f32"),
    "gemv_norms": Case("gemv", lambda: Normalised(1024, 4).to(BF16), rows(1, 1024)),
    "decode": attention(batch=2, heads=8, kv_heads=2, rows=3, keys=103, width=64, cached=100),
    "decode_made": attention(batch=3, heads=4, kv_heads=2, rows=7, keys=16, width=128, cached=9, made=True),
    "decode_pieces": attention(batch=1, heads=4, kv_heads=2, rows=1, keys=601, width=128, cached=600, made=True),
    "causal": attention(batch=1, heads=2, kv_heads=2, rows=300, keys=300, width=64, causal=True, layout="fused", made=True),
    "trained": attention_gradient(batch=1, heads=4, kv_heads=2, rows=150, keys=150, width=64, causal=True),
    "trained_masked": attention_gradient(batch=2, heads=2, kv_heads=2, rows=100, keys=100, width=64, mask="rows"),
    "trained_keys_100": attention_gradient(batch=1, heads=2, kv_heads=2, rows=130, keys=100, width=128),
    "trained_256": attention_gradient(batch=1, heads=1, kv_heads=1, rows=150, keys=150, width=256, causal=True),
    "trained_dropout": attention_gradient(batch=1, heads=2, kv_heads=2, rows=130, keys=130, width=64, dropout=0.2),
    "masked": attention(batch=1, heads=2, kv_heads=2, rows=130, keys=130, width=64, mask="float"),
    "ranges": ranges(129, 512, ("128x", "72g", "64x")),
    "ranges_ragged": ranges(129, 300, ("14x", "40g", "10x")),
    "ranges_swiglu": ranges(129, 704, ("128x", "72g", "256x"), swiglu=True),
    "ranges_f32": ranges(129, 264, ("64x", "36g"), dtype="f32"),
    "join": layers("mma", "temporal", 300, 480, 1024, 512, 256),
    "branches": Case("mma", lambda: queue_programs.Branches(512).to(BF16), rows(129, 512)),
    "split": linear(128, 8192, 128, BF16),
    "split_launches": function(  # one place for the partial results of both
        "mma",
        lambda x, y, z: (x @ z, y @ z),
        matrices((128, 8192), (100, 8192), (8192, 136), dtype=BF16),
        schedule="separate",
    ),
    "product_f32": linear(129, 264, 300),
    "product_f32_turned": function("mma", torch.matmul, matrices((129, 100), (100, 136))),
    "product_f32_both_turned": function("mma", lambda x, y: x.T @ y, matrices((300, 132), (300, 72))),
    "gradient_pieces": function("mma", lambda x, y: x.T @ y, matrices((8192, 136), (8192, 264), dtype=BF16)),
    "gradient_copied": function("mma", lambda x, y: x.T @ y, matrices((1000, 130), (1000, 70), dtype=BF16)),
    "product_tf32": linear(129, 264, 300, precision="high"),
    "batched": function("mma", torch.bmm, matrices((5, 70, 72), (5, 72, 40), dtype=BF16)),
    "separate": layers("mma", "separate", 300, 480, 1024, 512),
    "spatial": layers("mma", "spatial", 300, 512, 1024, 512),
    "rings": layers("mma", "spatial", 1000, 512, 1024, 512, rings=4),
    "chain": chain(lambda: chain_programs.Residual(128, nn.LayerNorm), chain_programs.rows(300, 128)),
    "chain_gathered_odd": Case(
        "chain", OddTable, lambda: (*matrices((300, 136), dtype=BF16)(), torch.randint(0, 300, (1000,)))
    ),
    "chain_gathered": chain(lambda: chain_programs.Edge(64), chain_programs.edges(100, 300, 64)),
    "chain_wide": chain(lambda: chain_programs.Normalised(320), chain_programs.rows(129, 320)),
    "chain_stream": chain(lambda: chain_programs.mlp([256] * 6), chain_programs.rows(300, 256)),
    "pairs": recommender(129, (64, 256, 64), 5),
    "convolution": convolution("conv", "odd_channels"),
    "convolution_stem": convolution("conv", "stem_odd"),
    "convolution_stride": convolution("conv", "stride_odd"),
    "convolution_first": convolution("conv", "first_odd"),
    "convolution_f32": convolution("conv", "odd_f32"),
    "convolution_stride_f32": convolution("conv", "stride_f32"),
    "convolution_tf32": convolution("conv", "odd_tf32"),
    "convolution_groups": convolution("conv", "groups_five_odd"),
    "convolution_groups_line": convolution("conv", "line_groups_dilated"),
    "convolution_groups_stride": convolution("conv", "groups_129"),
    "convolution_groups_f32": convolution("conv", "grouped_f32"),
    "convolution_groups_tf32": convolution("conv", "groups_24_tf32"),
    "depthwise": convolution("depthwise", "depthwise_odd"),
    "depthwise_loop": convolution("depthwise", "depthwise_five_odd"),
    "depthwise_f32": convolution("depthwise", "depthwise_f32"),
    "inverted": convolution("depthwise", "inverted_24_f32"),
    "scatter": added(1000, 64, 129, BF16, False),
    "scatter_f32": added(1000, 63, 129, F32, False),
    "scatter_odd": by_maps(added(1000, 7, 129, BF16, False)),
    "scatter_largest": scattered("amax with self of rows", 64, F32),
    "scatter_largest_bf16": by_maps(scattered("amax with self of rows", 64, BF16)),
    "scatter_smallest_odd": by_maps(scattered("amin alone of rows", 7, BF16)),
    "scatter_product": scattered("prod with self", 7, F32),
    "scatter_assigned": scattered("index_copy of columns", 7, BF16),
    "scatter_elements": scattered("index_put apart", 7, F32),
    "ordered_product": scattered("prod with self of rows", 64, BF16, True),
    "ordered_assigned": scattered("index_copy", 7, F32, True),
    "ordered": added(1000, 64, 129, BF16, True),
    "ordered_f32": added(1000, 7, 129, F32, True),
    "softmax_cluster": function("simt", lambda x: torch.softmax(x, -1), matrices((60, 60000))),
    "norm_staged": function("simt", lambda x: x / x.abs().sum(-1, keepdim=True), matrices((300, 1001))),
    "operand_sum": function("mma", lambda dy, x: (dy.T @ x, dy.sum(0)), matrices((25_000, 96), (25_000, 72), dtype=BF16)),
    "columns_split": function("simt", lambda x: x.sum(0), matrices((8000, 40))),
    "columns_softmax": function("simt", lambda x: torch.softmax(x, 0), matrices((100, 300))),
    "transpose": function("simt", lambda x, y: x.t() + y, matrices((129, 77), (77, 129))),
    "argmax": function("simt", lambda x: torch.argmax(x, -1), matrices((100, 1000))),
    "map": function("simt", lambda x, y: torch.relu(x + y), matrices((1000, 129), (129,))),
    "scan": function("scan", lambda x: torch.cumsum(x, -1), matrices((7, 2100))),
    "scan_columns": function("scan", lambda x: torch.cumsum(x, 0), matrices((300, 33), dtype=BF16)),
    "scan_body": function("scan", lambda x: torch.logcumsumexp(x, -1), matrices((7, 2100))),
    "histogram": function("histogram", lambda x: torch.histc(x, 64, -3, 3), matrices((3 * 8192 + 5,))),
    "pairwise": function("pairwise", lambda a, b: ((a[:, None] - b) ** 2).sum(-1), matrices((61, 20), (200, 20))),
    "scan_pieces": function("scan", lambda x: torch.cumsum(x, 1), matrices((2, 70001))),
    "recurrence": recurrent(nn.LSTM, 64, 9, 3),
    "recurrence_both_ways": recurrent(nn.GRU, 33, 7, 2, F32, bidirectional=True),
    "recurrence_counted": recurrent(nn.LSTM, 40, 5, 20),
    "recurrence_passes": recurrent(nn.GRU, 1000, 4, 64),
    "sort": function("sort", lambda x: torch.sort(x, -1), matrices((7, 129))),
    "sort_blocks": function("sort", lambda x: torch.sort(x, dim=-1, descending=True, stable=True), matrices((80, 1500))),
    "sort_lanes": function(
        "sort", sorted_beside_a_product, lambda: (*matrices((80, 1500))(), *matrices((64, 64), (64, 64), dtype=BF16)())
    ),
    "sort_radix": function("radix_sort", lambda x: torch.sort(x, dim=-1, descending=True, stable=True), matrices((3, 5001))),
    "sort_radix_bf16": function("radix_sort", lambda x: x.argsort(stable=True), matrices((20_001,), dtype=BF16)),
    "sort_radix_chunks": function("radix_sort", lambda x: x.sort(stable=True), matrices((1_200_000,))),
    "sort_radix_i64": function(
        "radix_sort", lambda x: torch.sort(x, stable=True), lambda: (torch.randint(-(10**12), 10**12, (9999,)),)
    ),
    "roots": function(
        "mma", lambda x, w: torch.sqrt((x @ w) ** 2 + 1) + torch.rsqrt(x @ w + 70), matrices((300, 136), (136, 72), dtype=BF16)
    ),
    "whole_norm": function("simt", lambda x: x.norm(), matrices((300_001,))),
    "columns_in_registers": function("simt", lambda x: torch.softmax(x, 0), matrices((2048, 1000))),
    "near_elements": function("simt", lambda x: x[1:] - x[:-1], matrices((100_003,), dtype=BF16)),
    "reflected": function("simt", lambda x: F.pad(x, (3, 5, 2, 1), "reflect"), matrices((2, 3, 27, 129), dtype=BF16)),
    "tiny_products": function("simt", lambda x, y: x @ y, matrices((300, 7, 5), (300, 5, 3))),
    "gathered_rows_added": dataclasses.replace(
        function("simt", messages, lambda: (*matrices((500, 64), (3000, 1))(), torch.randint(0, 500, (2, 3000)))),
        repeats=False,  # added in the order in which they come
    ),
    "generic": function("generic", lambda x: F.max_pool3d(x, 3, return_indices=True), matrices((2, 3, 7, 9), dtype=BF16)),
    "requests_gemv": several(Case("gemv", lambda: tower(128, 264, 72, 1), rows(1, 128), tolerance=0.1), 9),
    "requests_gemv_f32": several(Case("gemv", lambda: tower(64, 129, 33, dtype=F32), rows(7, 64, F32)), 17),
    "requests_mma": several(layers("mma", "temporal", 129, 264, 512, 200), 9),
    "requests_split": several(function("mma", torch.matmul, matrices((64, 1152), (1152, 64))), 40),
    "requests_product_f32": several(function("mma", torch.matmul, matrices((129, 264), (264, 136))), 17),
    "requests_norms": several(Case("gemv", lambda: Normalised(256, 3).to(BF16), rows(1, 256)), 9),
    "requests_attention": several(
        attention(batch=1, heads=2, kv_heads=2, rows=130, keys=130, width=64, layout="fused", made=True), 5
    ),
    "requests_convolution": several(convolution("conv", "odd_channels"), 5),
    "requests_sort": several(function("sort", lambda x: torch.sort(x, -1), matrices((7, 129))), 5),
    "requests_scan": several(function("scan", lambda x: torch.cumsum(x, -1), matrices((7, 2100))), 5),
    "requests_softmax": several(function("simt", lambda x: torch.softmax(x, -1), matrices((60, 6000))), 140),
    "debug": dataclasses.replace(layers("mma", "temporal", 129, 256, 512, 256), options={"debug": True}),
    "timestamps": dataclasses.replace(layers("mma", "temporal", 129, 256, 512, 256), options={"timestamps": True}),
}


@contextlib.contextmanager
def _planned(case: Case) -> Iterator[None]:
    """The planner as the case wants it."""
    from kitsune_mlir.passes.stages import sum_ranges

    with contextlib.ExitStack() as stack:
        if case.forced:
            stack.enter_context(mock.patch.object(sum_ranges, "ROW_BYTES", 1))
            stack.enter_context(mock.patch.object(sum_ranges, "few_rows", lambda op: None))
            stack.enter_context(mock.patch.object(sum_ranges, "GATHERED_BYTES", (2, 4)))
        yield


def compiled(name: str) -> Any:
    """The program of a case."""
    import kitsune_mlir

    case = CASES[name]
    with _planned(case):
        return kitsune_mlir.compile(*case.made(), target="sm_90a", options={**case.options, "passes": case.steps})
