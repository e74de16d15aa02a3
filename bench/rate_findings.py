"""What a record of `bench.rates` says, quantity by quantity, beside the rates that models plan with. No GPU is needed."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from kitsune_mlir.machine import rates
from kitsune_mlir.machine.target import find_target

__all__ = ["Finding", "findings", "in_use", "table"]

BLOCKS = 132
TIME, RATE = "us", "GB/s"
READ = {"tile": "TMA, boxes of a matrix", "span": "TMA, spans", "plain": "loads of 16 bytes"}
LEAST_DEPTH = 256
"""From here on what the products take hides most of what the store does."""
ENDS = ("MMA_LOAD_RATE", "CONV_LINK_RATE", "ENGINES['mma'].load_rate", "ENGINES['chain'].load_rate", "PARTS_LOAD_RATE")
SUMS = ("MMA_SUSTAINED_LOADS", "CONV_CACHE_RATE", "Target.bulk_rate", "Target.cache_rate")
TURNS = ("MMA_TURN", "ENGINES['mma'].turn")
MEETS = ("MMA_MEET", "MEET", "CONV_EXCHANGE_CYCLES")
PARTIALS = ("PARTIAL_RATE",)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One quantity: its value in microseconds or in GB/s, and the rates that stand for it, in models."""

    quantity: str
    value: float
    unit: str
    used: tuple[str, ...] = ()


def findings(cases: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Of the cases of a record that succeeded."""
    right = {name: case for name, case in cases.items() if case["ok"]}
    return [*_hand_offs(right), *_reads(right), *_steps(right), *_meetings(right), *_splits(right)]


def table(cases: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines of a table in Markdown, and the cases that failed."""
    lines = ["| quantity | measured | in use |", "| --- | --- | --- |"]
    for found in findings(cases):
        used = ", ".join(f"`{name}` {in_use(name, found.unit):.4g}" for name in found.used)
        lines.append(f"| {found.quantity} | {found.value:.4g} {found.unit} | {used} |")
    failed = [name for name, case in cases.items() if not case["ok"]]
    return [*lines, "", f"Failed: {', '.join(failed) or 'none'}."]


def in_use(name: str, unit: str) -> float:
    """A rate of the table, a field of `rates.ENGINES` or `rates.SIMULATED`, or of the H200's `Target`, in us or GB/s."""
    if engine := re.fullmatch(r"(ENGINES|SIMULATED)\['(\w+)'\]\.(\w+)", name):
        value, own = getattr(getattr(rates, engine[1])[engine[2]], engine[3]), "s" if unit == TIME else "B/s"
    elif name.startswith("Target."):
        value, own = getattr(find_target("h200"), name.removeprefix("Target.")), "B/s"
    else:
        rate: Any = rates.rates()[name]
        value, own = float(rate), rate.unit
    scales = {"s": 1e6, "us": 1.0, "cycle": 1e6 / rates.CLOCK, "B/s": 1e-9, "B/us": 1e-3, "B/cycle": 1e-9 * rates.CLOCK}
    return value * scales[own]


def line(points: Mapping[int, float]) -> tuple[float, float]:
    """Start and slope of the line that fits points best."""
    slope, start = statistics.linear_regression(list(points), list(points.values()))
    return start, slope


def _median(case: Mapping[str, Any], note: str, grid: int = BLOCKS) -> float:
    return case["grids"][str(grid)][note]["median"]


def _hand_offs(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    parts = {
        way: {
            note: 1e-3 * _median(cases[f"hand_off_{way}"], note)
            for note in ("hop", "p10", "p90", "load", "product", "finish", "settle")
        }
        for way in ("post", "tile", "product", "bulk")
        if f"hand_off_{way}" in cases
    }
    if "post" in parts:
        post = parts["post"]
        spread = f"{post['p10']:.2f} to {post['p90']:.2f} by the pair"
        yield Finding(f"from a post to the end of the wait for it ({spread})", post["hop"], TIME, ("POST",))
    if "tile" in parts:
        tile = parts["tile"]
        yield Finding("from stores of 16 KB to the end of the wait for them", tile["hop"], TIME)
        yield Finding("a tile of 16 KB on, by loads and stores, all of it", tile["hop"] + tile["finish"], TIME)
    for way, stores in (("product", "stores by threads"), ("bulk", "stores by TMA")):
        if way in parts:
            took = parts[way]
            first = took["settle"] + took["hop"] + took["load"]
            used = ("MODE_HAND_OFF", "STREAMED_HAND_OFF")
            yield Finding(f"from the last store to another block's operands by TMA, {stores}", first, TIME, used)
            whole = first + took["product"] + took["finish"]
            yield Finding(f"from a sum to another block's sum of it, {stores}", whole, TIME, ("CHAIN_HAND_OFF",))


def _reads(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for way, told in READ.items():
        if case := cases.get(f"reads_{way}"):
            for grid in map(int, case["grids"]):
                each, busy = case["bytes"] / _median(case, "round", grid), "alone" if grid == 1 else f"each of {grid}"
                yield Finding(f"L2 to one multiprocessor, {busy}: {told}", each, RATE, ENDS if grid in (1, BLOCKS) else ())
            together = BLOCKS * case["bytes"] / _median(case, "all")
            yield Finding(f"L2 to all multiprocessors: {told}", together, RATE, SUMS)


def _steps(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    beyond = {}
    for name, case in cases.items():
        if not (match := re.fullmatch(r"step_(\d+)x(\d+)", name)):
            continue
        times: dict[int, dict[int, float]] = {}
        for program, found in case["microseconds"].items():
            depth, turns = map(int, re.findall(r"\d+", program))
            times.setdefault(depth, {})[turns] = found["median"]
        steps = {depth: line(found)[1] for depth, found in sorted(times.items())}
        tile = f"{match[1]} x {match[2]}"
        for depth, step in steps.items():
            yield Finding(f"a tile of {tile} more, sums of {depth}", step, TIME)
        start, _ = line({depth: step for depth, step in steps.items() if depth >= LEAST_DEPTH})
        beyond[int(match[1]) * int(match[2])] = start
        used = ("CHAIN_TURN",) if tile == "128 x 128" else ()
        yield Finding(f"a tile of {tile} more, beside its products", start, TIME, used)
    if len(beyond) > 1:
        start, slope = line(beyond)
        yield Finding("from a tile to the next, beside products and what grows with the tile", start, TIME, TURNS)
        stands = "`MMA_STORE_RATE` / `MMA_STORE_SHARE`"
        yield Finding(f"bytes of results by the time that they add ({stands})", 2e-3 / slope, RATE)


def _meetings(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    groups: dict[int, dict[int, Mapping[str, Any]]] = {}
    for name, case in cases.items():
        if match := re.fullmatch(r"exchange_(\d+)_\d+k", name):
            groups.setdefault(int(match[1]), {})[case["bytes"]] = case
    for pieces, group in sorted(groups.items()):
        grid = BLOCKS // pieces * pieces
        times = {bytes: 1e-3 * _median(case, "round", grid) for bytes, case in sorted(group.items())}
        if 0 in times:
            yield Finding(f"{pieces} blocks meet, without data", times.pop(0), TIME, MEETS)
        if len(times) > 1:
            start, slope = line(times)
            yield Finding(f"{pieces} blocks meet, beside their partial results", start, TIME, MEETS)
            yield Finding(f"partial results of {pieces} blocks, written and read, each", 2e-3 / slope, RATE, PARTIALS)
            together = f"partial results of {pieces} blocks, all together, each byte once"
            yield Finding(together, grid * 1e-3 / slope, RATE, ("PARTS_PARTIAL_RATE",))
    if case := cases.get("writes"):
        for grid in map(int, case["grids"]):
            each, busy = case["bytes"] / _median(case, "round", grid), "alone" if grid == 1 else f"each of {grid}"
            yield Finding(f"written to L2 by 16-byte stores, {busy}", each, RATE, PARTIALS if grid == BLOCKS else ())


def _splits(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    longer = {}
    for name, case in cases.items():
        if match := re.fullmatch(r"split_(\d+)x(\d+)", name):
            shared, whole = (case["microseconds"][part]["median"] for part in ("shared", "whole"))
            longer[int(match[1]) * int(match[2])] = shared - whole
            yield Finding(f"that four blocks share tiles of {match[1]} x {match[2]}", shared - whole, TIME)
    if len(longer) > 1:
        start, slope = line(longer)
        yield Finding("blocks of a product meet", start, TIME, MEETS)
        # A shared tile is stored by four blocks at once: three quarters of a whole one's store are saved.
        partials = slope + 0.75 * 2 / rates.MMA_STORE_RATE
        yield Finding("partial results of a product, written and read, each", 8e-3 / partials, RATE, PARTIALS)
