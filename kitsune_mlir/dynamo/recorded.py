"""Option `cudagraphs`: the calls that a compiled graph makes, programs and islands, as a CUDA graph that is replayed.

A CUDA graph reads and writes the same memory each time. Weights are taken where they lie, and so are outputs of other
recordings (what a forward keeps for its backward) and buffers of padded inputs; other inputs are copied to where the graph
reads them. Outputs are handed out where the graph wrote them: a recording is replayed only once nobody holds its last
outputs, or views of them, any more. Until then another recording of the same calls takes its place, and with all of them in
use the calls are made as they are. So nothing that a caller holds is ever overwritten, and no step has to be marked; the
price is memory: each recording has its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.dynamo.report import logger
from kitsune_mlir.dynamo.torch_api import incompatible_with_cuda_graphs
from kitsune_mlir.runtime.results import changed
from kitsune_mlir.runtime.weights import WeightCopies, WeightCopy
from kitsune_mlir.sized.padded_input import KEPT, copier
from kitsune_mlir.sized.part import storage_uses
from kitsune_mlir.sized.taker import taker

__all__ = ["Recorded", "unrecordable", "written_in"]

SAME = 2
"""Recordings of the same calls: a loop holds the last outputs while it asks for the next."""
MOST = 8
"""Recordings of one graph, with other weights among them."""

Captured = tuple[Callable[[], None], Sequence[Any]]

_POINTER = Tensor.data_ptr

_MANAGED: dict[int, int] = {}
"""Where outputs of recordings lie, and how many of them do."""


def capture(run: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> Captured:
    """What replays the calls that a function makes with inputs, and its outputs, which hold nothing before the first replay."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(*inputs)
    return graph.replay, outputs


class Recorded:
    """Calls a function of flat inputs by replaying what it did.

    Args:
        run: gives a sequence of outputs; its calls depend on types and sizes of the inputs, and on numbers among them, alone.
        fixed: numbers of inputs that are the same tensors at most calls.
        written: numbers of inputs that it writes to, which are fixed.
        copies: of weights that `run` holds, once it was called.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        fixed: Collection[int],
        written: Collection[int] = (),
        copies: Callable[[], Iterable[WeightCopy]] = tuple,
    ):
        self._run, self._fixed, self._written, self._copies = run, frozenset(fixed), tuple(written), copies
        self._take_fixed: Callable[[Sequence[Any]], Sequence[Any]] | None = None  # once arguments were seen
        self._others: Sequence[int] = ()
        self._known: dict[tuple[Any, ...], list[_Recording]] = {}
        self._off = False
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        """The outputs."""
        if self._off or torch.cuda.is_current_stream_capturing():
            return self._run(*args)
        with self._lock:
            key = self._key(args)
            recordings = self._known.get(key)
            if recordings is not None:
                for recording in recordings:
                    if recording.is_free():
                        return recording.replayed(args, self._written)
                if len(recordings) < SAME and sum(map(len, self._known.values())) < MOST:
                    try:
                        places = key[len(key) - len(self._others) :]
                        moved = [n for n, place in zip(self._others, places, strict=True) if isinstance(place, tuple)]
                        recordings.append(_Recording(self._run, args, moved, self._copies))
                        return recordings[-1].replayed(args, self._written)
                    except Exception as error:  # a user's model goes on, whatever cannot be recorded
                        self._off = True
                        logger.warning("not recorded in a CUDA graph: %s: %s", type(error).__name__, error)
            elif len(self._known) < MOST:
                self._known[key] = []  # the first call loads code and copies weights
        return self._run(*args)

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """What of inputs a recording holds for: where they lie, of fixed ones first; of those that are copied size and strides,
        of others their values."""
        take = self._take_fixed
        if take is None:
            stays = [n for n, value in enumerate(args) if n in self._fixed and isinstance(value, Tensor)]
            self._others = [n for n in range(len(args)) if n not in stays]
            take = self._take_fixed = taker(stays)
        key: list[Any] = list(map(_POINTER, take(args)))
        for n in self._others:
            value = args[n]
            if isinstance(value, Tensor):
                pointer = value.data_ptr()
                stays_here = pointer in _MANAGED or pointer in KEPT
                key.append(pointer if stays_here else (value.shape, value.stride(), value.dtype))
            else:
                key.append(value)
        return tuple(key)


class _Recording:
    """One recording, of the calls that a function makes with inputs of which those with the numbers `moved` lie elsewhere in
    each call."""

    def __init__(
        self,
        run: Callable[..., Any],
        args: Sequence[Any],
        moved: Sequence[int],
        copies: Callable[[], Iterable[WeightCopy]],
    ):
        inputs = list(args)
        for n in moved:
            inputs[n] = torch.empty_strided(args[n].shape, args[n].stride(), dtype=args[n].dtype, device=args[n].device)
            inputs[n].copy_(args[n])
        self._inputs, self._take = [inputs[n] for n in moved], taker(moved)
        self._copy = copier(self._inputs)
        self._replay, outputs = capture(run, inputs)
        self._copies = WeightCopies(list(copies()))
        # An output that is an input is the caller's own.
        numbers = {id(value): n for n, value in enumerate(inputs) if isinstance(value, Tensor)}
        self._same = {at: numbers[id(value)] for at, value in enumerate(outputs) if id(value) in numbers}
        self._outputs = [None if at in self._same else value for at, value in enumerate(outputs)]
        del outputs
        own = {value.untyped_storage()._cdata for value in self._inputs}
        made = [value for value in self._outputs if isinstance(value, Tensor)]
        if any(value.untyped_storage()._cdata in own for value in made):
            raise ValueError("an output is a view of an input that is copied")
        self._storages = {value.untyped_storage()._cdata: value.untyped_storage() for value in made}
        self._idle = {data: storage_uses(data) for data in self._storages}
        self._managed = [value.data_ptr() for value in made]
        for pointer in self._managed:
            _MANAGED[pointer] = _MANAGED.get(pointer, 0) + 1

    def is_free(self) -> bool:
        """Whether nobody holds an output of the last replay."""
        for data, idle in self._idle.items():
            if storage_uses(data) > idle:
                return False
        return True

    def replayed(self, args: Sequence[Any], written: Sequence[int]) -> list[Any]:
        """The outputs for inputs."""
        self._copies.refresh()
        if self._inputs:
            self._copy(self._take(args))
        self._replay()
        if written:
            changed([args[n] for n in written])
        handed = [value.detach() if isinstance(value, Tensor) else value for value in self._outputs]
        for at, n in self._same.items():
            handed[at] = args[n]
        return handed

    def __del__(self) -> None:
        for pointer in getattr(self, "_managed", ()) if _MANAGED else ():  # None, when the interpreter ends
            _MANAGED[pointer] -= 1
            if not _MANAGED[pointer]:
                del _MANAGED[pointer]


def unrecordable(gm: fx.GraphModule, fixed: Collection[int]) -> str | None:
    """Why a graph's calls cannot be recorded; None if they can."""
    devices = {
        value.device for node in gm.graph.nodes for value in tree_leaves(node.meta.get("val")) if isinstance(value, Tensor)
    }
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return f"its tensors are on {', '.join(sorted(map(str, devices))) or 'no device'}"
    if (node := incompatible_with_cuda_graphs(gm)) is not None:
        return f"{node.target} cannot be recorded"
    if set(written_in(gm)) - set(fixed):
        return "it writes to an input that is no parameter or buffer (mark it with torch._dynamo.mark_static_address)"
    return None


def written_in(gm: fx.GraphModule) -> list[int]:
    """Numbers of the inputs that a graph writes to."""
    inputs = {node: n for n, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    writes = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return [inputs[node.args[0]] for node in writes if node.args[0] in inputs]
