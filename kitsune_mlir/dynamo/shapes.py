"""Graphs with sizes that are known at a call: few programs, of larger sizes, where rows allow it; else one for each size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.dynamo.buckets import GPU_ROWS, Buckets
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.padding import Padded, input_sizes, split
from kitsune_mlir.dynamo.partition import is_view
from kitsune_mlir.dynamo.report import logger
from kitsune_mlir.dynamo.size_cost import cost_of, given_bytes_of, idle_cost_of
from kitsune_mlir.dynamo.strides import without_empty_views
from kitsune_mlir.dynamo.torch_api import (
    bound_of,
    compiling,
    every_size_may_change,
    is_nested_size,
    source_of,
    traced,
    tracing_lock,
)
from kitsune_mlir.frontend.aten import sized_table
from kitsune_mlir.frontend.rows import Axis, Rows, rows_of
from kitsune_mlir.frontend.rows.axes import size_at
from kitsune_mlir.sized.known import Known, exact_key
from kitsune_mlir.sized.padded import PaddedCall, reader, values_of

__all__ = ["Specialized", "is_symbolic"]

MOST_PROGRAMS = 8
"""Programs that are compiled of one graph; for sizes that none of them serves it runs in PyTorch then."""
MOST_VARIED = 128
"""Operators of a graph up to which its programs have variants: each takes as long to compile."""
MOST_SIZES = 4096
"""Sets of sizes of which it is held which program serves them."""


def is_symbolic(gm: fx.GraphModule) -> bool:
    """Whether an input has a size, or is a number, that is not known."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, symbols):
            return True
        if isinstance(value, Tensor) and any(isinstance(n, symbols) for n in (*value.shape, *value.stride())):
            return True
    return False


class Specialized:
    """Calls what was compiled for the sizes of its arguments, or for larger ones.

    Args:
        gm: the graph, with symbols.
        compile: compiles a graph without, of the same inputs, to which the numbers of valid rows may be added. It is told for
            which sizes, in words, and whether the outputs are the same. None where sizes that nothing known serves are to run
            in PyTorch (in a process that has loaded what another one compiled).
        options: how sizes are chosen.
        known: what was compiled.
        on_gpu: whether programs are for one; None is where inputs are.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        compile: Callable[[fx.GraphModule, str, bool], Callable[..., Any]] | None,
        options: GraphOptions | None = None,
        known: Known | None = None,
        on_gpu: bool | None = None,
    ):
        given = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
        self._on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in given) if on_gpu is None else on_gpu
        self._gm, self._compile, self._options = gm, compile, options or GraphOptions()
        self.known = known or Known(input_sizes(gm))
        self._places, self._values = self.known.places, reader(self.known.places)
        self._fits: dict[tuple[int, ...], PaddedCall] = {}
        self._groups: dict[Any, Buckets] = {}
        self._variants = 0
        self._first: tuple[int, ...] | None = None
        self._changing: set[str] = set()
        self._lock = tracing_lock
        self._nested = [n for n, value in enumerate(given) if is_nested_size(value)]
        self._rows, self._why = None, "option 'pad_rows' is off"
        if self._options.pad_rows and compile is not None:
            with compiling():
                self._look()

    def __reduce__(self) -> tuple[Any, ...]:
        return Specialized, (self._gm, None, self._options, self.known)

    def _look(self) -> None:
        """Finds the symbols that may have larger values than a call's."""
        placeholders = self._gm.graph.find_nodes(op="placeholder")
        self._rows, reasons = rows_of(self._gm.graph), []
        for symbol in self._rows.symbols:
            never = next((c for c in self._rows.of(symbol) if c.kind == "never"), None)
            if symbol not in self._places or never is not None:
                why = "no input has it as its size" if never is None else str(never)
                reasons.append(f"{source_of(placeholders, symbol)}: {why}")
        if any(isinstance(node.meta.get("val"), torch.SymFloat | torch.SymBool) for node in placeholders):
            reasons = ["an input is a number that is no integer"]
        else:
            self.known.names = tuple(s for s in self._places if self._rows.is_paddable(s))
        self._why = "; ".join(reasons)
        self._halves = None
        if self.known.names:
            without_empty_views(self._gm.graph)
            self._halves = split(self._gm)
        every, alone = not every_size_may_change() or self._options.buckets, len(self.known.names) == 1
        for name in self.known.names:
            dimensions = self._dimensions(name)
            if every or (alone and dimensions) or dimensions == {0} or self._is_rows(name):
                self._changing.add(name)

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        if self._nested:  # which the graph does not use
            args = tuple([0 if n in self._nested else value for n, value in enumerate(args)])
        values: tuple[int, ...] = ()
        if self.known.names:
            values = self._values(args)
            run = self._fits.get(values)
            if run is not None:
                index = run.index
                if index is not None and run.rest is None and torch._C._cuda_getDevice() == index:
                    # As the call does it: another function is slow to call while torch.compile's hook is there.
                    stream = torch._C._cuda_getCurrentRawStream(index)
                    kept: dict[Any, Any] = run.prepared.__dict__
                    ready = kept.get((values, stream))
                    results = None if ready is None else ready(args, stream)
                    if results is not None:
                        return results
                return run(values, args)
            if 0 in values:
                return self._gm(*args)
        key = exact_key(args)
        run = self.known.exact.get(key)
        if run is not None:
            return run(*args)
        with self._lock:
            if self.known.names and (run := self._padded(values, args)) is not None:
                return run(values, args)
            return self._specialized(key, args)(*args)

    def prepare(self, args: Sequence[Any]) -> PaddedCall | None:
        """Compile what serves arguments like these, whose values do not matter; the program for larger sizes, if it is one."""
        with self._lock:
            run = self._padded(values_of(self._places, args), args) if self.known.names else None
            if run is None:
                self._specialized(exact_key(args), args)
            return run

    @property
    def why(self) -> str:
        """Why sizes have programs of their own; empty where none has."""
        return self._why

    def _is_full(self) -> bool:
        """Whether no other program is to be compiled."""
        programs = len(self.known.exact) + len(self.known.larger) - self._variants
        if programs + 1 == MOST_PROGRAMS and not self._options.require_full:
            logger.warning("%d programs are compiled of a graph; sizes that they do not serve run in PyTorch", MOST_PROGRAMS)
        return self._compile is None or programs >= MOST_PROGRAMS

    def _padded(self, values: tuple[int, ...], args: Sequence[Any]) -> PaddedCall | None:
        """The program that serves these sizes, and larger ones; None where there is none."""
        named = dict(zip(self._places, values, strict=True))
        run = self._larger(named, args) if self._compile is not None else None
        run = run or self.known.serving(values)  # no other one is compiled; one that there is may do
        if run is not None:
            if len(self._fits) >= MOST_SIZES:
                self._fits.clear()
            self._fits[values] = run
        return run

    def _larger(self, values: Mapping[str, int], args: Sequence[Any]) -> PaddedCall | None:
        """The program for sizes that are chosen for these; compiled, if it may be."""
        assert self._rows is not None and self._halves is not None and self._compile is not None
        names, compile = self._names_that_change(values), self._compile
        if not names:
            return None
        others = names, tuple(n for name, n in values.items() if name not in names)
        group = self._groups.get(others)
        if group is None:
            group = self._groups[others] = self._buckets(values, names)
        sizes = {**values, **group.find({name: values[name] for name in names})}
        key = tuple(sizes.values())
        run = self.known.larger.get(key)
        if (run is None or not run.serves(values)) and not self._is_full():
            both = [{name: one[name] for name in names} for one in (sizes, values)]
            smaller = [{**sizes, **fewer} for fewer in group.variants(*both)]
            for number, own in enumerate([sizes, *smaller]):
                try:
                    one = Padded(self._halves, self._rows, own, names, args)
                except Exception as error:  # what cannot be traced with numbers that are tensors: each size for itself then
                    self.known.names, self._why = (), f"{type(error).__name__}: {error}"
                    return None
                self.known.larger[tuple(own.values())] = one
                one.compile(lambda graph, own=own: compile(graph, self._words(own, names), False))
                self._variants += number > 0
            run = self.known.larger[key]
        return self.known.serving(tuple(values.values())) or run if group.varied else run

    def _names_that_change(self, values: Mapping[str, int]) -> tuple[str, ...]:
        """The symbols that may have larger values than a call's, and have had several, as far as is known."""
        self._first = self._first or tuple(values.values())
        self._changing.update(name for name, first in zip(values, self._first, strict=True) if values[name] != first)
        return tuple(name for name in self.known.names if name in self._changing)

    def _buckets(self, values: Mapping[str, int], names: Sequence[str]) -> Buckets:
        placeholders = self._gm.graph.find_nodes(op="placeholder")
        weights = {name: rows_in(self._rows, name, values) for name in names}  # type: ignore[arg-type]
        bounds = {name: bound for name in names if (bound := bound_of(placeholders, name)) is not None}
        on_gpu = self._on_gpu
        varied = on_gpu and sum(node.op == "call_function" for node in self._gm.graph.nodes) <= MOST_VARIED
        cost, given = cost_of(self._gm, int(on_gpu and not varied), on_gpu), given_bytes_of(self._gm)
        asked = self._options.bucket_growth, self._options.buckets
        idle = idle_cost_of(self._gm) if self._leaves_out(names) and not on_gpu else None
        return Buckets(
            weights,
            bounds,
            *asked,
            lambda sizes: cost({**values, **sizes}),
            None if idle is None else lambda sizes: idle({**values, **sizes}),
            lambda sizes: given({**values, **sizes}),
            GPU_ROWS if on_gpu else 0,
            varied,
        )

    def _is_rows(self, name: str) -> bool:
        """Whether a symbol is how many rows all computed results have: a batch, which changes if anything does."""
        assert self._rows is not None and self._halves is not None
        axes = [self._rows.axes[node.name] for node in self._halves.given]
        return bool(axes) and all(each and name in each[0].symbols for each in axes) and self._leaves_out((name,))

    def _dimensions(self, name: str) -> set[int]:
        """Dimensions of computed values that a symbol counts: of nodes and of edges it is the outermost alone, and such sizes
        change if anything does; of the columns that each are another table's indices there is none."""
        assert self._rows is not None
        computed = [node for node in self._gm.graph.nodes if node.op == "call_function" and not is_view(node)]
        each = [self._rows.axes.get(node.name, ()) for node in computed]
        return {n for axes in each for n, axis in enumerate(axes) if isinstance(axis, Axis) and name in axis.symbols}

    def _leaves_out(self, names: Sequence[str]) -> bool:
        """Whether programs need not compute what is behind valid rows: each row is for itself, and stands outermost."""
        assert self._rows is not None and self._halves is not None
        inner = [axis for node in self._halves.given for axis in self._rows.axes[node.name][1:]]
        return all(self._rows.is_independent(name) for name in names) and not any(axis.symbols & {*names} for axis in inner)

    def _words(self, sizes: Mapping[str, int], names: Sequence[str]) -> str:
        placeholders = self._gm.graph.find_nodes(op="placeholder")
        signs = {name: "≤" if name in names else "=" for name in sizes}
        each = [f"{source_of(placeholders, name)} {signs[name]} {size}" for name, size in sizes.items()]
        return f"for {', '.join(each)}" + (f" ({self._why})" if self._why else "")

    def _specialized(self, key: tuple[Any, ...], args: Sequence[Any]) -> Callable[..., Any]:
        """The program for these sizes only, or the graph itself."""
        run = self.known.exact.get(key)
        if run is None:
            if self._compile is None:
                return self._gm
            if self._is_full():
                if not (self._options.require_full and self.known.exact):
                    return self._gm
                self.known.exact.pop(next(iter(self.known.exact)), None)
            graph = fx.Interpreter(self._gm)
            static = traced(lambda *given: graph.run(*given), args, sized_table())
            placeholders = self._gm.graph.find_nodes(op="placeholder")
            sizes = zip(self._places, values_of(self._places, args), strict=True)
            each = ", ".join(f"{source_of(placeholders, name)} = {size}" for name, size in sizes)
            run = self.known.exact[key] = self._compile(static, f"for {each} only ({self._why})", True)
        return run


def rows_in(rows: Rows, symbol: str, values: Mapping[str, int]) -> int:
    """How many rows of a product one row is, at most: the tokens of a sample."""
    found = 1
    for axes in rows.axes.values():
        for axis in axes:
            if isinstance(axis, Axis) and symbol in axis.symbols:
                found = max(found, size_at(axis.size, values) // max(values[symbol], 1))
    return found
