"""Recorded measurements as a page: `python -m bench.report [FILE...]`.

Merges FILEs (of `bench.suite run --json`) into bench/results/, one file for a device and a date; then writes bench/README.md
and the charts in bench/charts/ from the newest measurement of every case. A test checks that the page is what the files say.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.case import LIMITS
from bench.hand_offs import copies_table, hand_off_table, ring_table
from bench.peers import PEERS
from bench.records import Record, merge
from bench.tables import (
    back_to_back,
    chain_table,
    geometric_mean,
    group_table,
    host_table,
    mode_table,
    product_table,
    row_table,
)

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
HOST = "host.json"
BROAD = ("breadth", "library", "operators", "random")  # groups with a picture of one bar a case
CUTS = {"dlrm_2048": 44, "gcast_512": 57, "mgn_20k_120k": 58, "nerf_256k": 98, "llama8b_prefill_128": 49}
"""Percent of eager's DRAM traffic that should go: what Kitsune's authors report for these models."""
Entry = Mapping[str, Any]


def file_of(run: Mapping[str, Any]) -> Path:
    """Where a run's cases are kept: "bench-nvidia-h200-2026-11-21.json"."""
    where = run["environment"]
    device = re.sub(r"[^a-z0-9]+", "-", where["device"].lower()).strip("-")
    return RESULTS / f"bench-{device}-{where['date'][:10]}.json"


def keep(paths: Iterable[Path]) -> list[Path]:
    """Merge records into the files of their devices and dates; the files that changed."""
    changed = {}
    for path in paths:
        record = Record.open(path)
        for target in {file_of(run) for run in record.runs}:
            cases = {n: e for n, e in record.cases.items() if e["run"] >= 0 and file_of(record.run_of(n)) == target}
            into = changed.get(target) or Record.open(target)
            changed[target] = merge([Record(None, record.runs, cases)], into)
    for record in changed.values():
        record.write()
    return list(changed)


def newest() -> Record:
    """The last measurement of every case."""
    return merge((Record.open(path) for path in sorted(RESULTS.glob("bench-*.json"), key=lambda p: p.name[-15:])), Record())


def ordered(record: Record) -> dict[str, Entry]:
    """Entries in the order of the catalogue; cases that it no longer has are left out."""
    from bench.cases import all_cases

    return {name: record.cases[name] for name in all_cases() if name in record.cases}


def where(run: Mapping[str, Any]) -> str:
    """Where and when a run was made, in one line."""
    e = run["environment"]
    speed = ""
    if "rates" in run:
        speed = f"; product {run['rates']['matrix'] / 1e12:.0f} TFLOP/s, copy {run['rates']['copy'] / 1e12:.2f} TB/s"
    commit, dirty, _ = e["commit"].partition("-dirty")
    return (
        f"{e['device']}, driver {e['driver']}, PyTorch {e['torch']}, {e['date'][:10]}, commit `{commit[:12]}{dirty}`; "
        f"`{run['command']}`{speed}"
    )


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


def report() -> str:
    """The text of bench/README.md."""
    record = newest()
    entries = ordered(record)
    groups: dict[str, dict[str, Entry]] = {}
    for name, entry in entries.items():
        groups.setdefault(entry["group"], {})[name] = entry
    lines = [
        "# Measurements",
        "",
        "Generated by `python -m bench.report` from `bench/results/*.json`; `bench/suite.py` says how to make those.",
        "",
        "Milliseconds by CUDA events: median of 30 calls, ± half the distance between the 10 % and 90 % quantiles. A row comes",
        "from one process, its columns interleaved; the fastest peer is bold. *Graph*: replayed from a CUDA graph. *Floor*:",
        "the larger of operations at the rate of an 8192³ product and of bytes that must cross DRAM at the rate of a device",
        "copy, both measured in the same run. Replays of graphs are queued before the first one runs, so that the device's",
        "time is measured, not the host's. *Back to back*: times faster where 20 replays of a graph follow each other (one",
        "alone has 2.7 µs of launching between its events, whoever's it is; short cases only). *DRAM*: read and written by",
        "one call from a cold L2, by the hardware's counters. All results were compared with float64 in that run (with float32",
        "for inputs of 2²⁷ elements and more). Runs up to commit b0cd322 did not queue replays: short cases there have the",
        "host's launching, 5 to 16 µs, between their events, their peers as well.",
        "",
    ]
    if "headline" in groups:
        lines += ["## Models", "", *headline(groups.pop("headline")), ""]
        lines += ["![Speed beside the best peer](charts/speedup.svg)", "", "![Roofline](charts/roofline.svg)", ""]
    lines += ["## DRAM traffic", "", *dram(entries), ""]
    tables = {"mlp": chain_table, "product": product_table, "rows": row_table}
    titles = {
        "breadth": "Models that the compiler was not built around", "library": "Models of libraries",
        "operators": "Operators", "operators_more": "Operators in the other type", "random": "Random models",
        "layers": "Layers", "zoo": "Other models", "small": "Small models", "roofline": "A chain beside a large product",
        "mlp": "Chains of layers", "ffn": "Two layers with GELU: d, 4d, d", "product": "Products",
        "map": "Maps of one gigabyte", "rows": "Row reductions of one gigabyte",
        "gemv": "Few rows", "attention": "Attention", "conv": "Convolutions",
        "conv_last": "Convolutions, all in channels-last memory", "conv_pair": "Pairs of convolutions",
        "conv_pair_last": "Pairs of convolutions, all in channels-last memory", "depthwise": "Depthwise convolutions",
    }  # fmt: skip
    for group, title in titles.items():
        if group in groups:
            lines += [f"## {title}", "", *tables.get(group, group_table)(groups[group]), ""]
            lines += [f"![Speed beside the best peer](charts/{group}.svg)", ""] * (group in BROAD)
    lines += ["## The planner's tiles", "", *tiles(), ""]
    lines += ["## Modes of a pipeline", "", *modes(), ""]
    lines += ["## Handing tiles on", "", *hand_offs(), ""]
    lines += ["## Cost of a call", "", *call_cost(), ""]
    lines += [
        "## Library models through torch.compile",
        "",
        *library(),
        "",
        "## Tasks of the generic engine",
        "",
        *generic(),
        "",
    ]
    if (RESULTS / HOST).exists():
        lines += ["## Host", "", *host(), ""]
    lines += ["## Correctness on the device", "", *correctness(), spills(entries), *slow(entries), ""]
    lines += ["## Not measured", "", *missing(entries), ""]
    lines += ["## Runs", "", "*dirty*: built from that commit with changes that were not committed yet.", ""]
    lines += [*(f"{n}. {where(run)}" for n, run in enumerate(record.runs, 1)), ""]
    return "\n".join(lines)


def load(name: str) -> dict[str, Any]:
    """A recorded run that is no record of cases."""
    return json.loads((RESULTS / name).read_text())


def dram(entries: Mapping[str, Entry]) -> list[str]:
    """Bytes that one call reads and writes in DRAM, beside what it must."""
    counted = {name: e for name, e in entries.items() if e.get("dram_bytes")}
    if not counted:
        return ["Not measured: `python -m bench.counters DIR PATTERN... --json FILE` reads the hardware's counters."]
    note = (
        "Megabytes that one call from a cold L2 reads and writes in DRAM, by the hardware's counters, and the least that it "
        "has to (inputs, weights and results once). L2 held lines written before, which count where the call pushed them "
        "out; what the call left there itself does not. *Cut*: of eager's traffic; *possible*: the cut that only the least "
        "would be."
    )
    head = "| case | kitsune | eager | least | cut | possible | goal |"
    lines = [note, "", head, "| --- | --- | --- | --- | --- | --- | --- |"]
    beyond = []
    for name, e in counted.items():
        own, eager = (e["dram_bytes"][key] for key in ("kitsune", "eager"))
        cut, possible, goal = 100 * (1 - own / eager), 100 * (1 - e["bytes"] / eager), CUTS.get(name)
        cells = [name, f"{own / 1e6:.1f}", f"{eager / 1e6:.1f}", f"{e['bytes'] / 1e6:.1f}", f"{cut:.0f} %", f"{possible:.0f} %"]
        lines.append(f"| {' | '.join(cells)} | {f'{goal} %' if goal else ''} |")
        if goal and goal > possible:
            beyond.append(
                f"`{name}`: a cut of {goal} % is out of reach. What has to move once, weights above all, is "
                f"{100 * e['bytes'] / eager:.0f} % of what eager moves; the call moves {own / e['bytes']:.2f} times as much."
            )
    return [*lines, *([""] if beyond else []), *beyond]


def missing(entries: Mapping[str, Entry]) -> list[str]:
    """What the catalogue has and the records do not."""
    from bench.cases import all_cases

    groups: dict[str, list[str]] = {}
    for case in all_cases().values():
        groups.setdefault(case.group, []).append(case.name)
    lines = []
    for group, names in groups.items():
        left = [n for n in names if "milliseconds" not in entries.get(n, {})]
        if left:
            lines.append(f"- {group}: {len(left)} of {len(names)} cases{': ' + ', '.join(left) if len(left) <= 14 else ''}.")
    for peer in PEERS:
        timed = sum(peer in e.get("milliseconds", {}) for e in entries.values())
        if timed < len(entries):
            lines.append(f"- {peer}: measured for {timed} of {len(entries)} recorded cases.")
    return lines


def tiles() -> list[str]:
    """How far the planner's tiles are from the best of their neighbours."""
    run = load("tiles-h200.json")
    lines = ["| stage | engine | planner's tile | µs | best tile | µs | planner's time of the best |", "| --- " * 7 + "|"]
    losses = []
    for stage in run["stages"].values():
        times, (planned, engines) = stage["milliseconds"], stage["tiles"][0]
        best = min(times, key=lambda name: times[name])
        losses.append(times[planned] / times[best])
        cells = (f"{stage['case']} {stage['stage']}", engines[0], planned, f"{1e3 * times[planned]:.1f}", best)
        lines.append(f"| {' | '.join(cells)} | {1e3 * times[best]:.1f} | {losses[-1]:.2f} |")
    within = sum(loss <= 1.1 for loss in losses)
    note = (
        "Stages timed alone in the planner's tile and in its neighbours (`python -m bench.tiles`): "
        f"{within} of {len(losses)} within 10 % of the best, geometric mean {geometric_mean(losses):.3f}."
    )
    return [f"{note} {where({**run, 'command': 'python -m bench.tiles run DIR'})}", "", *lines[:2], *sorted(lines[2:])]


def modes() -> list[str]:
    """Each model in each mode, beside what the compiler chooses."""
    note = (
        "Microseconds of one replay of a CUDA graph, all modes of a model in one run (`python -m bench.modes`). *Separate*: "
        "several kernels, with programmatic dependent launch."
    )
    lines = [note]
    found = load("modes-h200.json")
    for run in found.get("records", [found]):  # several runs, or one as `bench.modes` wrote it
        lines += ["", f"{run.get('note', '')} {where(run)}".strip(), "", *mode_table(run["results"])]
    return lines


def hand_offs() -> list[str]:
    """What it costs that tiles of one stage wait for tiles of another."""
    record, queues = load("handoff-h200.json"), load("queues-h200.json")
    copies = (
        "Two dependent copies of 132 tiles, the second one's in the opposite order, in one kernel whose tiles wait for tiles, "
        "beside the two as kernels one after the other in a CUDA graph; microseconds."
    )
    waits = (
        "Microseconds from sums that are ready to the next product that reads them. Through L2: the time of a chain of "
        "products with its waits less that without, a boundary. Through a cluster: a round in which each block gives a part "
        "to each other one and waits for theirs."
    )
    rings = "Rings through L2 between the two multiprocessors of each TPC, 66 pairs."
    return [
        *[copies, "", *copies_table(record), "", waits, "", *hand_off_table(record, queues), ""],
        *[rings, "", *ring_table(queues), "", *(where(run) for run in (record, queues))],
    ]


def call_cost() -> list[str]:
    """What a call costs the processor."""
    run = load("call-h200.json")
    rows = [f"| {name} | {value:.2f} |" for name, value in run["microseconds"].items()]
    note = "Microseconds of a call of a program of two inputs and one output, enqueued back to back, and of its parts."
    return [f"{note} {where(run)}", "", "| what | µs |", "| --- | --- |", *rows]


def spills(entries: Mapping[str, Entry]) -> str:
    """Which of the measured kernels keep registers in memory."""
    spilled = [f"{name} ({e['spilled_bytes']} bytes)" for name, e in entries.items() if e.get("spilled_bytes")]
    return f"- Kernels above that spill registers: {', '.join(spilled) or 'none'} of {len(entries)}."


def slow(entries: Mapping[str, Entry]) -> list[str]:
    """How many stages the compiler says are far above their floor, of the cases that were measured since it says so."""
    counted = {name: e["slow_stages"] for name, e in entries.items() if "slow_stages" in e}
    many = [f"{name} ({n})" for name, n in counted.items() if n]
    return [f"- Stages far above their own floor: {', '.join(many) or 'none'} of {len(counted)} cases."] if counted else []


def _count(value: int | list[Any]) -> str:
    """A number, or what there is of each graph."""
    return (
        " + ".join(map(str, value))
        if value and isinstance(value, list) and isinstance(value[0], int)
        else str(len(value) if isinstance(value, list) else value)
    )


def library() -> list[str]:
    """Models of libraries through torch.compile."""
    run = load("library-h200.json")
    rows = [
        f"| {r['case']} | {_count(r['programs'])} | {_count(r['in_pytorch'])} | {r['error']:.0e} | {r['first_call_seconds']} |"
        f" {r['milliseconds']['kitsune']:.2f} | {r['milliseconds']['eager']:.2f} |"
        for r in run["results"]
    ]
    note = (
        'Unmodified models of Transformers (2 layers) and layers of PyG through `torch.compile(backend="kitsune")`, f32, small'
        " sizes: graphs that became programs, graphs that stayed in PyTorch, error beside eager. Milliseconds are of whole"
        " calls, measured beside other work on the device: how fast they are is for later, and PyG's scatters are slow now."
    )
    head = [
        "| model | programs | in PyTorch | error | first call, s | ms | eager, ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return [f"{note} {where(run)}", "", *head, *rows]


def host() -> list[str]:
    """The host target beside PyTorch on the same processor."""
    run = Record.open(RESULTS / HOST)
    environments = dict.fromkeys(
        "{device}, PyTorch {torch}, {day}, commit `{commit:.12}`".format(**e, day=e["date"][:10])
        for e in (run.run_of(name)["environment"] for name in run.cases)
    )
    note = (
        "Milliseconds of a call in f32, median of rounds in which the peers take turns, all in one process; faster than the "
        "better of eager and `torch.compile`; error against float64."
    )
    return [f"{note} {'; '.join(environments)}; `python -m bench.host`", "", *host_table(run.cases)]


def generic() -> list[str]:
    """Tasks of the general engine."""
    run = load("generic-h200.json")
    times = {f"{r['case']} {task}": us for r in run["results"] for task, us in r.get("microseconds", {}).items()}
    rows = [f"| {name} | {us:.1f} |" for name, us in times.items()]
    note = "Microseconds of tasks that only the generic engine takes; `python -m bench.generic compare FILE` predicts them."
    return [f"{note} {where(run)}", "", "| task | µs |", "| --- | --- |", *rows]


def correctness() -> list[str]:
    """The recorded checks that time nothing."""

    def right(run: Mapping[str, Any]) -> str:
        return f"{sum(r['ok'] for r in run['results'])} of {len(run['results'])} right"

    small, graphs, checks = load("zoo-small-h200.json"), load("graphs-h200.json"), load("sanitizer-h200.json")
    held, full = load("soak-h200.json"), load("soak-full-h200.json")
    one = full["results"][0]
    often = f"{one['launches']:,} launches one after the other and {one['interleaved']:,} on four streams"
    tools = ", ".join(sorted({r["tool"] for r in checks["results"]}))
    return [
        f"- Small zoo, f32 and bf16, against float64: {right(small)}. {where(small)}",
        f"- Generated graphs: {right(graphs)}. {where(graphs)}",
        f"- {often}, results compared with the first: small zoo, {right(held)}. {where(held)}",
        f"- The same of the zoo at full size (bf16): {right(full)}. {where(full)}",
        f"- compute-sanitizer: {sum(r['errors'] != 0 for r in checks['results'])} of {len(checks['results'])} runs not clean "
        f"({tools}). {where(checks)}",
    ]


def main(paths: list[str]) -> int:
    """Merge the given records, write the page and the charts."""
    from bench.charts import draw, draw_breadth

    for path in keep(map(Path, paths)):
        print(path.relative_to(FOLDER.parent))
    (FOLDER / "README.md").write_text(report())
    record = newest()
    shown = {n: e for n, e in ordered(record).items() if e["group"] == "headline" and e.get("milliseconds")}
    if shown:
        # Rates differ a little from run to run: those of the first case's run stand for all.
        for path in draw(shown, record.run_of(next(iter(shown)))["rates"], FOLDER / "charts"):
            print(path.relative_to(FOLDER.parent))
    for group in BROAD:
        broad = {n: e for n, e in ordered(record).items() if e["group"] == group and e.get("milliseconds")}
        for path in draw_breadth(broad, FOLDER / "charts" / f"{group}.svg") if broad else ():
            print(path.relative_to(FOLDER.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
