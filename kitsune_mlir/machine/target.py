"""Descriptions of the machines that programs are compiled for. Pure data: no IR and no driver is needed to read them."""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kitsune_mlir.errors import TargetError


@dataclass(frozen=True)
class Target:
    """What the planner knows about a machine.

    Rates are bytes a second and floating-point operations a second, sizes are bytes. The H200's DRAM and tensor rates are the
    ones measured for the project (a device copy, an 8192 x 8192 x 8192 bf16 product), the others are the vendor's.
    """

    name: str
    kind: str  # "host" or "gpu"
    workers: int  # multiprocessors of a GPU, hardware threads of a host: how many tile tasks run at a time
    fast_bytes: int  # what one worker keeps close: shared memory of a block, second-level cache of a core
    cache_bytes: int  # what all workers share: L2 of a GPU, last-level cache of a host
    dram_rate: float
    cache_rate: float
    matrix_rate: float  # bf16 products with f32 accumulation
    vector_rate: float  # f32 element-wise operations
    chip: str = ""  # the code generator's name for it, empty for the host
    bulk_rate: float = 0.0  # bulk copies from L2 to all workers together; 0 where it is not known
    launch_seconds: float = 0.0  # of a replayed graph that is submitted ahead: what is not its kernels' own time
    call_seconds: float = 0.0  # of the processor, for one call of a program of two small tensors
    operator_seconds: float = 0.0  # the same for PyTorch's `x + y`, its kernel on the host included
    ring_bytes: int = 9 << 20  # of L2 that rings between workers may take together without spilling to DRAM (on an H200)
    ring_rate: float = 3.1e12  # through rings with slots of 64 KiB, all workers in pairs (on an H200)
    part: float = 1.0  # of a whole machine, what this is

    @property
    def is_gpu(self) -> bool:
        """Whether programs for this target are CUDA kernels."""
        return self.kind == "gpu"

    def share(self, workers: int) -> "Target":
        """What so many of the workers have for themselves while others are as busy: as fast each, with their part of memory."""
        part = workers / self.workers
        rates = {
            name: getattr(self, name) * part for name in ("dram_rate", "cache_rate", "matrix_rate", "vector_rate", "bulk_rate")
        }
        sizes = {name: int(getattr(self, name) * part) for name in ("cache_bytes", "ring_bytes")}
        return replace(self, name=f"{self.name}/{workers}", workers=workers, part=self.part * part, **rates, **sizes)


HOST = Target(
    "host",
    "host",
    os.cpu_count() or 1,
    1 << 20,
    32 << 20,
    20e9,
    200e9,
    100e9,
    50e9,
    call_seconds=3.8e-6,
    operator_seconds=1.3e-6,
)
H200 = Target("h200", "gpu", 132, 232448, 50 << 20, 4.3e12, 7.0e12, 790e12, 60e12, "sm_90a", 10.5e12, 2.7e-6, 7.6e-6, 6.2e-6)
H100 = Target("h100", "gpu", 132, 232448, 50 << 20, 3.0e12, 7.0e12, 790e12, 60e12, "sm_90a", 10.5e12, 2.7e-6, 7.6e-6, 6.2e-6)
# No target of the compiler: it is here to be simulated. The vendor's figures for the 80 GB module (A100 data sheet), memory at
# the share of its rate that a copy reaches on the others.
A100 = Target("a100", "gpu", 108, 166912, 40 << 20, 1.8e12, 4.5e12, 290e12, 19.5e12, "sm_80", launch_seconds=4.5e-6)

# "sm_90a" names the code, not the machine: the H200's figures serve for planning.
TARGETS = {"host": HOST, "sm_90a": H200, "h200": H200, "h100": H100}


def find_target(name: str) -> Target:
    """The target called `name`, or a share of one ("h200/33"); TargetError lists the names there are."""
    whole, _, workers = name.partition("/")
    if whole in TARGETS and workers.isdecimal() and 0 < int(workers) <= TARGETS[whole].workers:
        return TARGETS[whole].share(int(workers))
    if name not in TARGETS:
        raise TargetError(f"unknown target '{name}'; known targets: {', '.join(TARGETS)}")
    return TARGETS[name]


MACHINES = {target.name: target for target in (H200, H100, A100)}
"""Machines that are described, by name; those of `TARGETS` can be compiled for."""


def find_machine(name: str | os.PathLike[str]) -> Target:
    """A described machine: a name of `MACHINES` in any case, or a TOML or JSON file.

    A file has fields of `Target` by name; `base` names a machine that the others are taken from.

    Raises:
        TargetError: there is no such machine; or a field of the file is unknown, missing or of the wrong type, which is named.
    """
    text = os.fspath(name)
    if text.lower() in MACHINES:
        return MACHINES[text.lower()]
    path = Path(text)
    if path.suffix not in (".toml", ".json"):
        raise TargetError(
            f"unknown machine '{text}'; known: {', '.join(MACHINES)}, or a .toml or .json file that describes one"
        )
    try:
        found = tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())
    except OSError as error:
        raise TargetError(f"{text}: {error.strerror}") from error
    except ValueError as error:
        raise TargetError(f"{text}: {error}") from error
    return _described(found, path)


def _described(found: Mapping[str, Any], path: Path) -> Target:
    if not isinstance(found, Mapping):
        raise TargetError(f"{path}: a machine is a table of fields")
    kinds = {field.name: field.type for field in fields(Target)}
    given = {"name": path.stem, "kind": "gpu", **{key: value for key, value in found.items() if key != "base"}}
    for key, value in given.items():
        if key not in kinds:
            raise TargetError(f"{path}: unknown field '{key}'; fields: base, {', '.join(kinds)}")
        wanted = {"str": (str,), "int": (int,), "float": (int, float)}[str(getattr(kinds[key], "__name__", kinds[key]))]
        if not isinstance(value, wanted) or isinstance(value, bool) or (value != 0 and wanted != (str,) and value < 0):
            raise TargetError(
                f"{path}: field '{key}' is {value!r}, a {'text' if wanted == (str,) else 'positive number'} is wanted"
            )
    if "base" in found:
        return replace(find_machine(str(found["base"])), **given)
    optional = ("chip", "bulk_rate", "launch_seconds", "call_seconds", "operator_seconds", "ring_bytes", "ring_rate", "part")
    missing = [field.name for field in fields(Target) if field.name not in given and field.name not in optional]
    if missing:
        raise TargetError(f"{path}: needs {', '.join(missing)} (or 'base', the name of a machine to take them from)")
    return Target(**given)
