"""Dumps of the IR between passes, and a table of the time each pass took, both in MLIR's layout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from torch_mlir import ir


@dataclass(frozen=True)
class IRPrinting:
    """How the IR is dumped: to `stream` (None: standard error), with locations, in generic form, also after a failure."""

    stream: TextIO | None = None
    debug_info: bool = False
    generic: bool = False
    after_failure: bool = False

    def dump(self, root: ir.Operation, title: str, valid: bool = True) -> None:
        """Write the whole module under a title. Invalid IR is printed in generic form: custom printers may crash on it."""
        stream = self.stream or sys.stderr
        text = root.get_asm(
            enable_debug_info=self.debug_info, print_generic_op_form=self.generic or not valid, assume_verified=valid
        )
        print(f"// -----// {title} //----- //\n{text.rstrip()}\n", file=stream)


NO_PRINTING = IRPrinting()


@dataclass
class Timing:
    """Wall time by pass, in the order in which they ran."""

    entries: list[tuple[str, float]] = field(default_factory=list)

    @contextmanager
    def measure(self, label: str) -> Iterator[None]:
        """Add the time that the body takes, in seconds, also when it raises."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.entries.append((label, time.perf_counter() - start))

    @property
    def total(self) -> float:
        """Seconds of all entries together."""
        return sum(seconds for _, seconds in self.entries)

    def report(self) -> str:
        """The table that `mlir-opt --mlir-timing` prints."""
        rule = "===" + "-" * 73 + "==="
        lines = [rule, "... Execution time report ...".center(79).rstrip(), rule]
        lines += [f"  Total Execution Time: {self.total:.4f} seconds", "", "  ----Wall Time----  ----Name----"]
        for label, seconds in [*self.entries, ("Total", self.total)]:
            share = 100 * seconds / self.total if self.total else 0.0
            lines.append(f"  {seconds:8.4f} ({share:5.1f}%)  {label}")
        return "\n".join(lines)
