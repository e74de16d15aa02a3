"""A graph with symbolic sizes as one program for many of them: inputs are padded, results are cut."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.counted import CountedRun
from kitsune_mlir.dynamo.partition import is_view
from kitsune_mlir.dynamo.strides import with_strides
from kitsune_mlir.dynamo.torch_api import traced
from kitsune_mlir.frontend.aten import sized_table
from kitsune_mlir.frontend.rows import Axis, Rows
from kitsune_mlir.frontend.rows.axes import expression, names_in, size_at, sizes_of
from kitsune_mlir.frontend.valid_rows import valid_rows

__all__ = ["Padded", "Split", "input_sizes", "split", "values_of"]

aten = torch.ops.aten

MOST_CUTS = 4096
"""Sets of sizes of which it is held how results are cut."""


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


Place = tuple[int, int | None, sympy.Expr]
"""An input's number, its dimension or None for a number itself, and its size."""


def input_sizes(gm: fx.GraphModule) -> dict[str, Place]:
    """Where to find the values of symbols: in inputs that are numbers, or sizes of them or multiples."""
    found: dict[str, Place] = {}
    for n, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes = enumerate(sizes_of(value)) if isinstance(value, Tensor) else ()
        each = [(None, expression(value))] if isinstance(value, torch.SymInt) else list(sizes)
        for dim, size in each:
            content, rest = size.primitive() if size.free_symbols else (size, size)
            if rest.is_Symbol and content.is_Integer:
                found.setdefault(str(rest), (n, dim, content))
    return found


def values_of(places: Mapping[str, Place], args: Sequence[Any]) -> tuple[int, ...]:
    """The values of symbols in a call."""
    return tuple((args[n] if dim is None else args[n].shape[dim]) // int(content) for n, dim, content in places.values())


class Padded:
    """Calls one program for all sizes up to those that it is compiled for.

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
        self._rest, self._sizes = halves.rest, dict(sizes)
        self._given = [
            (rows.axes[node.name], sizes_of(value), tuple(map(expression, value.stride())))
            for node in halves.given
            for value in [node.meta["val"]]
        ]
        self._numbers = [expression(node.meta["val"]) for node in halves.numbers]
        self._names = tuple(padded)
        placeholders = list(halves.core.graph.find_nodes(op="placeholder"))
        self.inputs = [_Input.of(node, arg, rows, sizes, set(padded)) for node, arg in zip(placeholders, args, strict=True)]
        self._changed = [value if value.changes else None for value in self.inputs]
        self._device = next((a.device for a in args if isinstance(a, Tensor)), torch.device("cpu"))
        self._cuts: dict[tuple[int, ...], Any] = {}
        self._run, self._counted = self._traced(halves.core, rows, args)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cuts": {}}

    def compile(self, compile: Callable[[Any], Callable[..., Any]]) -> None:
        """Compile the graph without symbols, which PyTorch would run else."""
        self._run = compile(self._run)

    def serves(self, values: Mapping[str, int]) -> bool:
        """Whether it may be called for these values of all symbols."""
        return all(n == values[name] or (name in self._names and n > values[name]) for name, n in self._sizes.items())

    def _traced(self, core: fx.GraphModule, rows: Rows, args: Sequence[Any]) -> tuple[Callable[..., Any], list[int]]:
        """The graph without symbols, and the symbols whose values it takes behind its other inputs."""
        larger = [value.example(arg) for value, arg in zip(self.inputs, args, strict=True)]
        counts = [torch.zeros([], dtype=torch.int64, device=self._device) for _ in self._names]

        def run(*given: Any) -> Any:
            told = dict(zip(self._names, given[len(larger) :], strict=True))
            results = CountedRun(core, rows, self._sizes, told).run(*given[: len(larger)])
            if self._device.type != "cpu":  # code for GPUs leaves no tiles out yet, and a count would be a launch
                return results
            return tuple(self._rows_of(value, axes, told) for value, (axes, _, _) in zip(results, self._given, strict=True))

        static = traced(run, [*larger, *counts], sized_table())
        static.graph.eliminate_dead_code()
        told = list(static.graph.find_nodes(op="placeholder"))[len(larger) :]
        for node in [node for node in told if not node.users]:
            static.graph.erase_node(node)
        left = set(static.graph.find_nodes(op="placeholder"))
        static.recompile()
        return static, [n for n, node in enumerate(told) if node in left]

    def _rows_of(self, value: Tensor, axes: Sequence[Axis], told: Mapping[str, Tensor]) -> Tensor:
        """A result, which says how many of its rows are valid where its valid elements are the first ones."""
        outermost = next((axis for axis in axes if axis.factors), None)
        if outermost is None or not outermost.factors[0].free_symbols:
            return value
        symbol = outermost.factors[0].primitive()[1]
        if not symbol.is_Symbol or str(symbol) not in told:
            return value
        return valid_rows(value, told[str(symbol)], self._sizes[str(symbol)])

    def __call__(self, values: tuple[int, ...], args: Sequence[Any]) -> Any:
        """The graph's outputs for values of all its symbols."""
        cut = self._cuts.get(values)
        if cut is None:
            if len(self._cuts) >= MOST_CUTS:
                self._cuts.clear()
            cut = self._cuts[values] = self._cut(dict(zip(self._sizes, values, strict=True)))
        numbers, counts, outputs = cut
        given = [arg if value is None else value(arg) for value, arg in zip(self._changed, args, strict=True)]
        results = self._run(*given, *[torch.full([], n, dtype=torch.int64, device=self._device) for n in counts])
        results = [how(value) for value, how in zip(results, outputs, strict=True)]
        return results if self._rest is None else self._rest(*args, *numbers, *results)

    def _cut(self, values: Mapping[str, int]) -> Any:
        """What a call with these values needs: numbers that the rest takes, counts, and what cuts each result."""
        numbers = [_number_at(value, values) for value in self._numbers]
        counts = [values[self._names[n]] for n in self._counted]
        return numbers, counts, [self._cutter(*given, values) for given in self._given]

    def _cutter(
        self, axes: Sequence[Axis], sizes: Sequence[Any], strides: Sequence[Any], values: Mapping[str, int]
    ) -> Callable[[Tensor], Tensor]:
        """What takes the valid elements out of a result."""
        now = [[size_at(factor, self._sizes) for factor in axis.factors] or [1] for axis in axes]
        true = [[size_at(factor, values) for factor in axis.factors] or [1] for axis in axes]
        size, stride = [size_at(n, values) for n in sizes], [size_at(n, values) for n in strides]
        if now == true:
            return lambda value: with_strides(value, size, stride)
        # Factors of dimensions whose valid elements are the first ones need not be told apart.
        together = [one[1:] == other[1:] for one, other in zip(now, true, strict=True)]
        split = [n for one, dims in zip(together, now, strict=True) for n in ([math.prod(dims)] if one else dims)]
        keep = [n for one, dims in zip(together, true, strict=True) for n in ([math.prod(dims)] if one else dims)]

        def cut(value: Tensor) -> Tensor:
            value = value if all(together) else value.reshape(split)
            for dim, n in enumerate(keep):
                if value.shape[dim] != n:
                    value = value.narrow(dim, 0, n)
            return with_strides(value if all(together) else value.reshape(size), size, stride)

        return cut


def _number_at(value: sympy.Expr, values: Mapping[str, int]) -> int | float:
    found = value.subs({symbol: values[str(symbol)] for symbol in value.free_symbols})
    return int(found) if found.is_integer else float(found)


@dataclasses.dataclass(frozen=True)
class _Input:
    """An input as a program takes it.

    Attributes:
        size: of a tensor with padded dimensions; None for others.
        stride: of that one.
        number: of an input that is one.
        kept: buffers of each thread, by stream and device.
    """

    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    number: int | None = None
    kept: Any = dataclasses.field(default_factory=threading.local)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Input, (self.size, self.stride, self.number)

    @staticmethod
    def of(node: fx.Node, arg: Any, rows: Rows, sizes: Mapping[str, int], padded: set[str]) -> _Input:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return _Input(number=size_at(expression(value), sizes))
        if not isinstance(value, Tensor) or not names_in(sizes_of(value)) & padded:
            return _Input()
        size = tuple(size_at(n, sizes) for n in sizes_of(value))
        steps = arg.stride()  # 0 of a dimension that is expanded, which then is outermost
        order = sorted(range(len(size)), key=lambda dim: (steps[dim] != 0, -steps[dim], dim))
        stride, step = [0] * len(size), 1
        for dim in reversed(order):
            stride[dim], step = step, step * max(size[dim], 1)
        return _Input(size, tuple(stride))

    @property
    def changes(self) -> bool:
        """Whether the program takes another value than the caller gives."""
        return self.size is not None or self.number is not None

    def example(self, arg: Any) -> Any:
        """What the program is compiled with."""
        if self.size is not None:
            return torch.empty_strided(self.size, self.stride, dtype=arg.dtype, device=arg.device)
        return arg if self.number is None else self.number

    def __call__(self, arg: Any) -> Any:
        """What the program is called with. Elements behind valid ones are zero, or have been valid before."""
        if self.size is None:
            return self.number
        if arg.shape == self.size and arg.stride() == self.stride:
            return arg
        stream = torch.cuda.current_stream(arg.device).cuda_stream if arg.is_cuda else 0
        buffers = self.kept.__dict__
        whole = buffers.get((stream, arg.device))
        if whole is None:
            whole = torch.zeros(self.size, dtype=arg.dtype, device=arg.device).as_strided(self.size, self.stride)
            buffers[stream, arg.device] = whole
        part = whole
        for dim, n in enumerate(arg.shape):
            if n != self.size[dim]:
                part = part.narrow(dim, 0, n)
        part.copy_(arg)
        return whole
