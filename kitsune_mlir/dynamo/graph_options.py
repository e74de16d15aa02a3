"""What a user may choose about the cutting of graphs, beside the compiler's own options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.options import Options, options_of
from kitsune_mlir.runtime.package import LEVELS
from kitsune_mlir.runtime.plain import shown

__all__ = ["MODES", "GraphOptions", "options_of_backend"]

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"tune": True, "cudagraphs": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}
"""torch.compile's modes, as options of ours."""


@dataclasses.dataclass(frozen=True)
class GraphOptions:
    """How graphs are cut.

    Attributes:
        require_full: raise an `UnsupportedError` where an operator would run in PyTorch.
        run_in_torch: operators that PyTorch runs, such as `"aten.mm.default"`.
        min_part: parts of fewer operators (views and constants are none) run in PyTorch where a graph has islands; None is
            those that are predicted to be faster there (`worth.py`).
        guard: time graphs, and their parts, beside PyTorch's own way of running them, and keep the faster: eager ("eager" or
            True), or Inductor ("inductor"), which is compiled for that. None is True on a GPU, and False on the host. It is off
            with `require_full`, and in deterministic mode.
        pad_rows: let one program serve sizes that change, on larger tensors, where rows allow it; else each size has its own.
        bucket_growth: how much larger the sizes of such a program are than those of the next smaller one.
        buckets: the sizes of such programs, in place of those that grow; larger ones grow from the last.
        background: PyTorch runs graphs until other processes have compiled them. Nothing is timed then.
        cudagraphs: record the calls of a graph, programs and islands, and replay them (`recorded.py`); nothing on the host.
        attention_dropout: in training on a GPU, make dropout of attention in 16 bits in its own kernels (Philox of a seed that
            PyTorch draws, and each probability's place): repeatable, not eager's numbers. Else PyTorch runs such attention.
        trace_ir: levels ("stages", "tiles", ...; `Program.ir`) whose text of each program is put among PyTorch's traces.
    """

    require_full: bool = False
    run_in_torch: tuple[str, ...] = ()
    min_part: int | None = None
    guard: bool | Literal["eager", "inductor"] | None = None
    pad_rows: bool = True
    bucket_growth: float = 8.0
    buckets: tuple[int, ...] = ()
    background: bool = False
    cudagraphs: bool = False
    attention_dropout: bool = False
    trace_ir: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.cudagraphs, bool):
            raise ArgumentError(f"option 'cudagraphs' is True or False, not {shown(self.cudagraphs)}")
        if unknown := [str(level) for level in self.trace_ir if level not in LEVELS]:
            raise ArgumentError(f"option 'trace_ir' has no level {', '.join(unknown)}; levels are {', '.join(LEVELS)}")
        if self.guard not in (True, False, None, "eager", "inductor"):
            raise ArgumentError(f"option 'guard' is True, False, None, 'eager' or 'inductor', not {shown(self.guard)}")
        if not self.bucket_growth > 1:
            raise ArgumentError(f"option 'bucket_growth' is {shown(self.bucket_growth)}; it must be above 1")
        if any(not isinstance(size, int) or size < 1 for size in self.buckets):
            raise ArgumentError(f"option 'buckets' is {shown(self.buckets)}; sizes are integers above 0")


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
    for name, what in (("run_in_torch", "operators' names"), ("trace_ir", "levels")):
        if isinstance(own.get(name), str):
            raise ArgumentError(f"option '{name}' is a sequence of {what}, not one name")
    excluded = {"require_full": "an error cannot be raised later", "tune": "a device is not measured while it is used"}
    for name, why in excluded.items():
        if own.get("background") and (own.get(name) or given.get(name)):
            raise ArgumentError(f"options 'background' and '{name}' exclude each other: {why}")
    try:
        lists = {name: tuple(own.get(name, ())) for name in ("run_in_torch", "buckets", "trace_ir")}
        return GraphOptions(**{**own, **lists}), options_of(given)
    except ArgumentError as error:
        if "options are" in str(error):
            raise ArgumentError(f"{error}; of graphs: {', '.join(names)}") from None
        raise
