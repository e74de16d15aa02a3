"""One case on the device: right or wrong, how long beside its peers, how far from its floor."""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import kitsune_mlir
from bench.case import LIMITS, BenchCase, Inputs
from bench.peers import make_peers
from bench.timing import graphed, launches, peak_of, sample_calls, summary

__all__ = ["floor_of", "measure", "prepared", "relative_errors"]


SHORT, BATCH = 0.2, 20
"""Cases under so many milliseconds are also timed so many calls at a time: a graph's launch alone takes the device 2.7 µs,
which every single call has between its events, whoever's it is."""


def relative_errors(got: Any, wanted: Any, compared: Tensor | None = None) -> list[float]:
    """‖out - ref‖ / ‖ref‖ of each tensor of two outputs of the same structure; nan stays nan.

    Args:
        compared: the rows that count, as booleans; None: all of them.
    """
    errors = []
    for g, w in zip(pytree.tree_leaves(got), pytree.tree_leaves(wanted), strict=True):
        if compared is not None:
            g, w = g[compared], w[compared]
        scale = w.double().norm().clamp_min(1e-30)
        errors.append(((g.double() - w.double()).norm() / scale).item())
    return errors


def exact(model: nn.Module, args: Sequence[Tensor]) -> Any:
    """The model's output in float64; in float32 where the inputs are so large that float64 would not fit beside them.

    Some operators of libraries (grouped products) have no float64: then float32, too, and its products are no TF32.
    """

    def output(dtype: torch.dtype) -> Any:
        with torch.no_grad():
            return copy.deepcopy(model).to(dtype)(*(a.to(dtype) if a.is_floating_point() else a for a in args))

    if sum(a.numel() for a in args) < 1 << 27:
        with contextlib.suppress(RuntimeError):
            return output(torch.float64)
    return output(torch.float32)


def prepared(path: Path, case: BenchCase) -> tuple[Inputs, kitsune_mlir.Program]:
    """Model and fresh inputs on the GPU, and the package at `path` with the model's weights."""
    model, args = case.make("cuda", True)
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    return (model, args), kitsune_mlir.load(path, weights=state)


def floor_of(case: BenchCase, model: nn.Module, args: Sequence[Tensor], results: Any) -> dict[str, int]:
    """What the case must do at least: operations of its products, and bytes that are read and written once each."""
    operations = case.operations
    if operations is None:
        # PyTorch's counter knows products; the other forms of attention have rules that do not know grouped heads.
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            model(*args)
        operations = counter.get_total_flops()
    weights = [*model.parameters(), *model.buffers()]
    tensors = [*weights, *args, *(t for t in pytree.tree_leaves(results) if isinstance(t, Tensor))]
    moved = sum(t.numel() * t.element_size() for t in tensors)
    unread = case.unread(model, tuple(args)) if case.unread else 0
    return {"operations": operations, "bytes": moved - unread}


def measure(path: Path, case: BenchCase, peers: Sequence[str], rates: Mapping[str, float]) -> dict[str, Any]:
    """Run a package on random inputs against float64, twice and replayed from a graph; time it beside its peers.

    Args:
        peers: of `bench.peers.PEERS`; with none, only the program is timed.
        rates: of the device, by `bench.timing.rates`.

    Returns:
        The case's entry of a record (see `bench.records`).
    """
    torch.backends.cudnn.benchmark = True  # peers have cuDNN's fastest convolutions, not those of its heuristic
    torch.backends.cudnn.allow_tf32 = case.dtype != "f32"  # f32 is compared as f32, as products are
    gc.collect()  # what the case before left in circles would be freed while this one's memory is counted
    others_hold = torch.cuda.memory_allocated()
    (model, args), program = prepared(path, case)
    calls = {"kitsune": lambda: program(*args)}
    given = _given(model, args)
    peaks = {"kitsune": _memory(calls["kitsune"], others_hold + given)}
    wanted = exact(model, args)
    with torch.no_grad():
        first, second = program(*args), program(*args)
        calls["kitsune, graph"] = graphed(calls["kitsune"])
        replayed = calls["kitsune, graph"]()
        plain = model(*args)
    torch.cuda.synchronize()
    compared = ~case.undecided(model, tuple(args)) if case.undecided else None
    worst = [e for results in (first, second, replayed) for e in relative_errors(results, wanted, compared)]
    work = floor_of(case, model, args, first)
    own_error = max(relative_errors(plain, wanted, compared), key=lambda e: math.inf if e != e else e)
    limit = max(2 * own_error, LIMITS["f32"]) if case.by_eager else LIMITS[case.dtype]
    entry = {
        "case": case.name,
        "group": case.group,
        "dtype": case.dtype,
        "ok": all(e <= limit for e in worst),
        "error": max(worst, key=lambda e: math.inf if e != e else e),
        "limit": limit,
        "eager_error": own_error,
        "undecided_rows": int((~compared).sum()) if compared is not None else 0,
        "repeats_differ": max(relative_errors(first, second)) > 0,
        "goal": case.goal,
        "measure": case.measure,
        **work,
        "floor": 1e3 * max(work["operations"] / rates["matrix"], work["bytes"] / rates["copy"]),
    }
    del wanted, first, second, replayed, plain
    entry |= described(program)
    entry |= predicted(path)
    others, missing = make_peers(model, args, peers, peaks)
    entry["memory"] = {"given": given, **peaks}
    entry["launches"] = launches(calls["kitsune"])
    if peers:
        entry["eager_launches"] = launches(lambda: model(*args))
    every = {**calls, **others}
    captured = {n: c for n, c in every.items() if n.endswith("graph")}
    timed = sample_calls({n: c for n, c in every.items() if n not in captured}) | sample_calls(captured, queued=True)
    entry["milliseconds"] = {name: summary(samples) for name, samples in timed.items()}
    entry["missing"] = missing
    entry |= verdict(entry)
    if entry["own"] < SHORT:
        timed = sample_calls(captured, each=3, batch=BATCH, queued=True)
        entry["back_to_back"] = {name: summary(samples) for name, samples in timed.items()}
    entry["memory"]["discarded"] = program.discard_weights()  # last: the model is gone with them
    return entry


def _given(model: nn.Module, args: Sequence[Tensor]) -> int:
    """Bytes of the storages of weights and inputs, each counted once."""
    storages = [t.untyped_storage() for t in (*model.parameters(), *model.buffers(), *args)]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def _memory(call: Callable[[], Any], others: int) -> int:
    """Bytes that a program takes at most: packed weights and arenas, which it keeps, and those of a call.

    Args:
        others: bytes that were allocated without it.
    """
    call()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - others + peak_of(call)


def predicted(path: Path) -> dict[str, float]:
    """What `build` left beside the package: milliseconds by the model of the chip; nothing where there is none."""
    beside = path.with_suffix(".predicted.json")
    return {"predicted": json.loads(beside.read_text())["milliseconds"]} if beside.exists() else {}


def described(program: kitsune_mlir.Program) -> dict[str, Any]:
    """What the compiler made of a case: stages by engine, registers, spills, stages that it says are slow."""
    engines: dict[str, int] = {}
    for choice in program.summary.get("engines", []):
        engines[choice["engine"]] = engines.get(choice["engine"], 0) + 1
    kernels = program.summary.get("kernels", [])[:1]  # none of a model that computes nothing
    spilled = sum(kernel["spill_store_bytes"] + kernel["spill_load_bytes"] for kernel in kernels)
    registers = sum(kernel["registers"] for kernel in kernels)
    slow = len(program.summary.get("slow", ()))
    return {"engines": engines, "registers": registers, "spilled_bytes": spilled, "slow_stages": slow}


def verdict(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Own time, best peer, speedup and the achieved fraction of the floor's speed, from an entry's medians."""
    times = {name: t["median"] for name, t in entry["milliseconds"].items()}
    own = min(times[n] for n in ("kitsune", "kitsune, graph"))
    peers = {n: t for n, t in times.items() if not n.startswith("kitsune")}
    best = min(peers, key=lambda n: peers[n]) if peers else None
    return {
        "own": own,
        "best_peer": best,
        "speedup": peers[best] / own if best else None,
        "fraction": entry["floor"] / own,
    }
