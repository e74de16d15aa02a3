"""The file that says which models are served: TOML.

limit = 32                        # most requests of a launch
capacity = 1024                   # most requests that wait
[models.a]
package = "tower.kit"             # beside this file
[models.b]
package = "tower.kit"             # the same code ...
weights = "b.safetensors"         # ... with other weights
deadline = 0.05                   # seconds, for requests that bring none
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.load import load
from kitsune_mlir.runtime.plain import record, shown
from kitsune_mlir.runtime.program import Program

__all__ = ["Served", "read_models"]


@dataclasses.dataclass(frozen=True)
class _Model:
    package: str
    weights: str = ""
    deadline: Any = None  # a number of seconds, which TOML may have written without a point


@dataclasses.dataclass(frozen=True)
class _File:
    models: dict[str, Any]
    limit: int = 32
    capacity: int = 1024


@dataclasses.dataclass(frozen=True)
class Served:
    """What a file of models says.

    Attributes:
        programs: by name. Models of one package share its code.
        deadlines: seconds, of those that have one.
        limit, capacity: as of `serving.serve.serve`.
    """

    programs: dict[str, Program]
    deadlines: dict[str, float]
    limit: int
    capacity: int


def read_models(path: str | Path) -> Served:
    """Load the models of a file.

    Raises:
        ArgumentError: the file is no TOML, or an entry is unknown, missing or of another type; or as of `load`.
        OSError: a file cannot be read.
        PackageError: as of `load`.
    """
    path = Path(path)
    try:
        found = record(_File, tomllib.loads(path.read_text()), "the file")
        models = {name: record(_Model, entry, f"model '{name}'") for name, entry in found.models.items()}
        deadlines = {name: _seconds(name, model.deadline) for name, model in models.items() if model.deadline is not None}
    except ValueError as error:  # tomllib's own is one
        raise ArgumentError(f"{path}: {error}") from error
    first: dict[str, Program] = {}
    programs = {}
    for name, model in models.items():
        weights = _weights(path.parent / model.weights) if model.weights else None
        known = first.get(model.package)
        if known is None:
            programs[name] = first[model.package] = load(path.parent / model.package, weights)
        else:
            programs[name] = known.with_weights(weights) if weights else known
    return Served(programs, deadlines, found.limit, found.capacity)


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"'deadline' of model '{name}' is {shown(value)}, where a number of seconds above 0 was expected")
    return float(value)


def _weights(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ArgumentError(f"{path}: not a safetensors file ({error})") from error
