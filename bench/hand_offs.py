"""Tables of what it costs to hand tiles on: the records of `test/gpu/handoff_programs.py` and `test/gpu/queue_programs.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["copies_table", "hand_off_table", "ring_table"]

COPIES = {"copies_128k": "128 KB", "copies_1m": "1 MB"}
CHAINS = {"handoff_256": "through L2, eight layers of width 256", "handoff_1024": "through L2, eight layers of width 1024"}
CLUSTERS = {
    f"handoff_cluster{size}_{kb}k": f"cluster of {size}, each block gives {kb} KB to each other"
    for size in (2, 4, 8)
    for kb in (4, 8)
}
CLUSTER_GOAL = 1.2  # microseconds, from the last sum to the first product that reads it
RINGS = {
    "pairs_64k_4_wide": "64 KB, 4 slots, 256 threads a block",
    "pairs_64k_4": "64 KB, 4 slots, 128 threads a block",
    "pairs_64k_4_plain": "the same without hints to L2",
    "pairs_128k_4": "128 KB, 4 slots",
}
RING_GOAL = 3.0  # terabytes a second


def copies_table(record: Mapping[str, Any]) -> list[str]:
    """Two dependent copies in one kernel and in two, in microseconds."""
    lines = ["| tiles | one kernel | two | overhead | goal |", "| --- | --- | --- | --- | --- |"]
    for case, found in _found(record, COPIES):
        one, two = (1e6 * found["seconds"][which] for which in ("one", "two"))
        goal = 100 * record["goals"]["copies"]
        lines.append(f"| {COPIES[case]} | {one:.1f} | {two:.1f} | {100 * found['overhead']:+.1f} % | at most {goal:.0f} % |")
    return lines


def hand_off_table(record: Mapping[str, Any], queues: Mapping[str, Any]) -> list[str]:
    """Microseconds from one tile's sums to the product that reads them."""
    lines = ["| way | hand-off | goal |", "| --- | --- | --- |"]
    goal = 1e6 * record["goals"]["handoff"]
    lines += [f"| {CHAINS[case]} | {1e6 * found['boundary']:.2f} | {goal} |" for case, found in _found(record, CHAINS)]
    lines += [f"| {CLUSTERS[case]} | {found['handoff_us']:.2f} | {CLUSTER_GOAL} |" for case, found in _found(queues, CLUSTERS)]
    return lines


def ring_table(queues: Mapping[str, Any]) -> list[str]:
    """Terabytes a second through all rings together."""
    lines = ["| ring | TB/s | goal |", "| --- | --- | --- |"]
    return [
        *lines,
        *(f"| {RINGS[case]} | {found['terabytes_per_second']:.2f} | {RING_GOAL} |" for case, found in _found(queues, RINGS)),
    ]


def _found(record: Mapping[str, Any], names: Mapping[str, str]) -> list[tuple[str, Mapping[str, Any]]]:
    results = {result["case"]: result for result in record["results"]}
    return [(name, results[name]) for name in names if name in results]
