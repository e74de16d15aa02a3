"""Random choices by numbers: mixtures of experts in each form, codebooks, largest of a row, one-hot, sorted rows."""

from __future__ import annotations

import random

import torch

from test.numerics.random_pieces import F, act, decided, linear, mlp, norm, sizes_of
from test.numerics.recorded import Recorder, Value


def routing(r: random.Random, m: Recorder, dtype: torch.dtype) -> list[Value]:
    """Rows [tokens, width], each treated as numbers of it say."""
    sizes = sizes_of(m)
    x = m.input(r.choice(sizes.rows[:-2]), r.choice(sizes.widths), dtype=dtype)
    y = norm(r, m, x) if r.random() < 0.3 else x
    step = r.choice((_experts, _experts, _experts, _dispatched, _sorted_tokens, _codebook, _filtered, _ranked, _classes))
    found = step(r, m, y)
    y = found[0]
    if y.shape == x.shape and r.random() < 0.6:
        y = m("torch.add", x, y)
    if y.sample.is_floating_point() and y.sample.ndim == 2 and r.random() < 0.5:
        y = mlp(r, m, y, r.choice(sizes.widths))
    return [y, *found[1:]]


def _logits(r: random.Random, m: Recorder, x: Value, count: int) -> Value:
    """Numbers [tokens, count] in f32 whose order rounding does not decide."""
    if x.exact:
        wide = m("torch.Tensor.to", x, torch.float32)
        found = m(F + "linear", wide, m.weight(count, x.shape[1]))
        if decided(m, found):
            return found
    return m.input(x.shape[0], count)


def _largest(r: random.Random, m: Recorder, x: Value, count: int) -> tuple[Value, Value, Value]:
    """Weights and numbers [tokens, chosen] of the experts, and all logits."""
    logits, chosen = _logits(r, m, x, count), r.randint(1, min(count, 3))
    first = r.random() < 0.5
    scores = m("torch.softmax", logits, -1) if first else logits
    values, index = m.parts("torch.topk", scores, chosen, -1)
    if not first:
        weights = m("torch.softmax", values, -1)
    else:
        weights = m("torch.div", values, m("torch.sum", values, -1, keepdim=True)) if r.random() < 0.5 else values
    return m("torch.Tensor.type_as", weights, x), index, logits


def _experts(r: random.Random, m: Recorder, x: Value) -> list[Value]:
    """Every expert sees all rows, and a gate weighs them; or each row's expert is gathered."""
    count, width = r.choice((2, 3, 4, 8)), x.shape[1]
    out = width if r.random() < 0.5 else r.choice(sizes_of(m).widths)
    weights, index, logits = _largest(r, m, x, count)
    form = r.choice("onehot scatter where gathered stacked".split())
    if form == "gathered" and width * out > 4096:
        form = "stacked"
    if form == "gathered":
        table = m.weight(count, out, width, dtype=x.dtype, fan=width)
        y = m("torch.einsum", "noi,ni->no", m("operator.getitem", table, m("torch.select", index, 1, 0)), x)
        return [m("torch.mul", y, m("operator.getitem", weights, (slice(None), slice(0, 1)))), logits]
    if form == "onehot":
        hot = m("torch.Tensor.type_as", m(F + "one_hot", index, count), weights)
        gates = m("torch.sum", m("torch.mul", hot, m("torch.unsqueeze", weights, -1)), 1)
    elif form == "where":
        at = m("torch.arange", count, x)
        same = m("torch.eq", m("torch.unsqueeze", index, -1), at)
        zero = m("torch.zeros_like", m("torch.unsqueeze", weights, -1))
        gates = m("torch.sum", m("torch.where", same, m("torch.unsqueeze", weights, -1), zero), 1)
    else:
        gates = m("torch.scatter", m("torch.Tensor.new_zeros", x, (x.shape[0], count)), 1, index, weights)
    if form == "stacked":
        inner = r.choice((8, 33, 64))
        up, down = (
            m.weight(count, width, inner, dtype=x.dtype, fan=width),
            m.weight(count, inner, out, dtype=x.dtype, fan=inner),
        )
        hidden = act(r, m, m("torch.einsum", "nd,edh->neh", x, up))
        return [m("torch.einsum", "neh,eho,ne->no", hidden, down, gates)]
    total: Value | None = None
    for expert in range(count):
        y = mlp(r, m, x, r.choice((8, 33, 64)), out)
        y = m("torch.mul", y, m("operator.getitem", gates, (slice(None), slice(expert, expert + 1))))
        total = y if total is None else m("torch.add", total, y)
    assert total is not None
    return [total, index] if r.random() < 0.3 else [total]


def _dispatched(r: random.Random, m: Recorder, x: Value) -> list[Value]:
    """Each expert has places for some of the rows (GShard, arXiv 2006.16668); later ones are dropped."""
    count, tokens = r.choice((2, 4)), x.shape[0]
    room = max(1, tokens // count) if tokens <= 512 else 128
    weights, index, _ = _largest(r, m, x, count)
    hot = m(F + "one_hot", m("torch.select", index, 1, 0), count)
    place = m("torch.sub", m("torch.cumsum", hot, 0), 1)
    kept = m("torch.mul", hot, m("torch.lt", place, room))
    where = m(F + "one_hot", m("torch.clamp", place, 0, room - 1), room)  # [tokens, experts, places]
    sent = m("torch.Tensor.type_as", m("torch.mul", where, m("torch.unsqueeze", kept, -1)), x)
    given = m("torch.einsum", "nec,nd->ecd", sent, x)
    table = m.weight(count, x.shape[1], x.shape[1], dtype=x.dtype, fan=x.shape[1])
    done = act(r, m, m("torch.bmm", given, table))
    y = m("torch.einsum", "nec,ecd->nd", sent, done)
    return [m("torch.mul", y, m("operator.getitem", weights, (slice(None), slice(0, 1))))]


def _sorted_tokens(r: random.Random, m: Recorder, x: Value) -> list[Value]:
    """Rows in the order of their experts, something in that order, and back."""
    index = m("torch.argmax", _logits(r, m, x, r.choice((2, 5))), -1)
    order = m("torch.argsort", index, stable=True)
    sorted_ = m("operator.getitem", x, order)
    y = mlp(r, m, sorted_, r.choice(sizes_of(m).widths))
    if r.random() < 0.5:
        back = m("torch.argsort", order)
        return [m("operator.getitem", y, back)]
    return [m("torch.index_copy", m("torch.zeros_like", y), 0, order, y), order]


def _codebook(r: random.Random, m: Recorder, x: Value) -> list[Value]:
    """The nearest row of a codebook (arXiv 1711.00937)."""
    codes = m.weight(r.choice((2, 16, 65)), x.shape[1], fan=1)
    wide = m("torch.Tensor.to", x, torch.float32)
    if r.random() < 0.5:
        far = m("torch.cdist", wide, codes)
    else:
        far = m(
            "torch.sub",
            m("torch.sum", m("torch.pow", codes, 2), -1),
            m("torch.mul", m("torch.matmul", wide, m("torch.t", codes)), 2),
        )
    if not (x.exact and decided(m, far)):
        return [far]
    index = m("torch.argmin", far, -1)
    found = m("torch.Tensor.type_as", m(F + "embedding", index, codes), x)
    return [found, index] if r.random() < 0.6 else [m("torch.add", x, m("torch.sub", found, x)), index]


def _filtered(r: random.Random, m: Recorder, x: Value) -> list[Value]:
    """Only the largest numbers of a row stay, as when tokens are sampled."""
    chosen = r.randint(1, min(x.shape[1], 9))
    logits = _logits(r, m, x, x.shape[1])
    least = m("operator.getitem", m.parts("torch.topk", logits, chosen, -1)[0], (slice(None), slice(-1, None)))
    kept = m("torch.masked_fill", logits, m("torch.lt", logits, least), float("-inf"))
    return [m("torch.softmax", kept, -1)]


def _ranked(r: random.Random, m: Recorder, x: Value) -> list[Value]:
    """A row's numbers in order, then a layer; or rows in the order of one of their numbers."""
    if not x.exact:
        return [linear(r, m, x, 8)]
    if r.random() < 0.5:
        values = m.parts("torch.sort", x, -1, descending=r.random() < 0.5)[0]
        return [mlp(r, m, values, 16)]
    score = _logits(r, m, x, 1)
    if not decided(m, score, 0):
        score = m.input(x.shape[0], 1)
    chosen = m.parts("torch.topk", m("torch.squeeze", score, -1), r.randint(1, x.shape[0]), 0)[1]
    rows = m("operator.getitem", x, chosen, exact=True)
    return [mlp(r, m, rows, 16), chosen]


def _classes(r: random.Random, m: Recorder, x: Value) -> list[Value]:
    """Numbers of labels: one-hot, losses, counts."""
    count = r.choice((2, 7, 10))
    labels, logits = m.index(x.shape[0], limit=count), mlp(r, m, x, 16, count)
    kind = r.choice("loss nll smooth picked counts".split())
    if kind == "loss":
        return [m(F + "cross_entropy", logits, labels, reduction=r.choice(("mean", "none")))]
    if kind == "nll":
        return [m(F + "nll_loss", m("torch.log_softmax", logits, -1), labels)]
    if kind == "smooth":
        hot = m("torch.Tensor.type_as", m(F + "one_hot", labels, count), logits)
        return [m("torch.neg", m("torch.sum", m("torch.mul", hot, m("torch.log_softmax", logits, -1)), -1))]
    if kind == "picked":
        return [m("torch.gather", logits, 1, m("torch.unsqueeze", labels, -1, exact=True))]
    hot = m(F + "one_hot", labels, count, exact=True)
    return [logits, m("torch.sum", hot, 0, exact=True)]
