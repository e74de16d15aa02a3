"""What option `guard` asks for: a graph of Dynamo's beside PyTorch's own way of running it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from kitsune_mlir.cache.store import store_of
from kitsune_mlir.dynamo.decisions import copied, text_of_graph
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.dynamo.kept_graphs import WholeGraph
from kitsune_mlir.dynamo.recorded import Recorded
from kitsune_mlir.dynamo.report import GraphReport, Timed
from kitsune_mlir.dynamo.stopwatch import Budget
from kitsune_mlir.dynamo.timed_choice import Peer, Rules, TimedChoice
from kitsune_mlir.dynamo.torch_api import inductor_compiled, is_nested_size
from kitsune_mlir.options import Options
from kitsune_mlir.sized.padded import reader

__all__ = ["Facts", "guarded", "rules_of"]

MOST_SIZES = 4096
"""Sets of sizes of which the bucket is held."""
SECONDS = 2.0
"""That measurements may take for a graph of Dynamo's, its backward and all its parts included."""


@dataclasses.dataclass
class Facts:
    """What compilation finds out about a graph of Dynamo's.

    Attributes:
        written: numbers of its inputs that it writes to; None where they are not known by number.
        numbers: of its inputs that are parameters and buffers, which stay where they are.
        fixed: their names in its graphs; a backward is given some of them too.
        recorded: whether its calls are recorded in CUDA graphs.
        outside: whether it has operators that may do more than compute, which cannot be called just to be timed.
        reports: of its graphs, so far.
        whole: how its program is called, where it is one program and nothing else.
        plain: calls what was compiled of it, where AOTAutograd would do no more; None elsewhere.
    """

    written: frozenset[int] | None = frozenset()
    numbers: frozenset[int] = frozenset()
    fixed: frozenset[str] = frozenset()
    recorded: bool = False
    outside: bool = False
    reports: list[GraphReport] = dataclasses.field(default_factory=list)
    whole: WholeGraph | None = None
    plain: Callable[..., Any] | None = None

    def note(self, timed: Timed) -> None:
        """Keep a choice with the report of the graph, if there is one yet."""
        for report in [report for report in self.reports if report.kind != "backward"][-1:]:
            report.timed.append(timed)


def rules_of(graphs: GraphOptions, options: Options, inputs: Sequence[Any]) -> Rules | None:
    """How choices are made for a graph with these inputs; None where there are none to be made."""
    on_gpu = any(isinstance(value, Tensor) and value.device.type == "cuda" for value in inputs)
    wanted = on_gpu if graphs.guard is None else graphs.guard
    if not wanted or graphs.require_full or graphs.background or options.deterministic:
        return None
    peer = "Inductor" if wanted == "inductor" else "eager"
    asked = repr((options.threads, options.tune, options.schedule, sorted(options.passes.items()), graphs))
    return Rules(Budget(SECONDS), store_of(options.cache, options.cache_dir), asked, peer, on_gpu and graphs.cudagraphs)


def guarded(
    run: Callable[..., Any], gm: fx.GraphModule, inputs: Sequence[Any], facts: Facts, rules: Rules | None
) -> Callable[..., Any]:
    """What was compiled of a graph, or the graph in PyTorch.

    Args:
        run: ours.
        gm: the graph that Dynamo captured.
        inputs: that it was compiled with.
    """
    if rules is None or facts.outside or facts.written is None:
        return run
    if facts.reports and not any(report.programs for report in facts.reports):
        return run
    symbols = list(_symbols(inputs))
    read = reader({str(number): (n, dim, 1) for number, (n, dim) in enumerate(symbols)})
    known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def sizes(args: Sequence[Any]) -> tuple[int, ...]:
        found = read(args)
        buckets = known.get(found)
        if buckets is None:
            if len(known) >= MOST_SIZES:
                known.clear()
            buckets = known[found] = tuple(map(bucket, found))
        return buckets

    def made(args: Sequence[Any]) -> Callable[..., Any]:
        function = in_pytorch(gm, rules.peer, None if symbols else args)
        return Recorded(function, facts.numbers, facts.written or ()) if facts.recorded and not training else function

    training = torch.is_grad_enabled() and any(isinstance(value, Tensor) and value.requires_grad for value in inputs)
    text = lambda: text_of_graph(gm)  # noqa: E731
    peer = Peer(rules.peer + " in a CUDA graph" * (facts.recorded and not training), made)
    return TimedChoice("the graph", run, peer, text, facts.written, rules, facts.note, sizes if symbols else None)


def in_pytorch(gm: fx.GraphModule, peer: str, inputs: Sequence[Any] | None) -> Callable[..., Any]:
    """PyTorch's own way of running a graph.

    Args:
        peer: "eager" or "Inductor".
        inputs: that it is to be compiled for; None where sizes change, which guards of Dynamo's ask for then.
    """
    if peer == "eager":
        return gm.forward
    if inputs is None:
        return torch.compile(gm, backend="inductor", dynamic=True)
    return inductor_compiled(copied(gm), inputs)  # it changes the graph


def _symbols(inputs: Sequence[Any]) -> Iterator[tuple[int, int | None]]:
    """Which inputs are whole numbers that are not known when the graph is compiled, and which dimensions have such sizes."""
    for n, value in enumerate(inputs):
        sizes = enumerate(value.shape) if isinstance(value, Tensor) else [(None, value)]
        yield from ((n, dim) for dim, size in sizes if isinstance(size, torch.SymInt) and not is_nested_size(size))


def bucket(n: int) -> int:
    """The next of 1, 1.25, 1.5 and 1.75 times a power of two: sizes that share a choice."""
    if n <= 8:
        return n
    step = 1 << (n.bit_length() - 3)
    return -(-n // step) * step
