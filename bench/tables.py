"""Tables of the benchmark's families of cases."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "HOST_PEERS",
    "back_to_back",
    "chain_table",
    "fraction",
    "geometric_mean",
    "group_table",
    "host_table",
    "library_table",
    "mode_table",
    "product_table",
    "reached",
    "row_table",
]

HOST_PEERS = ("eager", "compile")
Entries = Mapping[str, Mapping[str, Any]]


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers; nan of none."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def reached(entry: Mapping[str, Any]) -> float | None:
    """What the entry's goal is about: its speedup, or its fraction of the floor's speed; None if it was not measured."""
    return entry.get("speedup") if entry.get("measure", "speedup") == "speedup" else fraction(entry)


def fraction(entry: Mapping[str, Any]) -> float | None:
    """Fraction of the floor's speed; None if it was not measured. Where it is the goal, of short cases replayed back to back.

    The floor comes from rates of kernels that take a millisecond. Between the events around a single replay, an empty kernel
    takes 2.7 to 4.7 µs, by machine: a tenth of a short case, which its code has no part in. (Such cases read more than L2
    holds: replays of four sets of weights in turn, 470 MB, were 0 to 2 % slower than replays of one.)
    """
    replayed = entry.get("back_to_back", {}).get("kitsune, graph") if entry.get("measure") == "fraction" else None
    return entry["floor"] / replayed["median"] if replayed else entry.get("fraction")


def back_to_back(entry: Mapping[str, Any]) -> str:
    """Times faster than the best peer when graphs are replayed one after the other; a dash where that was not measured."""
    times = {name: t["median"] for name, t in entry.get("back_to_back", {}).items()}
    peers = [t for name, t in times.items() if not name.startswith("kitsune")]
    return f"{min(peers) / times['kitsune, graph']:.2f}" if peers else "–"


def totals(entries: Entries) -> list[str]:
    """How a family did as a whole: goals, geometric mean, slowest and fastest."""
    timed = {n: v for n, e in entries.items() if (v := reached(e)) is not None}
    missed = [n for n, v in timed.items() if entries[n]["goal"] and v < entries[n]["goal"]]
    wrong = [n for n, e in entries.items() if not e["ok"]]
    lines = [f"{len(entries)} cases; wrong or failed: {', '.join(wrong) or 'none'}."]
    if timed:
        worst, best = min(timed, key=lambda n: timed[n]), max(timed, key=lambda n: timed[n])
        with_goal = [n for n in timed if entries[n]["goal"]]
        mean = geometric_mean(timed.values())
        goals = f"; goal reached by {len(with_goal) - len(missed)} of {len(with_goal)}" if with_goal else ""
        lines.append(f"Geometric mean {mean:.2f}, least {timed[worst]:.2f} ({worst}), most {timed[best]:.2f} ({best}){goals}.")
    replayed = {n: float(text) for n, e in entries.items() if (text := back_to_back(e)) != "–"}
    if replayed:
        worst = min(replayed, key=lambda n: replayed[n])
        mean = geometric_mean(replayed.values())
        lines.append(
            f"Replayed back to back, {len(replayed)} short cases: geometric mean {mean:.2f} times the best peer's speed, "
            f"least {replayed[worst]:.2f} ({worst})."
        )
    if any(entries[n]["measure"] == "fraction" for n in replayed):
        lines.append(
            "Their shares of the floor are of such replays, too: between the events around one alone, an empty kernel takes "
            "2.7 to 4.7 µs."
        )
    return lines


def group_table(entries: Entries) -> list[str]:
    """One row a case."""
    lines = [
        "| case | kitsune | best peer | which | times faster | back to back | of the floor | goal | run |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, e in entries.items():
        if "milliseconds" not in e:
            lines.append(f"| {name} | failed: {e.get('problem', '')} | | | | | | {e.get('goal') or ''} | {e['run'] + 1} |")
            continue
        best = e["best_peer"]
        peer = f"{e['milliseconds'][best]['median']:.4f}" if best else "–"
        faster = f"{e['speedup']:.2f}" if best else "–"
        goal = f"{e['goal']} {'×' if e['measure'] == 'speedup' else 'of the floor'}" if e["goal"] else ""
        lines.append(
            f"| {name} | {e['own']:.4f} | {peer} | {best or '–'} | {faster} | {back_to_back(e)} | "
            f"{100 * (fraction(e) or math.nan):.0f} % | {goal} | {e['run'] + 1} |"
        )
    return [*lines, "", *totals(entries)]


def _grid(entries: Entries, place: Mapping[str, tuple[str, str]], corner: str, unit: str) -> list[str]:
    """A table of what each case reached, by row and column."""
    rows, columns = (list(dict.fromkeys(p[n] for p in place.values())) for n in (0, 1))
    cells = {place[name]: reached(entry) for name, entry in entries.items()}

    def cell(row: str, column: str) -> str:
        if (row, column) not in cells:
            return ""
        value = cells[row, column]
        return "failed" if value is None else f"{value:.2f}"

    lines = [f"{unit}; cases that were not measured are empty.", "", f"| {corner} | {' | '.join(columns)} |"]
    lines.append("| --- " * (1 + len(columns)) + "|")
    lines += [f"| {row} | {' | '.join(cell(row, column) for column in columns)} |" for row in rows]
    return [*lines, "", *totals(entries)]


def _placed(entries: Entries, pattern: str, row: str, column: str) -> dict[str, tuple[str, str]]:
    """Row and column of each case, by named groups of a pattern that its name matches."""
    found = {}
    for name in entries:
        match = re.fullmatch(pattern, name)
        assert match is not None, name
        found[name] = (row.format(**match.groupdict()), column.format(**match.groupdict()))
    return found


def chain_table(entries: Entries) -> list[str]:
    """MLP sweep: width by depth and rows."""
    place = _placed(entries, r"mlp_(?P<w>\d+)x(?P<d>\d+)_(?P<r>\d+)", "{w}", "{d} layers, {r} rows")
    return _grid(entries, place, "width", "Times faster than the best peer")


def product_table(entries: Entries) -> list[str]:
    """Products: shape by form of the operands."""
    place = _placed(entries, r"product_(?P<s>[\dx]+)_(?P<f>\w\w)", "{s}", "{f}")
    return _grid(entries, place, "m×n×k", "Times faster than the best peer; n: operand stored as read, t: transposed")


def row_table(entries: Entries) -> list[str]:
    """Row reductions: length by function and type."""
    place = _placed(entries, r"rows_(?P<o>\w+?)_(?P<n>\d+)_(?P<t>\w+)", "{n}", "{o} {t}")
    return _grid(entries, place, "row length", "Fraction of a device copy's bandwidth")


MODES = ("temporal", "spatial", "separate")


def mode_table(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Modes of a pipeline: microseconds of one replay in each, the choice, and how far it is from the best."""
    lines = [f"| case | {' | '.join(MODES)} | chosen | times the best |", "| --- " * (3 + len(MODES)) + "|"]
    notes, losses = [], {}
    for result in results:
        case = result["case"]
        if "problem" in result:
            notes.append(f"- {case}: {result['problem']}.")
            continue
        modes = result["modes"]

        def time(mode: str, modes: Mapping[str, Any] = modes) -> float | None:
            entry = modes.get(mode, {})
            return modes.get(entry.get("same_as", mode), {}).get("one")

        times = {mode: t for mode in MODES if (t := time(mode)) is not None}
        chosen = time("auto")
        if chosen is None or not times:
            continue
        losses[case] = chosen / min(*times.values(), chosen)
        cells = [f"{times[mode]:.1f}" if mode in times else "–" for mode in MODES]
        lines.append(f"| {case} | {' | '.join(cells)} | {modes['auto']['mode']} {chosen:.1f} | {losses[case]:.2f} |")
        notes += [f"- {case}, {mode}: {why}." for mode in MODES if (why := _reason(modes.get(mode, {})))]
    far = [case for case, loss in losses.items() if loss > 1.05]
    near = f"Chosen within 5 % of the best: {len(losses) - len(far)} of {len(losses)}"
    lines += ["", f"{near}; the others: {', '.join(far) or 'none'}."]
    return [*lines, "", "Modes that a model cannot have:", "", *notes] if notes else lines


def _reason(entry: Mapping[str, Any]) -> str:
    """Why there is no program of a mode of its own."""
    if "problem" in entry:
        return entry["problem"]
    refused = [said for said in entry.get("remarks", ()) if "cannot be" in said]
    return refused[0] if refused and "same_as" in entry else ""


def host_table(cases: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The record's cases as Markdown, losses first."""
    timed = sorted((e for e in cases.values() if e.get("speedup")), key=lambda e: e["speedup"])
    lines = ["| case | kitsune | eager | compile | times faster | error |", "| --- " * 6 + "|"]
    for e in timed:
        times = [f"{e['milliseconds'][name]['median']:.3f}" for name in ("kitsune", *HOST_PEERS)]
        name = e["case"] + (" (small)" if e["small"] else "")
        lines.append(f"| {name} | {' | '.join(times)} | {e['speedup']:.2f} | {e['errors']['kitsune']:.0e} |")
    for small, kind in ((False, "models"), (True, "small nets")):
        speeds = [e["speedup"] for e in timed if e["small"] == small]
        if speeds:
            lines.append(f"\n{len(speeds)} {kind}: geometric mean {geometric_mean(speeds):.2f}, least {min(speeds):.2f}.")
    bad = [name for name, e in cases.items() if not e.get("ok")]
    return [*lines, f"\nWrong or failed: {', '.join(bad) or 'none'}."]


def library_table(cases: Entries) -> list[str]:
    """Models through torch.compile: programs, what PyTorch runs, times of whole calls."""

    def count(value: int | list[Any]) -> int:
        return len(value) if isinstance(value, list) else value

    lines = [
        "| model | programs | in PyTorch | error | first call, s | ms | eager, ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, e in cases.items():
        programs = sum(e["programs"]) if isinstance(e["programs"], list) else e["programs"]
        times = " | ".join(f"{e['milliseconds'][peer]:.2f}" for peer in ("kitsune", "eager"))
        lines.append(
            f"| {name} | {programs} | {count(e['in_pytorch'])} | {e['error']:.0e} | {e['first_call_seconds']} | {times} |"
        )
    return lines
