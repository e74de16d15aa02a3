"""Sizes that programs are compiled for: few of them, none much larger than what is asked for."""

import random

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kitsune_mlir.dynamo import size_cost
from kitsune_mlir.dynamo.buckets import Buckets


def test_buckets():
    one = Buckets({}, {}, 8.0)
    assert [one.find({"n": n})["n"] for n in (3, 64, 65, 4096, 9)] == [64, 64, 512, 4096, 64]
    heavy = Buckets({"b": 128}, {"b": 20}, 8.0)
    assert [heavy.find({"b": n})["b"] for n in (2, 3, 17, 20)] == [2, 16, 20, 20]
    chosen = Buckets({}, {}, 8.0, (10, 100))
    assert [chosen.find({"n": n})["n"] for n in (3, 11, 101)] == [10, 100, 800]
    wide = Buckets({"b": 16}, {}, 8.0, least=128)
    assert [wide.find({"b": n})["b"] for n in (3, 8, 9, 33)] == [8, 8, 32, 256]
    both = Buckets({}, {}, 8.0)
    for _ in range(300):
        n, m = random.randint(1, 1000), random.randint(1, 4000)
        found = both.find({"n": n, "m": m})
        assert found["n"] >= n and found["m"] >= m
    assert len(both.known) <= 4


def test_buckets_of_sizes_that_grow_together():
    cache = Buckets({}, {}, 8.0)
    assert [cache.find({"past": n, "mask": n + 1})["past"] for n in range(2, 500)][-1] == 512
    assert cache.known == [{"past": 64, "mask": 64}, {"past": 512, "mask": 512}]


def test_buckets_of_programs_that_leave_rows_out():
    """One for few rows, one for all others: tiles of the large one are too large for few, what is left out takes little."""
    cost, idle = (lambda sizes: 1e-4 + 1e-5 * sizes["n"]), (lambda sizes: 1e-9 * sizes["n"])
    one = Buckets({}, {}, 8.0, cost=cost, idle=idle, given=lambda sizes: 512 * sizes["n"])
    assert [one.find({"n": n})["n"] for n in (70, 3, 8, 9, 4000, 4096, 5)] == [32768, 8, 8, 32768, 32768, 32768, 8]
    dear = Buckets({}, {}, 8.0, cost=cost, idle=lambda sizes: 1.0)
    assert [dear.find({"n": n})["n"] for n in (4000, 3, 70)] == [4096, 8, 512]


def test_a_program_that_holds_all_sizes_serves_them_where_another_one_would_be_no_faster():
    """A prompt of 100 tokens in a program for 128, whose mask may be long."""
    prompts = Buckets({}, {}, 8.0, cost=lambda sizes: 1 + 1e-3 * sizes["tokens"] + 1e-9 * sizes["mask"], least=128)
    assert {prompts.find({"tokens": n, "mask": n})["tokens"] for n in (9, 33, 100, 20, 128)} == {128}
    assert prompts.find({"tokens": 129, "mask": 129})["tokens"] == 512
    assert len(prompts.known) == 2


def test_buckets_that_cost_nothing():
    """Where all else costs much more than what a size adds, one program is for many sizes."""
    decoding = Buckets({}, {"past": 3000}, 8.0, cost=lambda sizes: 1 + 1e-5 * sizes["past"])
    assert {decoding.find({"past": n})["past"] for n in range(2, 3001, 37)} == {3000}
    nothing = Buckets({}, {}, 8.0, cost=lambda sizes: 1)
    assert nothing.find({"past": 5})["past"] >= 4096


def test_variants_for_fewer_rows():
    """Of many rows for shares of them, of few for numbers of rows that take other tiles; none where a user says the sizes."""
    varied = Buckets({"samples": 16}, {}, 8.0, varied=True)
    assert [sizes["samples"] for sizes in varied.variants({"samples": 256}, {"samples": 200})] == [180, 126, 88, 62, 44]
    assert [sizes["samples"] for sizes in varied.variants({"samples": 32}, {"samples": 3})] == [8, 4, 2]
    assert varied.variants({"samples": 2}, {"samples": 2}) == []
    for plain in (Buckets({}, {}, 8.0), Buckets({}, {}, 8.0, [512], varied=True)):
        assert plain.variants({"n": 512}, {"n": 512}) == []


def test_variants_keep_proportions():
    """Of several sizes that of most rows decides, and others are as large beside it as in the call, with some room."""
    graph = Buckets({}, {}, 8.0, varied=True)
    many = graph.variants({"nodes": 4096, "edges": 32768}, {"nodes": 4096, "edges": 15000})
    assert [sizes["edges"] for sizes in many] == [16384, 8192, 4096, 2048, 1024]
    assert many[0]["nodes"] == 4096  # no more than the program has
    assert all(1.3 <= sizes["nodes"] * 15000 / sizes["edges"] / 4096 < 1.31 for sizes in many[1:])
    few = graph.variants({"nodes": 512, "edges": 512}, {"nodes": 8, "edges": 28})
    assert few == [{"nodes": n, "edges": m} for n, m in ((48, 128), (24, 64), (12, 32), (6, 16), (3, 8))]
    assert graph.variants({"nodes": 64, "edges": 512}, {"nodes": 500, "edges": 2})[0] == {"nodes": 64, "edges": 2}


@pytest.mark.parametrize("reads", [0, 1])
def test_results_that_are_read_again_cost_more(reads):
    gm = make_fx(lambda x, w: torch.cat([x, x]).sin() @ w, tracing_mode="fake")(torch.randn(64, 32), torch.randn(32, 16))
    start, bandwidth, rate = size_cost._RATES["cpu"]
    moved = 4 * (64 * 32 + 32 * 16) + (1 + reads) * 4 * (2 * 128 * 32 + 128 * 16)
    assert size_cost.cost_of(gm, reads)({}) == pytest.approx(start + moved / bandwidth + 2 * 128 * 32 * 16 / rate)
