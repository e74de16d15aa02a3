"""The frontend: operators that need its own decompositions compute what torch computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kitsune_mlir.frontend import import_model
from test.oracles.upstream import check, text

CASES = {
    "convolutions": (
        nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=2), nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(4, 4, 3, dilation=2)),
        (torch.randn(2, 4, 9, 9),),
    ),
    "pooling": (
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 1, 1), F.adaptive_avg_pool2d(x, 1)),
        (torch.randn(2, 4, 7, 9),),
    ),
    "batch-norm-training": (nn.BatchNorm2d(4), (torch.randn(2, 4, 3, 3),)),
    "group-norm": (nn.GroupNorm(2, 4), (torch.randn(2, 4, 3, 3),)),
    "rms-norm": (nn.RMSNorm(6), (torch.randn(2, 6),)),
    "activations": (
        lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x), F.elu(x), F.hardswish(x)),
        (torch.randn(3, 5),),
    ),
    "mish": (
        F.mish,
        (torch.cat([torch.randn(27), torch.tensor([0.0, -0.0, 19.9, 20.1, 100.0, -100.0, float("inf"), float("nan")])]),),
    ),
    "embedding": (nn.Embedding(10, 4, padding_idx=0), (torch.randint(0, 10, (3, 5)),)),
    "scatter-and-gather": (
        lambda x, i, v: (x.scatter(-1, i, v), x.scatter_add(-1, i, v), x.gather(-1, i)),
        (torch.randn(4, 8), torch.tensor([[0, 1], [7, 2], [3, 4], [5, 6]]), torch.randn(4, 2)),
    ),
    "index-add": (
        lambda x, i, v: x.index_add(0, i, v, alpha=2),
        (torch.randn(5, 3), torch.tensor([1, 1, 4]), torch.randn(3, 3)),
    ),
    "negative-indices": (
        lambda x, i, v: (x[i], torch.index_put(x, (i,), v), torch.index_put(x, (i,), v, accumulate=True)),
        (torch.randn(5, 3), torch.tensor([-1, 2, -5]), torch.randn(3, 3)),
    ),
    "grouped-products": (  # an empty group, and one of a single row
        lambda x, w, ends: (torch.ops.aten._grouped_mm(x, w, ends), torch.ops.aten._grouped_mm(x[:8].view(4, 2, 16), w)),
        (
            *(torch.randint(-3, 4, shape).bfloat16() for shape in ((9, 16), (4, 16, 8))),  # sums are exact
            torch.tensor([3, 3, 4, 9], dtype=torch.int32),
        ),
    ),
    "cat-split-stack": (
        lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y]), x.split(2, 0)[1], x.chunk(2, 1)),
        (torch.randn(4, 8), torch.randn(4, 8)),
    ),
    "top-k": (
        lambda x: (torch.topk(x, 3), torch.topk(x, 2, dim=0, largest=False)),
        (torch.randperm(32).reshape(4, 8).float(),),
    ),
    "top-k-special": (
        lambda x: torch.topk(x, 3).values,
        (torch.tensor([[float("-inf")] * 3 + [1.0], [2.0, float("inf"), float("nan"), 1.0]]),),
    ),
    "crops": (
        lambda x: (F.pad(x, (0,) * 6 + (0, -1)), F.pad(x, (-1, 2, 3, -2), value=1.5), F.pad(x, (-5, 2)), F.pad(x, (0, -1))),
        (torch.randn(3, 2, 4, 5),),
    ),
    "crops-by-mode": (
        lambda x: [F.pad(x, (-1, 2, 3, -2), mode) for mode in ("reflect", "replicate", "circular")],
        (torch.randn(3, 2, 6, 7),),
    ),
    "triangles": (lambda x: (torch.tril(x), torch.triu(x, 1)), (torch.randn(8, 8),)),
    "as-strided": (lambda x: torch.as_strided(x, (3, 2), (1, 4)), (torch.randn(4, 8),)),
    "as-strided-scatter": (
        lambda x, y: (
            torch.as_strided_scatter(x, y, (3, 2), (1, 9), 4),
            torch.as_strided_scatter(x, y.unsqueeze(1), (3, 1, 2), (8, 77, 1)),
            torch.as_strided_scatter(x[0], x[1].reshape(2, 2, 2), (2, 2, 2), (4, 2, 1)).exp(),
        ),
        (torch.randn(4, 8), torch.randn(3, 2)),
    ),
    "sorting": (
        lambda x: (torch.sort(x), torch.sort(x, dim=0, descending=True), torch.sort(x % 3, stable=True)),
        (torch.randperm(15).reshape(3, 5),),
    ),
    "rank-0": (
        lambda x: (x.cumsum(0), x.max(0), x.argmax(), x.amax(), torch.softmax(x, 0), x.sort(), (x > 0).all()),
        (torch.tensor(2.0),),
    ),
    "variance-of-too-few": (lambda x: (x.var(), x[0].var(), torch.var(x, correction=3)), (torch.randn(2),)),
    "times-nan": (lambda x: (x * float("nan"), x + float("inf"), torch.where(x > 0, x, float("nan"))), (torch.randn(5),)),
    "masked-assignment": (
        lambda x: (x.index_put((x > 0,), torch.tensor(5.0)), x.masked_fill(x < 0, 1.0)),
        (torch.randn(4, 3),),
    ),
    "integers": (
        lambda x: (torch.reciprocal(x), x**2, torch.isfinite(x), torch.addbmm(x[0], x, x, beta=2, alpha=3)),
        (torch.randint(0, 5, (2, 3, 3)),),
    ),
    "distances": (lambda x, y: (torch.cdist(x, y), torch.cdist(x, y, p=1.0)), (torch.randn(4, 3), torch.randn(5, 3))),
    "embedding-bag": (
        lambda w, i: (F.embedding_bag(i, w, mode="sum"), F.embedding_bag(i, w, mode="mean", padding_idx=2)),
        (torch.randn(7, 4), torch.randint(0, 7, (3, 5))),
    ),
    "diagonal-scatter": (
        lambda x, d: (torch.diagonal_scatter(x, d), torch.diagonal_scatter(x, d[:3], -1), torch.diagonal_scatter(x, d, 1)),
        (torch.randn(4, 5), torch.randn(4)),
    ),
    "roll": (
        lambda x: (torch.roll(x, 2, 0), torch.roll(x, (1, -2), (0, 1)), torch.roll(x, 4, 0), torch.roll(x, 3)),
        (torch.randn(4, 5),),
    ),
    "nothing": (
        lambda x, y: (torch.cat([x, y]), x.sum(), x @ y.T, x.mean(), torch.addmm(y[0], x.T, x)),
        (torch.randn(0, 3), torch.randn(2, 3)),
    ),
    "scans": (
        lambda x, i: (x.cummax(-1), x.cummin(0), i.cummax(1), x.logcumsumexp(-1), x[0, 0].cummax(0)),
        (torch.tensor([[1.0, 3.0, 3.0, float("nan"), 4.0], [-1.0, -2.0, 0.5, 0.5, -7.0]]), torch.randint(0, 4, (3, 6))),
    ),
    "medians": (
        lambda x, y: (x.median(1), x.median(0, keepdim=True), x.median(), y.median(-1).values),
        (torch.randperm(20).reshape(4, 5).float(), torch.tensor([[1.0, float("nan"), 2.0], [3.0, 1.0, 2.0]])),
    ),
    "searches": (
        lambda b, x: (
            torch.searchsorted(b[0], x, right=True),
            torch.searchsorted(b, x),
            torch.searchsorted(b[0], 0.3),
            torch.bucketize(x, b[1], out_int32=True),
        ),
        (torch.randn(3, 7).sort(-1).values, torch.randn(3, 4)),
    ),
    "largest-of-bags": (
        lambda w, i, o: (F.embedding_bag(i, w, mode="max"), F.embedding_bag(i[0], w, o, mode="max", padding_idx=2)),
        (torch.randn(7, 4), torch.randint(0, 7, (3, 5)), torch.tensor([0, 2, 2])),
    ),
    "small-indices": (lambda x, i: (x[i], x[:, i], x[i, i]), (torch.randn(5, 6), torch.tensor([0, -1, 3], dtype=torch.int32))),
    "lstm": (nn.LSTM(4, 8, batch_first=True).eval(), (torch.randn(2, 3, 4),)),
    "multihead-attention": (nn.MultiheadAttention(16, 4, batch_first=True).eval(), (torch.randn(2, 5, 16),) * 3),
}


@pytest.mark.rotated(12)
@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    model, args = CASES[name]
    check(model, args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_operands_that_lie_otherwise_in_memory(dtype):
    """PyTorch makes such a result by an operator that copies into strides."""
    check(lambda x: torch.lerp(x.movedim(0, 1), x, 0.3) + 1, (torch.randn(7, 9, dtype=dtype)[:, :7],))


def test_index_lists_are_constants_not_arithmetic():
    def pairs(x):
        rows, columns = torch.tril_indices(6, 6, -1)
        return x[:, rows, columns]

    imported = check(pairs, (torch.randn(3, 6, 6),))
    assert [a.kind for a in imported.arguments] == ["constant", "constant", "input"]
    assert "math." not in text(imported)


@pytest.mark.rotated(4)
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "nothing"])
@pytest.mark.parametrize("shared_heads", [1, 2])
def test_attention(mask, shared_heads):
    torch.manual_seed(0)
    masks = {"bool": torch.rand(5, 7) > 0.5, "float": torch.randn(2, 1, 5, 7), "nothing": torch.zeros(5, 7).bool()}
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 4 // shared_heads, 7, 8)

    def attend(q, k, v, m):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=mask == "causal", enable_gqa=shared_heads > 1)

    imported = check(attend, (query, key, torch.randn(2, 4 // shared_heads, 7, 6), masks.get(mask)))
    assert text(imported).count("linalg.batch_matmul") == 2


def test_attention_keeps_narrow_operands_of_both_products():
    q = torch.randn(1, 2, 5, 8, dtype=torch.bfloat16)
    imported = check(lambda q: F.scaled_dot_product_attention(q, q, q), (q,), tolerance=2e-2)
    # the probabilities are rounded before the second product: three bf16 operands in, one rounding between
    assert text(imported).count("arith.truncf") == 2


def test_batch_norm_is_folded():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1, bias=False), nn.BatchNorm2d(2))
    for norm in (model[1], model[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 5, 5)
    model.eval()
    imported = check(model, (x,), tolerance=1e-4)
    assert [a.kind for a in imported.weights] == ["derived"] * 4 and "arith.subf" not in text(imported)
    plain = import_model(model, (x,), fold_norms=False)
    assert text(plain).count("linalg.generic") > text(imported).count("linalg.generic") and "0.weight" in [
        a.name for a in plain.weights
    ]


def test_batch_norms_of_one_size_are_folded_each_by_its_own_values():
    """What PyTorch says of one's values is taken for the next one's; not of other types, orders of memory and numbers."""
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=n != 1), nn.BatchNorm2d(4, eps=0.1 * n + 1e-3)) for n in range(4)
    ]
    layers[2].to(memory_format=torch.channels_last)
    for norm in (layer[1] for layer in layers):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        nn.init.normal_(norm.weight)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.single, self.other = nn.Sequential(*layers[:3]), layers[3].double()

        def forward(self, x, y):
            return self.single(x), self.other(y)

    x = torch.randn(2, 4, 5, 5)
    imported = check(Model().eval(), (x, x.double()), tolerance=1e-4)
    assert [a.kind for a in imported.weights] == ["derived"] * 8
