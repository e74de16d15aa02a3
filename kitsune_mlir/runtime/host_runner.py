"""Runs a program's host code, fresh from the compiler or from a package's members."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
from collections.abc import Mapping, Sequence

import numpy as np

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.call_table import Calls, CallTable
from kitsune_mlir.runtime.host_code import HostCode, check_cut, control_words, host_cpu
from kitsune_mlir.runtime.host_executor import HostExecutor
from kitsune_mlir.runtime.object_check import check_object
from kitsune_mlir.runtime.plain import record, shown
from kitsune_mlir.runtime.runner import Launched, WeightTable

__all__ = ["HostRunner"]

CODE, TEXT, FACTS = "host.o", "host.ll", "host.json"
MOST = 1 << 48
"""Bytes: there are no more addresses on the processors that this runs on."""


class HostRunner:
    """The host's side of `Program`.

    Attributes:
        run: runs once, with pointers; returns when all is done. A stream is ignored.
    """

    device = "cpu"

    def __init__(self, code: HostCode, threads: int | None = None):
        self._executor = HostExecutor(code, threads=threads)
        self.run = self._executor.run

    def run_requests(self, rows: Sequence[Sequence[int]], stream: int) -> list[KitsuneError | None]:
        """Run for several requests; returns when all is done. `stream` is ignored."""
        return self._executor.run_requests(rows)

    def run_calls(self, table: WeightTable, calls: Calls, results: Sequence[tuple[int, int]], stream: int) -> Launched | None:
        """As of `Runner`; returns when all is done. `stream` is ignored."""
        count, words = calls.count, self._executor.code.arguments
        filler = table.kept.get(self)
        if filler is None or filler.most < count:
            programs, given = table.pointers.shape
            inputs, maps, room = words - 1 - given - len(results), np.zeros((programs, 0), np.uint64), 1 << count.bit_length()
            arenas = np.zeros(room, np.uint64)  # the executor has its own
            filler = table.kept[self] = CallTable(calls.models, table.pointers, inputs, len(results), arenas, maps, {}, [])
        rows = np.empty((count, words), np.uint64)
        numbers = filler.fill(rows.ctypes.data, 0, calls, results)
        if numbers is None:
            return None
        errors = self._executor.run_requests(rows[:, :-1].tolist())
        return numbers, {n: error for n, error in enumerate(errors) if error is not None}

    @property
    def most_requests(self) -> int:
        """As many as there are numbers for their tiles: the code holds for any number."""
        return self._executor.most_requests

    def calls(self, stream: int) -> None:
        """None: nothing is launched."""

    @staticmethod
    def artifacts(code: HostCode) -> dict[str, bytes]:
        """The members of a package that `read_code` reads."""
        facts = dataclasses.asdict(dataclasses.replace(code, object_file=b"", llvm_ir=""))
        del facts["object_file"], facts["llvm_ir"]
        return {CODE: code.object_file, TEXT: code.llvm_ir.encode(), FACTS: json.dumps(facts).encode()}

    @staticmethod
    def read_code(artifacts: Mapping[str, bytes]) -> HostCode:
        """The code in a package's members; nothing is linked.

        Raises:
            ValueError: a member is missing or one too many, or the figures are none of a program; the message says which.
        """
        if set(artifacts) != {CODE, TEXT, FACTS}:
            raise ValueError(f"host code is {CODE}, {TEXT} and {FACTS}, not {', '.join(artifacts)}")
        facts = json.loads(artifacts[FACTS])
        if not isinstance(facts, dict) or {"object_file", "llvm_ir"} & set(facts):
            raise ValueError(f"{FACTS} holds {shown(facts)}")
        code = record(HostCode, facts | {"object_file": artifacts[CODE], "llvm_ir": artifacts[TEXT].decode()}, FACTS)
        for name in ("task_count", "semaphore_slots", "control_bytes", "scratch_bytes", "arena_bytes"):
            if not 0 <= getattr(code, name) < MOST:
                raise ValueError(f"'{name}' of {FACTS} is {getattr(code, name)}")
        if code.control_bytes != (needed := 4 * control_words(code.semaphore_slots, len(code.cut))):
            raise ValueError(f"'control_bytes' of {FACTS} is {code.control_bytes}, not {needed}")
        if code.arguments != len(code.argument_bytes) + 1:
            raise ValueError(f"{FACTS} has {code.arguments} arguments and sizes of {len(code.argument_bytes)} and the arena")
        check_cut(code)
        if not re.fullmatch(r"[A-Za-z_][\w.$]*", code.name, re.ASCII):
            raise ValueError(f"the entry's name is {shown(code.name)}")
        if code.cpu == host_cpu() and platform.machine() == "x86_64":  # else the text is compiled, or another format is linked
            check_object(code.object_file)
        return code

    @staticmethod
    def from_artifacts(artifacts: Mapping[str, bytes], threads: int | None = None) -> HostRunner:
        """Load stored code; compiled again from its LLVM IR where it was made on another processor.

        Args:
            threads: workers of one call; None is all processors.

        Raises:
            CompileError: the LLVM IR cannot be compiled here.
            TargetError: the code cannot be linked here.
            ValueError: as of `read_code`.
        """
        code = HostRunner.read_code(artifacts)
        if code.cpu != host_cpu():
            from kitsune_mlir.runtime.host_object import emit_object

            code = dataclasses.replace(code, object_file=emit_object(code.llvm_ir), cpu=host_cpu())
        return HostRunner(code, threads)
