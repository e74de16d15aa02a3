"""Which of two ways of running a graph was faster: kept on disk, and the same on all ranks of a job."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from kitsune_mlir.cache.programs import versions
from kitsune_mlir.cache.store import Store
from kitsune_mlir.frontend.graph_text import described
from kitsune_mlir.frontend.source import target_name
from kitsune_mlir.runtime.timer import device_name

__all__ = ["copied", "decision_key", "decision_of_all_ranks", "kept_decision", "keep_decision", "text_of_graph"]

KIND = "choices"
RANK_SECONDS = 10.0
"""That other ranks wait for what rank 0 has measured."""
POLL_SECONDS = 0.01

_NUMBERED = re.compile(r"\bcuda:\d+")
"""Ranks have the same graphs on devices of other numbers."""

Milliseconds = tuple[float, float]
"""Of a call of ours, and of a call in PyTorch."""


def text_of_graph(gm: fx.GraphModule) -> str:
    """A graph as text: its operators, and the types and strides of all values."""
    lines = []
    for name, part in gm.named_modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            value = tree_map(described, node.meta.get("val", node.meta.get("example_value")))
            lines.append(f"{name} {node.op} {node.name} {target_name(node)} {node.args} {dict(node.kwargs)} {value}")
    return "\n".join(lines)


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """The same graph, to be changed."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


def decision_key(text: str, args: Iterable[Any], device: torch.device, asked: str) -> str:
    """What a decision is kept under.

    Args:
        text: of the graph.
        args: of the call that it was made for: tensors count with type, sizes and strides.
        asked: what else matters: options, and what ours is compared with.
    """
    name = f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"
    given = [described(value) if isinstance(value, Tensor) else repr(value) for value in args]
    parts = [text, *given, asked, device_name(name), str(torch.get_num_threads()), str(torch.version.cuda), versions()]
    return hashlib.sha256(_NUMBERED.sub("cuda", "\0".join(parts)).encode()).hexdigest()


def kept_decision(store: Store | None, key: str) -> Milliseconds | None:
    """What was measured before."""
    data = store.read(KIND, key) if store is not None else None
    if data is None:
        return None
    try:
        own, peer = json.loads(data)["milliseconds"]
        return float(own), float(peer)
    except (ValueError, KeyError, TypeError):
        return None


def keep_decision(store: Store | None, key: str, times: Milliseconds) -> None:
    """Keep what was measured."""
    if store is not None:
        store.write(KIND, key, json.dumps({"milliseconds": times}).encode())


def decision_of_all_ranks(key: str, measure: Callable[[], Milliseconds | None]) -> Milliseconds | None:
    """What `measure` gives; in a distributed job what it gives on rank 0, on all ranks.

    It goes through the job's key-value store, not through a collective: a rank that runs other graphs than rank 0 does would
    wait for ever in one. Here it goes on without a measurement after `RANK_SECONDS`.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return measure()
    from kitsune_mlir.dynamo.torch_api import job_store

    store, name = job_store(), f"kitsune/{key}"
    if distributed.get_rank() == 0:
        times = measure()
        store.set(name, json.dumps(times))
        return times
    end = time.monotonic() + RANK_SECONDS
    while not store.check([name]):
        if time.monotonic() > end:
            return None
        time.sleep(POLL_SECONDS)
    times = json.loads(store.get(name))
    return None if times is None else (float(times[0]), float(times[1]))
