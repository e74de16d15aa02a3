"""Whether a kernel's manifest that was read from a file can be one: sizes, numbers of blocks, parameters, tensor maps."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from kitsune_mlir.runtime.manifest import FORMAT, Manifest, Parameter, parameters_problem
from kitsune_mlir.runtime.plain import record, shown
from kitsune_mlir.runtime.tensormap import DTYPES, FILLS, PROMOTIONS, SWIZZLES

__all__ = ["check_manifest", "read_manifest"]

MOST_THREADS, MOST_SHARED, MOST_CLUSTER = 1024, 227 << 10, 16
"""What a block of a Hopper GPU has at most, and a cluster."""

MOST = 1 << 48
"""Bytes of a buffer: there are no more addresses."""


@dataclasses.dataclass(frozen=True)
class _Map:
    """A tensor map as `tensormap.encode` takes it."""

    dtype: str
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    fill: str
    steps: tuple[int, ...] = ()
    promotion: int = 256


@functools.lru_cache(maxsize=256)
def read_manifest(text: str) -> Manifest:
    """The manifest that `Manifest.to_json` wrote; the same one for the same text, as a package is checked and then run.

    Raises:
        ValueError: the text is no manifest of this format, or its figures do not fit; the message says which.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ValueError(f"not a kernel manifest of format {FORMAT}")
    manifest = record(Manifest, data, "the kernel's manifest")
    check_manifest(manifest)
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Raises ValueError: a figure of the manifest is impossible, or two do not fit; the message says which."""
    limits = {
        "threads": (1, MOST_THREADS),
        "shared_bytes": (0, MOST_SHARED),
        "slots": (0, 1 << 31),
        "scratch_bytes": (0, MOST),
        "partial_bytes": (0, MOST),
        "arena_bytes": (0, MOST),
        "tiles": (1, 1 << 31),
        "workers": (0, 1 << 31),
        "least_blocks": (1, 1 << 31),
        "cluster": (1, MOST_CLUSTER),
        "requests": (1, 1 << 20),
        "least_requests": (1, manifest.requests),
    }
    for name, (least, most) in limits.items():
        _require(least <= getattr(manifest, name) <= most, f"'{name}' is {getattr(manifest, name)}")
    for sizes in (manifest.input_bytes, manifest.result_bytes):
        _require(all(0 <= size < MOST for size in sizes), f"tensors have {list(sizes)} bytes")
    _require(all(tiles >= 0 for *_, tiles in manifest.tasks), f"tasks are {shown(manifest.tasks)}")
    known = len(manifest.counters) == manifest.slots or not manifest.debug
    _require(known, f"there are {manifest.slots} counters, and names of {len(manifest.counters)}")
    _check_parameters(manifest)


def _check_parameters(manifest: Manifest) -> None:
    """Pointers are in their order, and pointers and tensor maps show memory that there is."""
    problem = parameters_problem(manifest)
    _require(not problem, problem)
    sizes = {("arena", 0): manifest.arena_bytes}
    sizes |= {("input", n): size for n, size in enumerate(manifest.input_bytes)}
    sizes |= {("result", n): size for n, size in enumerate(manifest.result_bytes)}
    maps = [parameter for parameter in manifest.parameters if parameter.kind == "tensor_map"]
    for number, parameter in enumerate(maps):
        _check_map(parameter, sizes.get((parameter.of, parameter.index)), f"tensor map {number}")
    for number, parameter in enumerate(manifest.parameters[: -len(maps) or None]):
        size = sizes.get((parameter.kind, parameter.index), 0)
        inside = 0 <= parameter.offset < max(1, size) and (parameter.kind == "arena" or not parameter.offset)
        _require(inside, f"pointer {number} shows byte {parameter.offset} of {size}")


def _check_map(parameter: Parameter, size: int | None, name: str) -> None:
    _require(parameter.kind == "tensor_map" and size is not None, f"{name} describes {parameter.of} {parameter.index}")
    _require(0 <= parameter.offset < max(1, size or 0), f"{name} begins at byte {parameter.offset} of {size}")
    described: Any = record(_Map, parameter.map, name)
    rank = len(described.shape)
    lengths = (len(described.strides_bytes) + 1, len(described.box), len(described.steps) or rank)
    _require(1 <= rank <= 5 and lengths == (rank, rank, rank), f"{name} has {rank} dimensions, strides and box for {lengths}")
    _require(all(1 <= extent <= 1 << 32 for extent in described.shape), f"{name} has the shape {list(described.shape)}")
    _require(all(1 <= extent <= 256 for extent in described.box), f"{name} has the box {list(described.box)}")
    _require(all(1 <= step <= 8 for step in described.steps), f"{name} has the steps {list(described.steps)}")
    strides = described.strides_bytes
    _require(all(0 <= s < 1 << 40 and s % 16 == 0 for s in strides), f"{name} has the strides {list(strides)}")
    choices = {"dtype": DTYPES, "swizzle": SWIZZLES, "fill": FILLS, "promotion": PROMOTIONS}
    for field, known in choices.items():
        value = getattr(described, field)
        _require(value in known, f"'{field}' of {name} is {shown(value)}, none of {', '.join(map(str, known))}")
    last = sum((extent - 1) * stride for extent, stride in zip(described.shape, strides, strict=False))
    last += described.shape[-1] * DTYPES[described.dtype][1]
    _require(parameter.offset + last <= (size or 0), f"{name} ends at byte {parameter.offset + last} of {size}")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(f"the kernel's manifest: {problem}")
