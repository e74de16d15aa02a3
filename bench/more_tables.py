"""Tables of what a run has beside times: what the model of the chip said before, and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench import compile_time
from bench.tables import geometric_mean
from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import find_machine

__all__ = ["compile_table", "memory_table", "prediction_table"]

Entries = Mapping[str, Mapping[str, Any]]
SHOWN = 15
"""Cases that are named: the farthest ones."""
MOST, FAR = 1.5, 3.0
"""A prediction is near within the first factor, either way, and far beyond the second."""


def prediction_table(entries: Entries, predicted: Mapping[str, Any] | None = None) -> list[str]:
    """Milliseconds that the model of the chip predicts for a case, beside measured ones; the farthest are named.

    Args:
        predicted: a record of `bench.predictions collect`: what is predicted now. Else what was, when a case was measured.
    """
    if predicted is not None:
        said = predicted["milliseconds"]
        entries = {name: {**e, "predicted": said[name]} for name, e in entries.items() if said.get(name)}
    pairs = {name: _pair(e) for name, e in entries.items() if e.get("predicted") and "milliseconds" in e}
    if not pairs:
        return ["Not measured: `python -m bench.suite build` leaves a prediction beside each package."]
    off = {name: max(said / took, took / said) for name, (said, took) in pairs.items()}
    near, far = (sum(f <= most for f in off.values()) for most in (MOST, FAR))
    lines = [
        f"{len(pairs)} models: {near} predicted within a factor of {MOST} ({100 * near / len(pairs):.0f} %), {far} within "
        f"{FAR:g} ({100 * far / len(pairs):.0f} %); geometric mean of measured over predicted "
        f"{geometric_mean(took / said for said, took in pairs.values()):.2f}."
        + (f" Predicted at commit `{predicted['commit']:.12}`, `{predicted['command']}`." if predicted else "")
        + " The farthest ones, in microseconds:",
        "",
        "| case | predicted | measured | measured / predicted |",
        "| --- | --- | --- | --- |",
    ]
    for name in sorted(off, key=lambda n: -off[n])[:SHOWN]:
        said, took = pairs[name]
        lines.append(f"| {name} | {1e3 * said:.1f} | {1e3 * took:.1f} | {took / said:.2f} |")
    return lines


def _pair(entry: Mapping[str, Any]) -> tuple[float, float]:
    """Predicted and measured milliseconds of a replayed graph: of one of many that follow each other, where that is known.

    What was predicted is of one alone, with what its launch takes. Of many, the next one's tiles begin as they do behind a
    kernel of the same graph.
    """
    said, replayed = entry["predicted"], entry.get("back_to_back", {}).get("kitsune, graph")
    if replayed is None:
        return said, entry["own"]
    return said - 1e3 * (find_machine("H200").launch_seconds - rates.LAUNCH_GAP), replayed["median"]


def memory_table(entries: Entries) -> list[str]:
    """Memory of a call, weights and inputs included, beside that of Inductor's code; the largest shares are named."""
    shares, alone = {}, {}
    for name, e in entries.items():
        memory = e.get("memory", {})
        if {"kitsune", "compile"} <= memory.keys():
            ours, peer = memory["given"] + memory["kitsune"], memory["given"] + memory["compile"]
            shares[name] = ours / peer
            if "discarded" in memory:
                alone[name] = (ours - memory["discarded"]) / peer
    if not shares:
        return ["Not measured."]
    lines = [
        f"{len(shares)} models: geometric mean {geometric_mean(shares.values()):.2f} of what `torch.compile` takes, most "
        f"{max(shares.values()):.2f}. Megabytes at the highest point of a call, as PyTorch's allocator counts them: weights, "
        "inputs and results, packed copies of weights, arenas."
    ]
    if alone:
        lines[0] += (
            f" Without the model's own weights of which the program has copies (`Program.discard_weights`), {len(alone)} "
            f"models: geometric mean {geometric_mean(alone.values()):.2f}, most {max(alone.values()):.2f}."
        )
    lines[0] += " The largest shares:"
    lines += ["", "| case | given | kitsune | compile | share | without |", "| --- | --- | --- | --- | --- | --- |"]
    for name in sorted(shares, key=lambda n: -shares[n])[:SHOWN]:
        memory = entries[name]["memory"]
        given, own, peer = (memory[key] / 1e6 for key in ("given", "kitsune", "compile"))
        without = f"{alone[name]:.2f}" if name in alone else "–"
        lines.append(f"| {name} | {given:.1f} | {given + own:.1f} | {given + peer:.1f} | {shares[name]:.2f} | {without} |")
    return lines


def compile_table(record: Mapping[str, Any]) -> list[str]:
    """Seconds from a model to cubins, of a record of `bench.compile_time`."""
    cases, e = record["cases"], record["environment"]
    rows = {name: cases[name] for name in sorted(cases)}
    lines = [
        f"Seconds from an `nn.Module` in bf16 to cubins for {record['target']}, with nothing kept and from the cache; "
        f"importing torch and kitsune_mlir is not counted. {record['cores']} cores for each case{record.get('beside', '')}. "
        f"{e['device']}, PyTorch {e['torch']}, {e['date'][:10]}, commit `{e['commit']:.12}`; `{record['command']}`",
        "",
        compile_time.table(rows),
    ]
    if {"layers_12", "layers_48"} <= cases.keys():
        few, many = (cases[name]["cold"]["wall"] for name in ("layers_12", "layers_48"))
        lines.append(f"\n48 equal layers take {many / few:.2f} times as long as 12.")
    return lines
