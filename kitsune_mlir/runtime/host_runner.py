"""Runs a program's host code, fresh from the compiler or from a package's members."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from kitsune_mlir.runtime.host_code import HostCode
from kitsune_mlir.runtime.host_executor import HostExecutor

__all__ = ["HostRunner"]


class HostRunner:
    """The host's side of `Program`."""

    device = "cpu"

    def __init__(self, code: HostCode, threads: int | None = None):
        self._executor = HostExecutor(code, threads=threads)

    def run(self, pointers: Sequence[int], stream: int) -> None:
        """Run once; returns when all is done. `stream` is ignored."""
        self._executor.run(pointers)

    @staticmethod
    def artifacts(code: HostCode) -> dict[str, bytes]:
        """The members of a package that `from_artifacts` reads."""
        facts = {f.name: getattr(code, f.name) for f in dataclasses.fields(code) if f.name not in ("object_file", "llvm_ir")}
        return {"host.o": code.object_file, "host.ll": code.llvm_ir.encode(), "host.json": json.dumps(facts).encode()}

    @staticmethod
    def from_artifacts(artifacts: Mapping[str, bytes]) -> HostRunner:
        """Load stored code; compiled again from its LLVM IR where it was made on another processor.

        Raises:
            TargetError: the code cannot be linked here.
        """
        from kitsune_mlir.runtime.host_code import host_cpu

        facts = json.loads(artifacts["host.json"])
        facts["messages"] = tuple(facts["messages"])
        text, machine_code = artifacts["host.ll"].decode(), artifacts["host.o"]
        if facts["cpu"] != host_cpu():
            from kitsune_mlir.runtime.host_object import emit_object

            machine_code, facts["cpu"] = emit_object(text), host_cpu()
        return HostRunner(HostCode(object_file=machine_code, llvm_ir=text, **facts))
