"""Assembled kernels on disk, by their PTX, the chip and the assembler."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from pathlib import Path

from kitsune_mlir.cache.store import Store
from kitsune_mlir.codegen.gpu.backend import cubin as assembler
from kitsune_mlir.codegen.gpu.backend.cubin import Cubin, KernelResources
from kitsune_mlir.codegen.gpu.backend.ptxas import find_ptxas, run
from kitsune_mlir.runtime.plain import record

__all__ = ["CubinCache", "assembler_version"]

KIND = "cubins"


class CubinCache:
    """Kernels that were assembled before, with what ptxas said of them."""

    def __init__(self, store: Store):
        self._store = store

    def get(self, ptx: str, chip: str) -> Cubin | None:
        """What `assemble_best` has made of a text; None if that is not known, or its file is damaged."""
        data = self._store.read(KIND, _key(ptx, chip))
        if data is None:
            return None
        head, _, code = data.partition(b"\n")
        try:
            facts = json.loads(head)
            if facts.pop("sha256") != hashlib.sha256(code).hexdigest():
                return None
            return record(Cubin, {**facts, "data": code}, "a kept kernel")
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def put(self, ptx: str, made: Cubin) -> None:
        """Keep what a text became."""
        facts = {field.name: getattr(made, field.name) for field in dataclasses.fields(Cubin) if field.name != "data"}
        facts["kernels"] = {name: dataclasses.asdict(used) for name, used in made.kernels.items()}
        head = json.dumps({**facts, "sha256": hashlib.sha256(made.data).hexdigest()})
        self._store.write(KIND, _key(ptx, made.chip), head.encode() + b"\n" + made.data)


def _key(ptx: str, chip: str) -> str:
    return hashlib.sha256("\0".join([chip, assembler_version(), _rules(), ptx]).encode()).hexdigest()


@functools.cache
def assembler_version() -> str:
    """What assembles here, and which one."""
    program = find_ptxas()
    if program is not None:
        return run([str(program), "--version"], 60.0)[1]
    try:
        return f"nvJitLink {importlib.metadata.version('nvidia-nvjitlink')}"
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _rules() -> str:
    """How a text is assembled: which levels are tried is written there."""
    return Path(assembler.__file__).read_text() + str(dataclasses.fields(KernelResources))
