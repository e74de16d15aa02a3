"""Gathers and scatters: rows and elements named by indices, read or written, duplicates combined."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.breadth.operators.table import Draw, flags, layers, numbers, table
from bench.case import BenchCase

__all__ = ["indices"]

TABLE, SMALL_TABLE = (100_000, 128), (129, 27)
COUNT, FEW = 400_000, 65


def _rows_read(model, args) -> int:
    """Bytes of the first input's rows that no index names; a part of a sector costs a sector."""
    source, index = args[0], args[1]
    row = max(32, source.nbytes // len(source))
    return max(0, source.nbytes - row * index.unique().numel())


def _elements_read(model, args) -> int:
    return max(0, args[0].nbytes - 32 * args[1].numel())


def _weights_read(model, args) -> int:
    weight = model.weight
    return weight.nbytes - args[0].unique().numel() * weight.nbytes // len(weight)


def _distinct(count: int, bound: int) -> Draw:
    return lambda m: torch.randperm(bound, device=m.device)[:count] if m.values else m.below(bound, count)


def _gathers() -> list[BenchCase]:
    one = [numbers(TABLE[0], COUNT), numbers(SMALL_TABLE[0], FEW)]
    rows = {"index_select": lambda x, i: x.index_select(0, i), "index": lambda x, i: x[i], "doubled": lambda x, i: 2 * x[i]}
    wide, tall = (4096, 4096), (63, 129)
    return [
        *table("gather", rows, [TABLE, one[0]], [SMALL_TABLE, one[1]], unread=_rows_read),
        *table(
            "gather",
            {"narrow": lambda x, i: x[i]},
            [(1_000_000, 3), numbers(1_000_000, COUNT)],
            [(129, 3), one[1]],
            unread=_rows_read,
        ),
        *table("gather", {"columns": lambda x, i: x.index_select(1, i)}, [wide, numbers(4096, 1024)], [tall, numbers(129, 65)]),
        *table(
            "gather", {"last": lambda x, i: x.gather(-1, i)}, [wide, numbers(4096, 4096, 1024)], [tall, numbers(129, 63, 9)]
        ),
        *table(
            "gather", {"first": lambda x, i: x.gather(0, i)}, [wide, numbers(4096, 1024, 4096)], [tall, numbers(63, 9, 129)]
        ),
        *table(
            "gather",
            {"take": torch.take},
            [wide, numbers(1 << 24, COUNT)],
            [tall, numbers(63 * 129, 65)],
            unread=_elements_read,
        ),
        *table(
            "gather",
            {"pairs": lambda x, i, j: x[i, j]},
            [wide, *[numbers(4096, COUNT)] * 2],
            [tall, *[numbers(63, 65)] * 2],
            unread=_elements_read,
        ),
        *table(
            "gather",
            {"one_a_row": lambda x, i: x.gather(1, i[:, None])},
            [wide, numbers(4096, 4096)],
            [tall, numbers(129, 63)],
            unread=_elements_read,
        ),
        *table(
            "gather",
            {"edges": lambda x, e: x[e[0]] - x[e[1]]},
            [(20_000, 64), numbers(20_000, 2, 120_000)],
            [SMALL_TABLE, numbers(129, 2, 65)],
        ),
        *table(
            "gather",
            {"batched": lambda x, i: torch.take_along_dim(x, i.unsqueeze(-1), 1)},
            [(64, 4096, 64), numbers(4096, 64, 2048)],
            [(3, 17, 9), numbers(17, 3, 5)],
        ),
        *layers(
            "gather",
            {"embedding": lambda: torch.nn.Embedding(*TABLE)},
            [numbers(TABLE[0], 512, 512)],
            [numbers(TABLE[0], 5, 13)],
            unread=_weights_read,
        ),
        *layers(
            "gather",
            {f"bag_{m}": lambda m=m: torch.nn.EmbeddingBag(*TABLE, mode=m) for m in ("sum", "mean", "max")},
            [numbers(TABLE[0], 16384, 16)],
            [numbers(TABLE[0], 9, 5)],
            unread=_weights_read,
        ),
    ]


def _scatters() -> list[BenchCase]:
    nodes, edges, width = 20_000, 120_000, 64

    def over(dim_rows: int, count: int, columns: int) -> list[object]:
        return [(dim_rows, columns), numbers(dim_rows, count), (count, columns)]

    rows = {
        "index_add": lambda x, i, y: x.index_add(0, i, y),
        "put_accumulate": lambda x, i, y: x.index_put((i,), y, accumulate=True),
        "scatter_add": lambda x, i, y: x.scatter_add(0, i[:, None].expand_as(y), y),
        "amax": lambda x, i, y: x.scatter_reduce(0, i[:, None].expand_as(y), y, "amax"),
        "mean": lambda x, i, y: x.scatter_reduce(0, i[:, None].expand_as(y), y, "mean", include_self=False),
    }
    once = {"index_copy": lambda x, i, y: x.index_copy(0, i, y), "index_put": lambda x, i, y: x.index_put((i,), y)}
    large, small = over(nodes, edges, width), over(129, 65, 27)
    wide, tall = (4096, 4096), (63, 129)
    distinct = [[TABLE, _distinct(50_000, TABLE[0]), (50_000, 128)], [SMALL_TABLE, _distinct(65, 129), (65, 27)]]
    return [
        *table("scatter", rows, large, small),  # type: ignore[arg-type]
        *table("scatter", {"index_add_one": rows["index_add"]}, over(nodes, 1_000_000, 1), over(129, 65, 1)),  # type: ignore[arg-type]
        *table(
            "scatter",
            {"vector_add": lambda x, i, y: x.scatter_add(0, i, y)},
            [(nodes,), numbers(nodes, 1 << 20), (1 << 20,)],
            [(129,), numbers(129, 65), (65,)],
        ),
        *table("scatter", once, *distinct),
        *table(
            "scatter",
            {"elements": lambda x, i, y: x.scatter_add(1, i, y)},
            [wide, numbers(4096, 4096, 1024), (4096, 1024)],
            [tall, numbers(129, 63, 9), (63, 9)],
        ),
        *table(
            "scatter", {"value": lambda x, i: x.scatter(1, i, 1.0)}, [wide, numbers(4096, 4096, 8)], [tall, numbers(129, 63, 3)]
        ),
        *table(
            "scatter",
            {"columns": lambda x, i, y: x.index_add(1, i, y)},
            [wide, numbers(4096, 512), (4096, 512)],
            [tall, numbers(129, 9), (63, 9)],
        ),
        *table(
            "scatter",
            {"index_fill": lambda x, i: x.index_fill(0, i, 2.0)},
            [TABLE, numbers(TABLE[0], 1000)],
            [SMALL_TABLE, numbers(129, 9)],
        ),
        *table(
            "scatter_i64",
            {"add": lambda x, i, y: x.scatter_add(0, i, y)},
            [numbers(9, nodes), numbers(nodes, 1 << 20), numbers(9, 1 << 20)],
            [numbers(9, 129), numbers(129, 65), numbers(9, 65)],
            ["f32"],
        ),
        *table(
            "scatter",
            {"masked": lambda x, m, y: x.masked_scatter(m, y)},
            [(1 << 20,), flags(1 << 20), (1 << 20,)],
            [(129,), flags(129), (129,)],
        ),
        *table("scatter", {"softmax": _segment_softmax}, [(edges, 8), numbers(nodes, edges)], [(65, 3), numbers(20_000, 65)]),
    ]


def _segment_softmax(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Softmax over the rows that share an index, as graph attention has it."""
    at = index[:, None].expand_as(x)
    most = x.new_full((20_000, x.shape[1]), float("-inf")).scatter_reduce(0, at, x, "amax")
    e = (x - most[index]).exp()
    return e / x.new_zeros(20_000, x.shape[1]).scatter_add(0, at, e)[index]


def _one_hot_products() -> list[BenchCase]:
    run = {"one_hot_product": lambda i, w: F.one_hot(i, 64).to(w.dtype) @ w}
    return table("gather", run, [numbers(64, 1 << 17), (64, 64)], [numbers(64, 65), (64, 9)])


def indices() -> list[BenchCase]:
    """All of them."""
    return [*_gathers(), *_scatters(), *_one_hot_products()]
