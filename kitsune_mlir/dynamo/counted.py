"""A graph run at larger sizes than it has valid rows for: what needs the number of rows is told it, as a tensor.

Whatever a node gives, its valid elements are what they would be without the others. So sums leave the others out, an index that
counts from the end counts from the end of the valid rows, and what is put behind rows comes behind the last valid one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.behind_rows import BehindRows
from kitsune_mlir.dynamo.counted_numbers import filler, number_of
from kitsune_mlir.dynamo.partition import is_view
from kitsune_mlir.frontend.dtypes import CASTS, NARROW, widened
from kitsune_mlir.frontend.rows import Axis, Rows
from kitsune_mlir.frontend.rows.axes import expression, size_at, sizes_of
from kitsune_mlir.frontend.rows.rules import REDUCTIONS
from kitsune_mlir.frontend.scatter_rows import Counted, counted
from kitsune_mlir.frontend.zeroed_rows import zeroed_rows

__all__ = ["CountedRun"]

aten = torch.ops.aten


class CountedRun(fx.Interpreter):
    """Runs a graph.

    Args:
        gm: with symbolic sizes.
        rows: what is known of it.
        sizes: the values that symbols have in this run.
        counts: of those that have fewer valid rows, how many: integers without dimensions.
    """

    def __init__(self, gm: fx.GraphModule, rows: Rows, sizes: Mapping[str, int], counts: Mapping[str, Tensor]):
        super().__init__(gm)
        self.rows, self.sizes, self.counts = rows, sizes, counts
        self._told = {c.node for c in rows.crossings if c.kind == "counts" and c.symbol in counts}
        self._valid: dict[Axis, Tensor] = {}
        self.behind = BehindRows(self.axes, self.size)
        self._node: fx.Node = next(iter(gm.graph.nodes))

    def run_node(self, n: fx.Node) -> Any:
        """A node's value."""
        self._node = n
        found = super().run_node(n)
        self.behind.follow(n)
        return found

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives."""
        if target in _PRODUCTS:
            args = tuple(self._zeroed(value, self.axes(given)) for value, given in zip(args, self._node.args, strict=True))
        told = self._node.name in self._told
        how = _HOW.get(target, _with_numbers) if told else _INDEXED.get(target)
        return super().call_function(target, args, kwargs) if how is None else how(self, self._node, args, kwargs)

    def padded(self, axes: Sequence[Axis] | Axis) -> bool:
        """Whether dimensions have elements that are not valid."""
        return any(axis.symbols & self.counts.keys() for axis in ([axes] if isinstance(axes, Axis) else axes))

    def axes(self, value: Any) -> tuple[Axis, ...]:
        """The dimensions of a node's value."""
        return self.rows.axes.get(value.name, ()) if isinstance(value, fx.Node) else ()

    def size(self, size: Any) -> int:
        """A size as it is in this run."""
        return size_at(size, self.sizes)

    def number(self, value: Any) -> Any:
        """An expression's own value: a number where it is known, else a tensor without dimensions."""
        return number_of(expression(value), self.sizes, self.counts)

    def valid(self, axis: Axis, device: torch.device) -> Tensor:
        """Which elements of a dimension are valid."""
        if axis not in self._valid:
            found = torch.ones([], dtype=torch.bool, device=device)
            for factor in axis.factors:
                one = torch.arange(self.size(factor), device=device)
                found = found.unsqueeze(-1) & (one < self.number(factor))
            self._valid[axis] = found.reshape(-1)
        return self._valid[axis]

    def masked(self, value: Tensor, axes: Sequence[Axis], dims: Sequence[int], fill: Any) -> Tensor:
        """A tensor with another value in elements that are not valid along these dimensions."""
        for dim in dims:
            if self.padded(axes[dim]):
                shape = [-1] + [1] * (value.ndim - 1 - dim % value.ndim)
                value = torch.where(self.valid(axes[dim], value.device).view(shape), value, filler(value, fill))
        return value

    def _zeroed(self, value: Any, axes: Sequence[Axis]) -> Any:
        """A factor as PyTorch's kernels may have it: some read the next row with those of an odd number of 16-bit elements."""
        if not isinstance(value, Tensor) or value.dtype not in NARROW or value.device.type != "cpu":
            return value
        valid = None
        for dim, axis in enumerate(axes):
            if self.padded(axis):
                one = self.valid(axis, value.device).view([-1] + [1] * (value.ndim - 1 - dim))
                valid = one if valid is None else valid & one
        return value if valid is None else zeroed_rows(value, valid)

    def last_again(self, value: Tensor, dim: int, axis: Axis) -> Tensor:
        """A tensor whose last valid rows stand where others are not valid."""
        if not self.padded(axis) or value.shape[dim] == 1:
            return value
        place = torch.zeros([], dtype=torch.int64, device=value.device)
        for factor in axis.factors:
            size = self.size(factor)
            place = place.unsqueeze(-1) * size + torch.arange(size, device=value.device).clamp(max=self.number(factor) - 1)
        return value.index_select(dim, place.reshape(-1))

    def inside(self, index: Tensor, axis: Axis, from_end: bool = False) -> Tensor:
        """An index whose elements lie inside a dimension, also those that are not valid; valid ones may count from its end."""
        size = self.size(axis.size)
        if self.padded(axis):
            index = torch.where(index < 0, index + self.number(axis.size), index) if from_end else index
            return index.clamp(0, size - 1)
        return index.clamp(-size if from_end else 0, size - 1)


def _with_numbers(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    """An elementwise operator, or one that fills a tensor, with numbers that depend on how many rows there are."""
    if any("SymInt[]" in str(a.type) for a in n.target._schema.arguments) and "fill_value" not in n.target._schema.__str__():  # type: ignore[union-attr]
        raise NotImplementedError(f"{n.target} with the number of rows")
    value = n.meta["val"]

    def own(arg: Any, given: Any) -> Any:
        if isinstance(arg, fx.Node) and isinstance(arg.meta.get("val"), torch.SymInt | torch.SymFloat):
            found = run.number(arg.meta["val"])
            return torch.as_tensor(found, device=value.device)
        return widened(given) if isinstance(given, Tensor) and given.dtype in NARROW else given

    if "fill_value" in n.target._schema.__str__():  # type: ignore[union-attr]
        fill = next(run.number(a.meta["val"]) for a in (*n.args[1:], *n.kwargs.values()) if isinstance(a, fx.Node))
        sizes = [run.size(size) for size in sizes_of(value)]
        return torch.as_tensor(fill, device=value.device).to(value.dtype).expand(sizes).clone()
    changed = [own(a, g) for a, g in zip(n.args, args, strict=True)]
    named = {name: own(n.kwargs[name], given) for name, given in kwargs.items()}
    return n.target.overloadpacket(*changed, **named).to(value.dtype)  # type: ignore[union-attr]


def _reduce(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    x, axes = args[0], run.axes(n.args[0])
    dims = _dims(n, len(axes))
    fill = REDUCTIONS[n.target]  # type: ignore[index]
    if n.target not in (aten.mean.default, aten.mean.dim):
        x = run.masked(x, axes, [dim for dim in dims if run.behind.of(n.args[0], dim) != fill], fill)
        if n.target is aten.amax.default and x.is_floating_point():
            _mask_softmax(run, n.args[0], x, [dim for dim in dims if run.padded(axes[dim])])  # type: ignore[arg-type]
        return n.target(x, *args[1:], **kwargs)  # type: ignore[operator]
    count = 1
    for dim in dims:
        count = run.number(axes[dim].size) * count
    keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
    total = run.masked(widened(x), axes, dims, fill).sum(dims, keepdim=keep)
    return (total / count).to(n.meta["val"].dtype)


def _mask_softmax(run: CountedRun, node: fx.Node, masked: Tensor, dims: Sequence[int]) -> None:
    """What a softmax is computed of is minus infinity where it is not valid, so that sums need no mask."""
    if any(user.target is aten.sub.Tensor and user.args[0] is node for user in node.users):
        run.env[node] = masked
        for dim in dims:
            run.behind.note(node, dim, float("-inf"))


def _dims(n: fx.Node, rank: int) -> list[int]:
    names = [argument.name for argument in n.target._schema.arguments]  # type: ignore[union-attr]
    given = None
    if "dim" in names:
        at = names.index("dim")
        given = n.args[at] if at < len(n.args) else n.kwargs.get("dim")
    if given is None or given == []:
        return list(range(rank))
    return [int(dim) % max(rank, 1) for dim in (given if isinstance(given, list | tuple) else [given])]  # type: ignore[call-overload]


def _multiply(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    given, both = list(args), ((-2, -1), (-1, -2))
    if n.target is aten.convolution.default:
        both = ((0, 1), (1, 0 if n.args[6] else 1))
    for at, dim in both:
        axes = run.axes(n.args[at])
        dim = max(dim + len(axes) * (dim < 0), 0)  # of a vector the only one
        if run.behind.of(n.args[at], dim) != 0 and run.padded(axes[dim]):
            narrow = _widened_from(n.args[at])  # masked as it lies, so that it is still a widened factor
            given[at] = run.masked(given[at].to(narrow), axes, [dim], 0).to(given[at].dtype)
    return n.target(*given, **kwargs)  # type: ignore[operator]


def _widened_from(node: Any) -> torch.dtype:
    """The type that a factor was widened from; its own where it was not."""
    own = node.meta["val"].dtype
    while is_view(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    before = node.args[0].meta["val"].dtype if node.target in CASTS else own
    return before if before in NARROW else own


def _select(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    x, dim = args[0], args[1] % args[0].ndim
    wanted, axis = n.args[2], run.axes(n.args[0])[dim]
    index = _from_front(run.number(wanted.meta["val"] if isinstance(wanted, fx.Node) else wanted), run, axis)
    place = run.inside(torch.as_tensor(index, device=x.device).reshape(1), axis)
    return x.index_select(dim, place).squeeze(dim)


def _from_front(index: Any, run: CountedRun, axis: Axis) -> Any:
    """A place that may count from the end, as one that counts from the first row."""
    if isinstance(index, Tensor):
        return torch.where(index < 0, index + run.number(axis.size), index)
    return index if index >= 0 else run.number(axis.size) + index


def _select_scatter(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    x, dim = args[0], args[2] % args[0].ndim
    index = run.number(n.args[3].meta["val"])  # type: ignore[union-attr]
    rows = torch.arange(x.shape[dim], device=x.device).view(-1, *[1] * (x.ndim - 1 - dim))
    return torch.where((rows == index) | (rows == index + x.shape[dim]), args[1].unsqueeze(dim), x)


def _slice(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    x, dim = args[0], (args[1] if len(args) > 1 else 0) % args[0].ndim
    wanted: Any = next(iter(n.args[2:3]), 0) or 0
    axis = run.axes(n.args[0])[dim]
    start = _from_front(run.number(wanted.meta["val"] if isinstance(wanted, fx.Node) else wanted), run, axis)
    start = start.clamp(min=0) if isinstance(start, Tensor) else max(start, 0)
    step = args[4] if len(args) > 4 else 1
    rows = torch.arange(run.size(sizes_of(n.meta["val"])[dim]), device=x.device) * step + start
    return x.index_select(dim, rows.clamp(0, run.size(axis.size) - 1))


def _cat(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    dim = int(args[1] if len(args) > 1 else kwargs.get("dim", 0)) % n.meta["val"].ndim
    parts = [(x, run.axes(node)[dim]) for x, node in zip(args[0], n.args[0], strict=True) if x.ndim == n.meta["val"].ndim]  # type: ignore[arg-type]
    parts = [(x, axis) for x, axis in parts if x.shape[dim]]
    rows = torch.arange(run.size(sizes_of(n.meta["val"])[dim]), device=args[0][0].device)
    found, begins = None, 0  # a part begins here
    for x, axis in parts:
        number = run.number(axis.size)
        place = rows if isinstance(begins, int) and begins == 0 else rows - begins
        part = x if x.shape[dim] == 1 else x.index_select(dim, place.clamp(0, x.shape[dim] - 1))
        valid = rows < number + begins if found is None else (rows >= begins) & (rows < number + begins)
        valid, begins = valid.view([-1] + [1] * (part.ndim - 1 - dim)), number + begins
        found = torch.where(valid, part, filler(part, 0) if found is None else found)
    run.behind.note(n, dim, 0)
    return found


def _count_up(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    given = [a.meta["val"] if isinstance(a, fx.Node) else a for a in n.args]
    start, step = run.number(given[0]), run.number(given[2]) if len(given) > 2 else 1
    value = n.meta["val"]
    rows = torch.arange(run.size(sizes_of(value)[0]), device=value.device)
    return (rows * step + start).to(value.dtype)


def _is_given(node: Any) -> bool:
    """Whether an index is an input, or a view of one: what stands behind its valid elements is zero, or was valid once."""
    while isinstance(node, fx.Node) and is_view(node):
        node = node.args[0]
    return isinstance(node, fx.Node) and node.op == "placeholder"


def _inside(run: CountedRun, node: Any, index: Tensor, axis: Axis, from_end: bool = False) -> Tensor:
    if not run.padded(axis) and (_is_given(node) or not run.padded(run.axes(node))):
        return index
    return run.inside(index, axis, from_end)


def _index(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    return n.target(args[0], _all_inside(run, n, args[1]), *args[2:], **kwargs)  # type: ignore[operator]


def _all_inside(run: CountedRun, n: fx.Node, indices: Sequence[Any]) -> list[Any]:
    axes, nodes = run.axes(n.args[0]), n.args[1]
    each = zip(nodes, indices, axes, strict=False)  # type: ignore[arg-type]
    return [None if index is None else _inside(run, node, index, axis, True) for node, index, axis in each]


def _take(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    """Operators of a tensor, a dimension or none, and an index."""
    at = 1 if n.target is aten.embedding.default else 2
    dim = 0 if at == 1 else args[1]
    axes = run.axes(n.args[0])
    given = list(args)
    given[at] = _inside(run, n.args[at], args[at], axes[dim] if axes else Axis())
    return n.target(*given, **kwargs)  # type: ignore[operator]


def _bags(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    return n.target(args[0], _inside(run, n.args[1], args[1], run.axes(n.args[0])[0]), *args[2:], **kwargs)  # type: ignore[operator]


def _put_rows(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    """What is put where an index says: what is not valid counts for nothing, or is the last valid one again."""
    own = n.target is torch.ops.kitsune.scatter_rows.default
    at, dim = (1, 0) if own else (2, args[1] % max(args[0].ndim, 1))
    index, source, axes = args[at], args[at + 1], run.axes(n.args[at])
    along = 0 if own or n.target in (aten.index_add.default, aten.index_copy.default) else dim
    axis = axes[along] if axes else Axis()
    kind = str(args[3]) if own else _KINDS.get(n.target) or str(args[4])  # type: ignore[arg-type]
    into = run.axes(n.args[0])
    there = _inside(run, n.args[at], index, into[dim] if into else Axis())
    until = _counted_rows(run, axis if dim == 0 else Axis())
    if until is not None:
        with until as rows:
            result = n.target(*args[:at], there, source, *args[at + 2 :], **kwargs)  # type: ignore[operator]
        if rows.used and all(rows.used):
            return result
    if kind in ("sum", "prod"):
        shape = [-1 if n == dim else 1 for n in range(source.ndim)]
        if run.padded(axis):
            source = torch.where(run.valid(axis, source.device).view(shape), source, filler(source, int(kind == "prod")))
    else:
        source = run.last_again(source, dim, axis) if isinstance(source, Tensor) else source
        there = _inside(run, n.args[at], run.last_again(index, along, axis), into[dim] if into else Axis())
    if kind in ("sum", "prod") and run.padded(axis):
        there = _spread(there, along, run.valid(axis, index.device), args[0].shape[dim])
    return n.target(*args[:at], there, source, *args[at + 2 :], **kwargs)  # type: ignore[operator]


def _spread(index: Tensor, dim: int, valid: Tensor, size: int) -> Tensor:
    """An index into a dimension of a size, whose elements that are not valid along `dim` name one row after the other: what is
    put there changes nothing, but atomics on one row would wait for each other."""
    shape = [-1 if n == dim else 1 for n in range(index.ndim)]
    places = torch.arange(index.shape[dim], dtype=index.dtype, device=index.device) % max(size, 1)
    return torch.where(valid.view(shape), index, places.view(shape))


def _counted_rows(run: CountedRun, axis: Axis) -> contextlib.AbstractContextManager[Counted] | None:
    """Tells scatters of rows along a dimension how many are valid; None where no input is that number."""
    if len(axis.factors) != 1 or not axis.factors[0].is_Symbol or not run.padded(axis):
        return None
    return counted(run.counts[str(axis.factors[0])], run.size(axis.size))


def _put(run: CountedRun, n: fx.Node, args: Any, kwargs: Any) -> Any:
    indices, values = _all_inside(run, n, args[1]), args[2]
    nodes = [node for node in n.args[1] if node is not None]  # type: ignore[union-attr]
    places = [at for at, index in enumerate(indices) if index is not None]
    rank = max(indices[at].ndim for at in places)
    front = places != list(range(places[0], places[-1] + 1))
    behind = args[0].ndim - len(places) - (0 if front else places[0])
    if args[3] if len(args) > 3 else kwargs.get("accumulate", False):
        for node in nodes:
            axes = run.axes(node)
            for dim, axis in enumerate(axes):
                if run.padded(axis):
                    shape = [-1] + [1] * (behind + len(axes) - 1 - dim)
                    valid = run.valid(axis, values.device).view(shape)
                    values = torch.where(valid, values, filler(values, 0))
    else:
        (axis,) = {axis for node in nodes for axis in run.axes(node) if run.padded(axis)} or {Axis()}
        indices = [index if index is None else run.last_again(index, 0, axis) for index in indices]
        if (dim := values.ndim - behind - rank) >= 0:
            values = run.last_again(values, dim, axis)
    return n.target(args[0], indices, values, *args[3:], **kwargs)  # type: ignore[operator]


_KINDS = {
    aten.index_add.default: "sum", aten.scatter_add.default: "sum", aten.index_copy.default: "set", aten.scatter.src: "set",
    aten.scatter.value: "set",
}  # fmt: skip

_INDEXED: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: _index, aten.index_select.default: _take, aten.embedding.default: _take, aten.gather.default: _take,
    aten._embedding_bag.default: _bags, aten._embedding_bag_forward_only.default: _bags,
    torch.ops.kitsune.scatter_rows.default: _put_rows, aten.index_add.default: _put_rows, aten.index_copy.default: _put_rows,
    aten.index_put.default: _put, aten.scatter.src: _put_rows, aten.scatter.value: _put_rows,
    aten.scatter_add.default: _put_rows, aten.scatter_reduce.two: _put_rows,
}  # fmt: skip
"""Also where rows are independent, indices that are not valid must not lie outside of what they are into."""

_PRODUCTS = (
    aten.mm.default, aten.bmm.default, aten.mv.default, aten.addmm.default, aten.baddbmm.default, aten.convolution.default,
)  # fmt: skip
"""What PyTorch calls kernels of libraries for."""

_HOW: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(REDUCTIONS, _reduce), **_INDEXED,
    aten.select.int: _select, aten.select_scatter.default: _select_scatter, aten.slice.Tensor: _slice, aten.cat.default: _cat,
    aten.arange.start_step: _count_up, aten.mm.default: _multiply, aten.bmm.default: _multiply, aten.mv.default: _multiply,
    aten.dot.default: _multiply, aten.addmm.default: _multiply, aten.baddbmm.default: _multiply,
    aten.convolution.default: _multiply,
}  # fmt: skip
