"""A graph with symbolic sizes as one program for many of them: inputs are padded, results are cut."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.counted import CountedRun
from kitsune_mlir.dynamo.partition import is_view
from kitsune_mlir.dynamo.torch_api import is_nested_size, traced
from kitsune_mlir.frontend.aten import sized_table
from kitsune_mlir.frontend.rows import Axis, Rows
from kitsune_mlir.frontend.rows.axes import expression, names_in, plain, size_at, sizes_of
from kitsune_mlir.frontend.valid_rows import valid_rows
from kitsune_mlir.sized.padded import PaddedCall, PaddedResult, Place
from kitsune_mlir.sized.padded_input import PaddedInput

__all__ = ["Padded", "Split", "input_sizes", "split"]

aten = torch.ops.aten
MOST_MOVED = 16
"""Operators that make places of rows, up to which they are moved in front of others."""


@dataclasses.dataclass(frozen=True)
class Split:
    """A graph in two.

    Attributes:
        core: computes, and gives new tensors only.
        given: nodes of the graph that the core gives.
        numbers: nodes of the graph that are numbers, which `rest` takes.
        rest: of the graph's inputs, those numbers and what the core gives, gives the graph's outputs: as they are, as views of
            them or of inputs, as numbers. Writes to inputs with symbolic sizes. None where it has nothing to do.
    """

    core: fx.GraphModule
    given: tuple[fx.Node, ...]
    numbers: tuple[fx.Node, ...]
    rest: Callable[..., Any] | None


def split(gm: fx.GraphModule) -> Split:
    """Cut off what PyTorch does with true sizes."""
    graph = gm.graph
    output = next(iter(graph.find_nodes(op="output")))
    writes = [
        node
        for node in graph.find_nodes(op="call_function", target=aten.copy_.default)
        if _has_symbols(node.args[0].meta["val"])  # type: ignore[union-attr]
    ]
    rest, place = fx.Graph(), dict[fx.Node, fx.Node]()
    inputs = list(graph.find_nodes(op="placeholder"))
    for node in inputs:
        place[node] = rest.placeholder(node.name)
    numbers, given = dict[fx.Node, None](), dict[fx.Node, None]()
    ends = [n for n in output.args[0] if isinstance(n, fx.Node)] + [w.args[1] for w in writes]  # type: ignore[union-attr]
    views: dict[fx.Node, None] = {}
    waiting: list[Any] = list(ends)
    while waiting:
        node = waiting.pop()
        if not isinstance(node.meta.get("val"), Tensor | tuple | list):
            numbers[node] = None
        elif is_view(node) and node.op == "call_function":
            views[node] = None
            waiting += node.all_input_nodes
        elif node.op != "placeholder":
            given[node] = None
    order = {node: n for n, node in enumerate(graph.nodes)}
    kept, made = sorted(numbers, key=order.__getitem__), sorted(given, key=order.__getitem__)
    for node in (*kept, *made):
        place[node] = rest.placeholder(f"{node.name}_given" if node in place else node.name)
    for node in sorted((*views, *writes), key=order.__getitem__):
        place[node] = rest.node_copy(node, place.__getitem__)
    rest.output(fx.map_arg(tuple(output.args[0]), place.__getitem__))  # type: ignore[arg-type]
    kernel, copied = fx.Graph(), dict[fx.Node, fx.Node]()
    kernel.graph_copy(graph, copied)
    for write in reversed(writes):
        kernel.erase_node(copied[write])
    kernel.output(tuple(copied[node] for node in made))
    kernel.eliminate_dead_code()
    core = fx.GraphModule(gm, kernel)
    trivial = list(output.args[0]) == made and not writes  # type: ignore[arg-type]
    return Split(core, tuple(made), tuple(kept), None if trivial else fx.GraphModule(gm, rest).forward)


def _has_symbols(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(names_in(sizes_of(value)))


def input_sizes(gm: fx.GraphModule) -> dict[str, Place]:
    """Where to find the values of symbols: in inputs that are numbers, or sizes of them or multiples."""
    found: dict[str, Place] = {}
    for n, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        if is_nested_size(value):
            continue
        sizes = enumerate(sizes_of(value)) if isinstance(value, Tensor) else ()
        each = [(None, expression(value))] if isinstance(value, torch.SymInt) else list(sizes)
        for dim, size in each:
            content, rest = size.primitive() if size.free_symbols else (size, size)
            if rest.is_Symbol and content.is_Integer:
                found.setdefault(str(rest), (n, dim, int(content)))
    return found


class Padded(PaddedCall):
    """Calls one program for all sizes up to those that it is compiled for: of a graph, which `compile` compiles.

    Args:
        halves: the graph.
        rows: what is known of it.
        sizes: of all symbols, what it is compiled for.
        padded: the symbols that have smaller values in a call, or the same.
        args: of a call; inputs without symbols are as these.
    """

    def __init__(
        self,
        halves: Split,
        rows: Rows,
        sizes: Mapping[str, int],
        padded: Sequence[str],
        args: Sequence[Any],
    ):
        placeholders = list(halves.core.graph.find_nodes(op="placeholder"))
        each = enumerate(zip(placeholders, args, strict=True))
        inputs = {n: how for n, (node, arg) in each if (how := _padded_input(node, arg, sizes, {*padded})) is not None}
        device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
        run, taken, counted = _traced(halves, rows, sizes, padded, inputs, args, device)
        results = [_result(rows.axes[node.name], node.meta["val"]) for node in halves.given]
        numbers = [plain(expression(node.meta["val"])) for node in halves.numbers]
        super().__init__(sizes, padded, inputs, taken, results, numbers, counted, run, halves.rest, device)


def _traced(
    halves: Split,
    rows: Rows,
    sizes: Mapping[str, int],
    padded: Sequence[str],
    inputs: Mapping[int, PaddedInput],
    args: Sequence[Any],
    device: torch.device,
) -> tuple[fx.GraphModule, list[int], list[str]]:
    """The graph without symbols, numbers of the inputs that it takes, and the symbols whose values it takes behind them."""
    values = [node.meta.get("val") for node in halves.core.graph.find_nodes(op="placeholder")]
    number = {
        n: 0 if is_nested_size(value) else size_at(expression(value), sizes)
        for n, value in enumerate(values)
        if isinstance(value, torch.SymInt)
    }
    larger = [number[n] if n in number else inputs[n].example(arg) if n in inputs else arg for n, arg in enumerate(args)]
    counts = [torch.zeros([], dtype=torch.int64, device=device) for _ in padded]

    def run(*given: Any) -> Any:
        told = dict(zip(padded, given[len(larger) :], strict=True))
        results = CountedRun(halves.core, rows, sizes, told).run(*given[: len(larger)])
        axes = [rows.axes[node.name] for node in halves.given]
        return tuple(_rows_of(value, each, told, sizes) for value, each in zip(results, axes, strict=True))

    static = traced(run, [*larger, *counts], sized_table())
    static.graph.eliminate_dead_code()
    _places_first(static.graph)
    places = list(static.graph.find_nodes(op="placeholder"))
    unused = [n for n, node in enumerate(places) if not node.users and (n in number or n >= len(larger))]
    for n in unused:
        static.graph.erase_node(places[n])
    static.recompile()
    left = [n for n in range(len(places)) if n not in unused]
    static.meta["taken"] = taken = [n for n in left if n < len(larger)]  # for who knows inputs by number
    return static, taken, [padded[n - len(larger)] for n in left if n >= len(larger)]


def _places_first(graph: fx.Graph) -> None:
    """Move what makes the places of counted rows in front of everything else, where it waits for nothing."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.kitsune.scatter_counted_rows.default):
        needed, waiting = set[fx.Node](), [node.args[1]]
        while waiting:
            one = waiting.pop()
            if one.op != "placeholder" and one not in needed and len(needed) < MOST_MOVED:
                needed.add(one)
                waiting += one.all_input_nodes
        if len(needed) < MOST_MOVED:
            first = next(one for one in graph.nodes if one.op != "placeholder" and one not in needed)
            for one in [one for one in graph.nodes if one in needed]:
                first.prepend(one)


def _rows_of(value: Tensor, axes: Sequence[Axis], told: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Tensor:
    """A result, which says how many of its rows are valid where its valid elements are the first ones."""
    outermost = next((axis for axis in axes if axis.factors), None)
    if outermost is None or not outermost.factors[0].free_symbols:
        return value
    symbol = outermost.factors[0].primitive()[1]
    if not symbol.is_Symbol or str(symbol) not in told:
        return value
    return valid_rows(value, told[str(symbol)], sizes[str(symbol)])


def _result(axes: Sequence[Axis], value: Tensor) -> PaddedResult:
    strides = [plain(expression(step)) for step in value.stride()]
    factors = [tuple(map(plain, axis.factors)) for axis in axes]
    return PaddedResult(tuple(factors), tuple(map(plain, sizes_of(value))), tuple(strides))


def _padded_input(node: fx.Node, arg: Any, sizes: Mapping[str, int], padded: set[str]) -> PaddedInput | None:
    """How the program takes an input; None as it is."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not names_in(sizes_of(value)) & padded:
        return None
    size = tuple(size_at(n, sizes) for n in sizes_of(value))
    steps = arg.stride()  # 0 of a dimension that is expanded, which then is outermost
    order = sorted(range(len(size)), key=lambda dim: (steps[dim] != 0, -steps[dim], dim))
    stride, step = [0] * len(size), 1
    for dim in reversed(order):
        stride[dim], step = step, step * max(size[dim], 1)
    return PaddedInput(size, tuple(stride))
