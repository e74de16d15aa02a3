"""The words of `Program.explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.runtime.signature import Access, Output

__all__ = ["accesses_text", "changes_text", "explain_text", "size", "slow_text"]

SHOWN = 5
"""Slow stages that a warning names; `explain` names all."""


def size(count: float, unit: str = "B") -> str:
    """A quantity with a decimal prefix: 1234567 -> "1.23 MB"."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(count) < 1000 or prefix == "T":
            return f"{count:.3g} {prefix}{unit}"
        count /= 1000
    return f"{count:.3g} {unit}"


def _waits(stage: Mapping[str, Any]) -> str:
    meaning = {
        "tile": "the tiles of {} that hold its elements",
        "row": "the tiles of {} in its rows",
        "halo": "the tiles of {} in its rows and their neighbours",
        "strided": "the tiles of {} in its rows (strided)",
        "indexed": "the tiles of {} that hold the rows which its indices name",
        "all": "all of {}",
    }
    parts = [meaning[policy].format(name) for name, policy in stage["waits"]]
    parts += [f"all readers of bytes it reuses ({name})" for name in stage["after"]]
    return "; ".join(parts) or "nothing"


def slow_text(slow: Sequence[Mapping[str, Any]], most: int = SHOWN) -> str:
    """A program's slow stages, the slowest first, as lines of text."""
    worst = sorted(slow, key=lambda stage: -stage["microseconds"])
    many = "stages" if len(slow) != 1 else "stage"
    lines = [f"kitsune: {len(slow)} {many} of this program will be far slower than the chip needs to be:"]
    for stage in worst[:most]:
        source = f"{stage['source']}: " if stage["source"] else ""
        lines.append(
            f"  {source}stage {stage['task']} (engine {stage['engine']}, {stage['tiles']} tile{'s' * (stage['tiles'] != 1)}) is"
            f" predicted to take {_small(1e-6 * stage['microseconds'])}, {_small(1e-6 * stage['floor_microseconds'])} would do:"
            f" {stage['reason']}"
        )
    if len(worst) > most:
        lines.append(f"  and {len(worst) - most} more; `explain` of the program lists all")
    return "\n".join(lines)


def explain_text(summary: Mapping[str, Any]) -> str:
    """Stages, engines, tiles, waits, memory and launches of a compiled program, as lines of text."""
    stages = summary.get("stages", [])
    if not stages:
        return "This program computes nothing: its outputs are its arguments."
    lines = [
        f"{len(stages)} stages in {summary['launches']} launch{'es' if summary['launches'] != 1 else ''}"
        f" on {summary['target']}; {size(summary['operations'], 'FLOP')} in products."
    ]
    lines += [f"  {sentence}." for sentence in summary.get("replanned", [])]
    if summary.get("slow"):
        lines += slow_text(summary["slow"], len(summary["slow"])).removeprefix("kitsune: ").splitlines()
    engines = {e["task"]: e for e in summary.get("engines", [])}
    for stage in stages:
        ops = ", ".join(f"{n} {kind}" + ("s" if n > 1 and kind != "generic" else "") for kind, n in stage["ops"].items())
        tile = "x".join(map(str, stage["tile"])) or "everything"
        used = engines.get(stage["name"])
        pieces = used.get("pieces", 1) if used else 1
        sizes = "x".join(map(str, stage["sizes"])) or ("one block of work" if pieces == 1 else "one row of work")
        lines.append(f"  {stage['name']}: {ops or 'data movement'}")
        shared = f", each shared by {pieces} blocks" if pieces > 1 else ""
        lines.append(f"    tiles of {tile} over {sizes}: {stage['tasks']} task{'s' if stage['tasks'] != 1 else ''}{shared}")
        engine = used["engine"] if used else stage["engine"]
        lines.append(f"    engine {engine}; waits for {_waits(stage)}")
        for reason in used["declined"] if used else ():
            lines.append(f"    not {reason[0]}: {reason[1]}")
        lines.append(f"    tiles read {size(stage['reads'])}, write {size(sum(stage['writes']))}")
    fused = summary["compulsory_bytes"] + 2 * summary["between_bytes"]
    lines += [
        f"Memory: {size(summary['arena_bytes'])} arena for intermediates between stages.",
        f"Traffic: {size(summary['compulsory_bytes'])} in and out, {size(summary['between_bytes'])} between stages;"
        f" one kernel an operation would move {size(summary['unfused_bytes'])}"
        f" ({100 * (1 - fused / summary['unfused_bytes']):.0f} % less here)."
        if summary["unfused_bytes"]
        else f"Traffic: {size(summary['compulsory_bytes'])} in and out.",
        f"Floor: {size(summary['floor_seconds'], 's') if summary['floor_seconds'] >= 1 else _small(summary['floor_seconds'])}"
        " at the target's rates.",
    ]
    for kernel in summary.get("kernels", []):
        lines.append("Kernel: " + ", ".join(f"{key} {value}" for key, value in kernel.items()) + ".")
    return "\n".join(lines)


def changes_text(outputs: Sequence[Output]) -> str:
    """The arguments that a program changes, as a line of text; "" if there are none."""
    changed = [output for output in outputs if output.mutates]
    there = ", ".join(output.mutates or "" for output in changed if output.in_place)
    copied = ", ".join(output.mutates or "" for output in changed if not output.in_place)
    parts = [f"Written where they lie: {there}."] * bool(there) + [f"Computed apart and copied: {copied}."] * bool(copied)
    return " ".join(parts)


def accesses_text(accesses: Sequence[Access]) -> str:
    """What a program reads and writes, a range of bytes a line."""
    width = max((len(access.tensor) for access in accesses), default=0)
    return "\n".join(f"{a.tensor:{width}}  {a.mode:5}  bytes {a.offset} to {a.offset + a.bytes}" for a in accesses)


def _small(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
