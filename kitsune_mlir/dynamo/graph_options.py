"""What a user may choose about the cutting of graphs, beside the compiler's own options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.options import Options, options_of

__all__ = ["MODES", "GraphOptions", "options_of_backend"]

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    # A program is one launch or a few: there is nothing to be gained by recording them.
    "reduce-overhead": {},
    "max-autotune": {"tune": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}
"""torch.compile's modes, as options of ours."""


@dataclasses.dataclass(frozen=True)
class GraphOptions:
    """How graphs are cut.

    Attributes:
        require_full: raise an `UnsupportedError` where an operator would run in PyTorch.
        run_in_torch: operators that PyTorch runs, such as `"aten.mm.default"`.
        min_part: parts of fewer operators run in PyTorch where a graph has islands.
    """

    require_full: bool = False
    run_in_torch: tuple[str, ...] = ()
    min_part: int = 1


def options_of_backend(mode: str | None, options: Mapping[str, Any] | None) -> tuple[GraphOptions, Options]:
    """What `torch.compile(..., mode=..., options=...)` asks for.

    Raises:
        ArgumentError: there is no such mode or option; the message lists those that there are.
    """
    if mode is not None and mode not in MODES:
        raise ArgumentError(f"mode '{mode}' of torch.compile is unknown; modes are {', '.join(MODES)}")
    given = {**MODES[mode or "default"], **(options or {})}
    names = [field.name for field in dataclasses.fields(GraphOptions)]
    own = {name: given.pop(name) for name in names if name in given}
    if isinstance(own.get("run_in_torch"), str):
        raise ArgumentError("option 'run_in_torch' is a sequence of operators' names, not one name")
    try:
        return GraphOptions(**{**own, "run_in_torch": tuple(own.get("run_in_torch", ()))}), options_of(given)
    except ArgumentError as error:
        if "options are" in str(error):
            raise ArgumentError(f"{error}; of graphs: {', '.join(names)}") from None
        raise
