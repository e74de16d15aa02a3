"""What a user may choose when compiling, beyond the target, and the phases that are announced to him."""

from __future__ import annotations

import functools
import os
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.plain import shown

__all__ = ["Options", "Phases", "options_of"]


@dataclass(frozen=True)
class Options:
    """What a user may choose beyond the target.

    Raises:
        ArgumentError: a value is not of its option's type.

    Attributes:
        threads: host target: workers of one call; None is all processors.
        debug: GPU target: waits are bounded, and a wait that gives up reports block, task and slot instead of hanging.
        schedule: who runs the stages: "temporal" (one launch, all multiprocessors take turns), "spatial" (one launch, stages
            have their own multiprocessors), "separate" (a launch for each stage), or "auto": what the model of the machine
            says.
        deterministic: GPU target: results are the same bits on every run, which costs time where rows are added at indices
            (`index_add`, `scatter_add`); None is the framework's setting, `torch.are_deterministic_algorithms_enabled()`, when
            the program is compiled. The host target's results are always.
        requests: GPU target: most requests of a launch (`Program.batch`); more than 1 make the program one launch, "temporal".
            The host's programs take any number.
        ptxas_seconds: GPU target: wall time that ptxas may take for a kernel; None is no limit. After that it is ended, and the
            next cheaper plan is taken (smaller kernels or stages), which is a remark and stands in `Program.explain`.
        timestamps: GPU target: every block writes when it began and ended each task (`Program.timeline`); costs little.
        on_remark: called with each remark of the planning passes (what was fused, what was not and why).
        on_phase: called with the name of each phase as it starts (for progress displays).
        passes: options of passes by name, as `kitsune-opt` takes them: `{"kitsune-form-stages": "chains=true"}`. They replace
            the planner's own.
        reproducer_dir: where a failing pass writes its input; None is the system's temporary folder, False nowhere.
        matmul_precision: GPU target: how f32 products are done, "highest" (as exact as f32 arithmetic), "high" or "medium" (in
            TF32); None is the framework's setting, `torch.get_float32_matmul_precision()`, when the program is compiled.
        convolution_precision: the same for f32 convolutions; None is "high" where `torch.backends.cudnn.conv.fp32_precision`
            (or `torch.backends.cudnn.allow_tf32`, which is on unless it is switched off) allows TF32, else "highest".
        tune: measure tile sizes of every stage on this machine, with a progress bar, and keep what was learned on disk
            (`kitsune_mlir.tuning`), then whether one launch or several are faster; the target's device must be here.
        tuned_for: name of a device ("NVIDIA H200") whose measurements are used; nothing is measured, and it may be elsewhere.
        tune_seconds: no measurement is started later than that; the planner's choice stands for stages that were not reached.
        cache: keep programs and assembled kernels on disk, and take them from there; None is yes, unless KITSUNE_CACHE is "0".
            Measurements are kept in any case. A program that is tuned is made anew each time, of kernels that are kept.
        cache_dir: where programs, kernels and measurements are kept; None is KITSUNE_CACHE_DIR or the user's folder for caches.
    """

    threads: int | None = None
    debug: bool = False
    schedule: Literal["auto", "temporal", "spatial", "separate"] = "auto"
    deterministic: bool | None = None
    requests: int = 1
    ptxas_seconds: float | None = 60.0
    timestamps: bool = False
    on_remark: Callable[[Any], None] | None = None
    on_phase: Callable[[str], None] | None = None
    passes: Mapping[str, str] = field(default_factory=dict)
    reproducer_dir: str | os.PathLike[str] | Literal[False] | None = None
    matmul_precision: str | None = None
    convolution_precision: str | None = None
    tune: bool = False
    tuned_for: str = ""
    tune_seconds: float = 120.0
    cache: bool | None = None
    cache_dir: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, hint in _types().items():
            if not _fits(value := getattr(self, name), hint):
                raise ArgumentError(f"option '{name}' is {_words(hint)}, not {shown(value)}")
        if self.requests < 1:
            raise ArgumentError(f"option 'requests' is a number of requests of a launch, at least 1, not {self.requests}")
        if self.requests > 1 and self.schedule not in ("auto", "temporal"):
            raise ArgumentError(
                f"option 'requests' is {self.requests}, and 'schedule' is '{self.schedule}': several requests are done in one "
                f"launch by all multiprocessors, 'temporal'"
            )

    @property
    def mode(self) -> str:
        """Who runs the stages, "auto" where that is left open."""
        return "temporal" if self.requests > 1 else self.schedule


@functools.cache
def _types() -> dict[str, Any]:
    return get_type_hints(Options)


_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", type(None): "None"}
_WORDS |= {os.PathLike: "a path", Callable: "a function", Mapping: "a mapping of texts"}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an option's type."""
    kind = get_origin(hint) or hint
    if kind in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if kind is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(hint))
    if kind is Mapping:
        return isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, kind)


def _words(hint: Any) -> str:
    """An option's type in words."""
    kind = get_origin(hint) or hint
    if kind in (Union, types.UnionType):
        return " or ".join(map(_words, get_args(hint)))
    return " or ".join(map(str, get_args(hint))) if kind is Literal else _WORDS[kind]


def options_of(given: Options | Mapping[str, Any] | None) -> Options:
    """Options as `compile` takes them.

    Raises:
        ArgumentError: there is no option of a name, and the message lists those that there are; or one has no such value.
    """
    if isinstance(given, Options):
        return given
    if given is not None and not isinstance(given, Mapping):
        raise ArgumentError(f"options are an Options or a mapping from names to values, not {shown(given)}")
    known = [option.name for option in fields(Options)]
    unknown = [str(name) for name in given or {} if name not in known]
    if "mode" in unknown:
        raise ArgumentError("option 'mode' is called 'schedule'; torch.compile's mode is no option, but an argument of its own")
    if unknown:
        raise ArgumentError(f"unknown option{'s' * (len(unknown) > 1)} {', '.join(unknown)}; options are {', '.join(known)}")
    return Options(**(given or {}))


@dataclass
class Phases:
    """Wall time of each phase, and the announcement that it starts."""

    announce: Callable[[str], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, name: str, work: Callable[..., Any], *args: Any) -> Any:
        """Do `work` on arguments as phase `name`."""
        if self.announce is not None:
            self.announce(name)
        start = time.perf_counter()
        try:
            return work(*args)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
