"""Charts of recorded measurements as SVG: speed beside the best peer, and the roofline. Needs matplotlib (extra `bench`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw", "draw_breadth", "draw_curves", "draw_loads"]

Entries = Mapping[str, Mapping[str, Any]]


def draw(entries: Entries, rates: Mapping[str, float], folder: Path) -> list[Path]:
    """Write `speedup.svg` and `roofline.svg`.

    Args:
        entries: measured cases of the headline by name.
        rates: of the device: operations and bytes a second.
    """
    _prepare(folder)
    return [_speedup(entries, folder / "speedup.svg"), _roofline(entries, rates, folder / "roofline.svg")]


def draw_breadth(entries: Entries, path: Path) -> list[Path]:
    """Write a bar for each case, losses first; of hundreds the hundred slowest ones beside their peers."""
    _prepare(path.parent)
    timed = sorted((item for item in entries.items() if item[1].get("speedup")), key=lambda item: item[1]["speedup"])
    named = {
        name.removeprefix("breadth_").removeprefix("lib_").removeprefix("op_"): {**entry, "goal": None}
        for name, entry in timed[:100]
    }
    return [_speedup(named, path)]


def draw_curves(entries: Entries, path: Path) -> list[Path]:
    """Write losses by step of each case, beside eager's."""
    from matplotlib import pyplot

    _prepare(path.parent)
    rows = -(-len(entries) // 4)
    figure, places = pyplot.subplots(rows, 4, figsize=(10, 2.1 * rows), squeeze=False)
    for axes in places.flat[len(entries) :]:
        axes.set_visible(False)
    for axes, (name, entry) in zip(places.flat, entries.items(), strict=False):
        at = [n * entry["every"] for n in range(len(entry["eager"]))]
        axes.plot(at, entry["eager"], color="#b5483c", linewidth=2.2, alpha=0.5, label="eager")
        axes.plot(at, entry["kitsune"], color="#2a7f4f", linewidth=0.9, label="kitsune")
        axes.set_title(name, fontsize=8)
    places.flat[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return [path]


def draw_loads(entries: Entries, folder: Path, limit: str = "goodput 5 ms") -> list[Path]:
    """Write `load-SCENARIO-ARRIVALS.svg`: p99 and goodput of each system against the rate at which requests come."""
    from matplotlib import pyplot

    _prepare(folder)
    written = []
    for scenario, arrivals in dict.fromkeys((e["scenario"], e["arrivals"]) for e in entries.values() if "rate" in e):
        own = [e for e in entries.values() if "rate" in e and (e.get("scenario"), e.get("arrivals")) == (scenario, arrivals)]
        own.sort(key=lambda entry: entry["rate"])
        figure, (late, good) = pyplot.subplots(1, 2, figsize=(9, 3.4))
        for system in dict.fromkeys(name for entry in own for name in entry["systems"]):
            found = [(e["rate"], e["systems"][system]) for e in own if system in e["systems"]]
            style = {"marker": "o", "markersize": 3, "linewidth": 2 if system == "engine" else 1, "label": system}
            late.plot([rate for rate, _ in found], [one["p99"] for _, one in found], **style)
            good.plot([rate for rate, _ in found], [one[limit] for _, one in found], **style)
        for axes, label in ((late, "p99, ms"), (good, f"{limit}, a second")):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("requests a second")
            axes.set_ylabel(label)
            axes.spines[["top", "right"]].set_visible(False)
        good.legend(fontsize=7)
        figure.suptitle(f"{scenario}, {arrivals}", fontsize=9)
        written.append(_save(figure, folder / f"load-{scenario}-{arrivals}.svg"))
    return written


def _prepare(folder: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    # Equal data gives equal files: no date, and names of elements from a fixed salt.
    matplotlib.rcParams.update({"svg.hashsalt": "kitsune", "font.size": 9, "svg.fonttype": "none"})
    folder.mkdir(parents=True, exist_ok=True)


def _speedup(entries: Entries, path: Path) -> Path:
    from matplotlib import pyplot

    timed = {name: e for name, e in entries.items() if e.get("speedup")}
    figure, axes = pyplot.subplots(figsize=(8, 0.32 * len(timed) + 1.4))
    places = range(len(timed))
    values = [e["speedup"] for e in timed.values()]
    axes.barh(places, values, color=["#2a7f4f" if v >= 1 else "#b5483c" for v in values], height=0.65)
    for place, entry in zip(places, timed.values(), strict=True):
        if entry["goal"] and entry["measure"] == "speedup":
            axes.plot([entry["goal"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
        inside = entry["speedup"] > 0.1 * max(values)
        where = {"x": entry["speedup"] - 0.04, "ha": "right", "color": "white"} if inside else {"x": entry["speedup"] + 0.04}
        axes.text(y=place, s=f"{entry['speedup']:.2f}", va="center", **where)
    axes.axvline(1, color="gray", linewidth=0.8, linestyle="--")
    axes.set_yticks(list(places), list(timed))
    axes.invert_yaxis()
    axes.set_xlabel("times faster than the fastest peer (black mark: goal)")
    axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, path)


def _roofline(entries: Entries, rates: Mapping[str, float], path: Path) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    shown = {n: e for n, e in entries.items() if e.get("milliseconds") and e["operations"] and e.get("speedup")}
    intensities = [e["operations"] / e["bytes"] for e in shown.values()] or [1.0]
    ridge = rates["matrix"] / rates["copy"]
    span = (min(*intensities, ridge) / 2, max(*intensities, ridge) * 2)
    axes.plot([span[0], ridge, span[1]], [span[0] * rates["copy"], rates["matrix"], rates["matrix"]], color="gray")
    for number, (name, entry) in enumerate(shown.items()):
        x = entry["operations"] / entry["bytes"]
        best = entry["milliseconds"][entry["best_peer"]]["median"]
        own, peer = (entry["operations"] / (ms * 1e-3) for ms in (entry["own"], best))
        axes.plot([x, x], [own, peer], color="lightgray", linewidth=1, zorder=0)
        axes.plot(x, own, "o", color="#2a5fa0", label="this compiler" if not number else None)
        axes.plot(x, peer, "_", color="#b5483c", markersize=11, markeredgewidth=2, label="best peer" if not number else None)
        place = {"textcoords": "offset points", "xytext": (3, -4), "rotation": -35, "va": "top", "fontsize": 7}
        axes.annotate(name, (x, own), **place)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte that must cross DRAM")
    axes.set_ylabel("operations a second")
    axes.set_title("gray: a device copy's bandwidth and an 8192³ product's rate in the same run", fontsize=9)
    axes.legend(loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
    pyplot.close(figure)
    return path
