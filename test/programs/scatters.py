"""Scatters in every spelling of torch's, as functions and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["FLOATS", "forms"]

Form = tuple[Callable[..., Tensor], tuple[Tensor, ...]]
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def forms(n: int, e: int, d: int, dtype: torch.dtype) -> dict[str, Form]:
    """By name: results of n rows, e rows that are put there (assigned ones name each row once at most), d columns."""
    inputs = _Inputs(n, e, d, dtype)
    found = {**_additions(inputs), **_assignments(inputs), **_slices(inputs)}
    if dtype != torch.bool:
        found |= _accumulations(inputs)
    if dtype in FLOATS:
        found |= _messages(inputs)
    for reduce in ("sum", "mean", "amax", "amin", "prod"):
        if dtype != torch.bool or reduce != "mean":
            found |= _reductions(inputs, reduce)
    return found


class _Inputs:
    def __init__(self, n: int, e: int, d: int, dtype: torch.dtype):
        self.n, self.e, self.d, self.dtype = n, e, d, dtype
        self.rows, self.full, self.some = self.index(n, e), self.index(n, e, d), torch.randperm(n)[: max(1, n // 2)]
        self.k = len(self.some)

    def number(self, *sizes: int) -> Tensor:
        if self.dtype == torch.bool:
            return torch.rand(sizes) > 0.5
        return (8 * torch.randn(sizes)).to(self.dtype)

    def factor(self, *sizes: int) -> Tensor:
        """Numbers whose products stay numbers."""
        if self.dtype in FLOATS:
            return (1 + 0.1 * torch.randn(sizes)).to(self.dtype)
        return (torch.randint(0, 2, sizes) * 2 - 1).to(self.dtype)

    def index(self, most: int, *sizes: int) -> Tensor:
        return torch.randint(0, most, sizes)

    def signed(self, index: Tensor, size: int) -> Tensor:
        """Some of them count from the end."""
        return torch.where(torch.rand(index.shape) < 0.5, index, index - size)


def _additions(i: _Inputs) -> dict[str, Form]:
    n, e, d = i.n, i.e, i.d
    x, y = i.number(n, d), i.number(e, d)
    part = i.full[: e // 2 + 1, : max(1, d - 1)]
    return {
        "expanded": (lambda x, i, y: x.scatter_add(0, i[:, None].expand(e, d), y), (x, i.rows, y)),
        "expanded slice": (lambda x, i, y: x.scatter_add(0, i[1][:, None].expand(-1, d), y), (x, i.index(n, 2, e), y)),
        "rows by a slice": (lambda x, i, y: x.index_add(0, i[1], y), (x, i.index(n, 2, e), y)),
        "ones": (lambda x, i: x.index_add(0, i, torch.ones(e, d, dtype=x.dtype, device=x.device)), (x, i.rows)),
        "elements": (lambda x, i, y: x.scatter_add(0, i, y), (x, i.full, y)),
        "elements of a part": (lambda x, i, y: x.scatter_add(0, i, y), (x, part, y)),
        "along columns": (lambda x, i, y: x.scatter_add(1, i, y), (x, i.index(d, n, 5), i.number(n, 5))),
        "expanded columns": (lambda x, i, y: x.scatter_add(-1, i.expand(n, -1), y), (x, i.index(d, 9), i.number(n, 9))),
        "three dimensions": (
            lambda x, i, y: x.scatter_add(1, i, y),
            (i.number(3, n, d), i.index(n, 3, 4, d), i.number(3, 4, d)),
        ),
        "a row of each": (
            lambda x, i, y: x.scatter_add(1, i.expand(-1, -1, d), y),
            (i.number(3, n, d), i.index(n, 3, 4, 1), i.number(3, 4, d)),
        ),
        "vector": (lambda x, i, y: x.scatter_add(0, i, y), (i.number(n), i.rows, i.number(e))),
    }


def _messages(i: _Inputs) -> dict[str, Form]:
    """Rows of nodes, gathered by one index, changed on the way, and put where another one says."""
    n, e, d = i.n, i.e, i.d
    x, y, edges, weight = i.number(n, d), i.number(n, d), i.index(n, 2, e), i.number(e)
    put = edges[0, :, None].expand(-1, d)
    return {
        "messages": (lambda x, y, i: x.index_add(0, i[1], y[i[0]]), (x, y, edges)),
        "messages of both ends": (
            lambda x, y, i: x.index_add(0, i[1], torch.relu(y[i[0]] + x[i[1]])),
            (x, y, edges),
        ),
        "weighted messages": (
            lambda x, y, i, w: x.scatter_add(0, i[1][:, None].expand(-1, d), y[i[0]] * w[:, None]),
            (x, y, edges, weight),
        ),
        "weights": (lambda x, i, w: x[:, 0].index_add(0, i[1], torch.tanh(w)), (x, edges, weight)),
        "mean messages": (
            lambda x, y, i: x.scatter_reduce(0, i[1][:, None].expand(-1, d), y[i[0]], "mean", include_self=False),
            (x, y, edges),
        ),
        "largest messages": (
            lambda x, y, i: x.scatter_reduce(0, i[1][:, None].expand(-1, d), y[i[0]] - x[i[1]], "amax", include_self=False),
            (x, y, edges),
        ),
        "smallest messages with self": (
            lambda x, y, i, j: x.scatter_reduce(0, i, torch.sin(y)[j], "amin"),
            (x, y, put, edges[1]),
        ),
        "products of messages": (
            lambda x, y, i: x.scatter_reduce(0, i[1][:, None].expand(-1, d), 1 + 0.01 * torch.tanh(y[i[0]]), "prod"),
            (x, y, edges),
        ),
        "messages and their sums": (
            lambda x, y, i: torch.cat([x.index_add(0, i[1], m := 2 * y[i[0]]), m]),
            (x, y, edges),
        ),
    }


def _reductions(i: _Inputs, reduce: str) -> dict[str, Form]:
    n, e, d = i.n, i.e, i.d
    number = i.factor if reduce == "prod" else i.number
    found: dict[str, Form] = {}
    for own in (True, False):
        given: dict[str, Any] = {"reduce": reduce, "include_self": own}
        name = f"{reduce} {'with self' if own else 'alone'}"
        found[name] = (lambda x, i, y, g=given: x.scatter_reduce(0, i, y, **g), (number(n, d), i.full, number(e, d)))
        found[f"{name} of rows"] = (
            lambda x, i, y, g=given: x.scatter_reduce(0, i[:, None].expand(e, d), y, **g),
            (number(n, d), i.rows, number(e, d)),
        )
        if reduce != "sum" and i.dtype != torch.bool:
            found[f"{name} by index_reduce"] = (
                lambda x, i, y, own=own: x.index_reduce(0, i, y, reduce, include_self=own),
                (number(n, d), i.rows, number(e, d)),
            )
    return found


def _accumulations(i: _Inputs) -> dict[str, Form]:
    n, e, d = i.n, i.e, i.d
    x, y, three = i.number(n, d), i.number(e, d), i.number(3, n, d)

    def add(x: Tensor, index: tuple[Any, ...], y: Tensor) -> Tensor:
        return torch.ops.aten.index_put(x, [None if isinstance(one, slice) else one for one in index], y, True)

    everything = slice(None)
    return {
        "accumulate": (lambda x, i, y: x.index_put((i,), y, accumulate=True), (x, i.signed(i.rows, n), y)),
        "accumulate a number": (lambda x, i, y: x.index_put((i,), y, accumulate=True), (x, i.rows, i.number(1))),
        "accumulate elements": (lambda x, i, j, y: add(x, (i, j), y), (x, i.signed(i.rows, n), i.index(d, e), i.number(e))),
        "accumulate a grid": (
            lambda x, i, j, y: add(x, (i, j), y),
            (x, i.index(n, 5, 1), i.signed(i.index(d, 4), d), i.number(5, 4)),
        ),
        "accumulate columns": (lambda x, i, y: add(x, (everything, i), y), (three, i.rows, i.number(3, e, d))),
        "index_add of columns": (lambda x, i, y: x.index_add(1, i, y, alpha=2), (three, i.rows, i.number(3, e, d))),
        "put, accumulated": (lambda x, i, y: x.put(i, y, accumulate=True), (x, i.index(n * d, e), i.number(e))),
    }


def _assignments(i: _Inputs) -> dict[str, Form]:
    n, d, k = i.n, i.d, i.k
    x, y, three, some = i.number(n, d), i.number(k, d), i.number(3, n, d), i.some
    everything, few = slice(None), torch.randperm(4)[:3]

    def put(x: Tensor, index: tuple[Any, ...], y: Tensor) -> Tensor:
        return torch.ops.aten.index_put(x, [None if isinstance(one, slice) else one for one in index], y)

    return {
        "scatter": (lambda x, i, y: x.scatter(0, i, y), (x, some[:, None].repeat(1, d), y)),
        "scatter rows": (lambda x, i, y: x.scatter(0, i[:, None].expand(-1, d), y), (x, some, y)),
        "scatter a number": (lambda x, i: x.scatter(0, i, 1), (x, i.full)),
        "one hot": (lambda x, i: torch.zeros_like(x).scatter(-1, i, 1), (x, i.index(d, n, max(1, d // 2)))),
        "index_put": (lambda x, i, y: put(x, (i,), y), (x, i.signed(some, n), y)),
        "index_put of one row": (lambda x, i, y: put(x, (i,), y), (x, i.rows, i.number(d))),
        "index_put of a number": (lambda x, i, y: put(x, (i,), y), (x, i.signed(i.rows, n), i.number(1).reshape([]))),
        "index_put of columns": (lambda x, i, y: put(x, (everything, i), y), (three, some, i.number(3, k, d))),
        "index_put of the last": (
            lambda x, i, y: put(x, (everything, everything, i), y),
            (i.number(3, d, n), some, i.number(3, d, k)),
        ),
        "index_put apart": (
            lambda x, i, j, y: put(x, (i, everything, j), y),
            (i.number(4, 5, n), few.reshape(3, 1), some, i.number(3, k, 5)),
        ),
        "index_put in the middle": (
            lambda x, i, j, y: put(x, (everything, i, j), y),
            (i.number(5, n, 4), some[:, None], few, i.number(5, k, 3)),
        ),
        "index_copy": (lambda x, i, y: x.index_copy(0, i, y), (x, some, y)),
        "index_copy of columns": (lambda x, i, y: x.index_copy(-2, i, y), (three, some, i.number(3, k, d))),
        "index_copy of the last": (lambda x, i, y: x.index_copy(-1, i, y), (i.number(2, d, n), some, i.number(2, d, k))),
        "index_fill": (lambda x, i: x.index_fill(0, i, 1), (x, some)),
        "index_fill of columns": (lambda x, i: x.index_fill(1, i, 1), (three, i.signed(some, n))),
        "put": (lambda x, i, y: x.put(i, y), (x, torch.randperm(n * d)[:5], i.number(min(5, n * d)))),
    }


def _slices(i: _Inputs) -> dict[str, Form]:
    n, d, m = i.n, i.d, min(i.n, 200)
    x = i.number(n, d)

    def assigned(x: Tensor, y: Tensor) -> Tensor:
        x = x.clone()
        x[1:3, -1] = y
        return x

    return {
        "slice_scatter": (lambda x, y: x.slice_scatter(y, 0, 1, 1 + n), (i.number(n + 3, d), x)),
        "slice_scatter to the end": (lambda x, y: x.slice_scatter(y, 1, -1), (x, i.number(n, 1))),
        "slice_scatter with steps": (lambda x, y: x.slice_scatter(y, 0, 0, n, 2), (x, i.number((n + 1) // 2, d))),
        "a slice of a column": (assigned, (i.number(n + 3, d), i.number(2))),
        "select_scatter": (lambda x, y: x.select_scatter(y, 0, -1), (x, i.number(d))),
        "select_scatter of columns": (lambda x, y: x.select_scatter(y, 1, 0), (x, i.number(n))),
        "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y), (i.number(m, m), i.number(m))),
    }
