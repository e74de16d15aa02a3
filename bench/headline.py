"""The table of the benchmark's headline cases."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bench.case import LIMITS
from bench.peers import PEERS
from bench.tables import back_to_back, geometric_mean

__all__ = ["headline"]

Entry = Mapping[str, Any]

HEADLINE = (
    "case",
    "launches (eager)",
    "kitsune",
    "kitsune, graph",
    *PEERS,
    "floor",
    "of the floor",
    "times faster",
    "goal",
    "DRAM MB",
)
"""Columns of the headline's table, before the number of the run."""


def headline(entries: Mapping[str, Entry]) -> list[str]:
    """The table of the headline cases, and wins and losses in words."""
    lines = [f"| {' | '.join(HEADLINE)} | run |", "| --- " * (len(HEADLINE) + 1) + "|"]
    lines += [f"| {' | '.join(_row(name, e))} | {e['run'] + 1} |" for name, e in entries.items()]
    timed = {n: e for n, e in entries.items() if e.get("speedup")}
    won = [n for n, e in timed.items() if e["speedup"] >= 1]
    lost = [n for n, e in timed.items() if e["speedup"] < 1]
    met = [n for n, e in timed.items() if e["speedup"] >= e["goal"]]
    wrong = [n for n, e in entries.items() if not e["ok"]]
    errors = [e["error"] for e in timed.values() if e["ok"]]
    lines += [
        "",
        f"- Geometric mean: {geometric_mean(e['speedup'] for e in timed.values()):.2f} times the best peer's speed.",
        f"- Faster than the best peer: {', '.join(won) or 'none'}.",
        f"- Slower than the best peer: {', '.join(lost) or 'none'}.",
        f"- Goals reached: {len(met)} of {len(entries)}{': ' + ', '.join(met) if met else ''}.",
        f"- Wrong or failed: {', '.join(wrong) or 'none'}. Largest error of the others: {max(errors, default=math.nan):.1e}, "
        f"against float64 (limit {LIMITS['bf16']:g}).",
    ]
    reasons = {e["dram_missing"] for e in entries.values() if e.get("dram_missing")}
    lines += [f"- No DRAM bytes where the counters could not be read: {'; '.join(sorted(reasons))}."] if reasons else []
    return lines


def _row(name: str, e: Entry) -> list[str]:
    """The cells of a headline case, in the order of `HEADLINE`."""
    if "milliseconds" not in e:
        return [name, f"failed: {e.get('problem', '')}", *[""] * (len(HEADLINE) - 2)]
    times, dram = e["milliseconds"], e.get("dram_bytes")
    return [
        name,
        f"{e['launches']} ({e.get('eager_launches', '–')})",
        *(_time(times.get(p), p == e["best_peer"]) for p in ("kitsune", "kitsune, graph", *PEERS)),
        f"{e['floor']:.3f}",
        f"{100 * e['fraction']:.0f} %",
        f"{e['speedup']:.2f}" if e["speedup"] else "–",
        back_to_back(e),
        f"{e['goal']}",
        f"{dram['kitsune'] / 1e6:.1f} (eager {dram['eager'] / 1e6:.1f})" if dram else "–",
    ]


def _time(t: Mapping[str, float] | None, best: bool) -> str:
    """A median and half the distance of the outer tenths, as a part of it."""
    if t is None:
        return "–"
    text = f"{t['median']:.3f} ±{50 * (t['p90'] - t['p10']) / t['median']:.0f} %"
    return f"**{text}**" if best else text
