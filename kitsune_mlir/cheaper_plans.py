"""What a program is planned like when a plan fails: ptxas takes too long or spills, or an engine breaks its offer.

How long that takes is not known before: a chain of 7,600 instructions took 80 s, one of 23,000 took 8 s. So the plan that is
thought fastest is tried first. Then a kernel of several stages becomes several kernels, which also shows whose code it is, and
a stage is left half of its products, or of its ops where it has no more than one product. Code of single ops is short.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects.builtin import ModuleOp

from kitsune_mlir.codegen.gpu.kernel.length import MANY_STAGES
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import AssemblyTimeout, BrokenOffer
from kitsune_mlir.machine.target import Target
from kitsune_mlir.passmanager.diagnostics import Diagnostic, diagnostic_at

__all__ = ["MOST_PLANS", "Planning", "report"]

MOST_PLANS = 8
"""Plans that are given up before the program is: each takes as long as ptxas may."""


SPILLED = 64
"""Bytes that a thread spills, from which on a smaller stage may be worth its hand-off."""

SPILLED_EACH = 16
"""The same for each stage of a kernel that has more than `MANY`: ptxas counts what is stored anywhere in its code. (A step of
training a recommender spilled 196 bytes in 22 stages; six other plans of 36 s each brought that to 144.)"""

MANY = 16
"""Stages of a kernel."""

SPILLING_SHARE = 0.05
"""Of the time of a program of many stages (`kernel.length.MANY_STAGES`) that a kernel of one stage and those equal to it take
at least, if spills are to be worth another plan: that takes half a minute there, and saves a part of this share. Of several
stages it is not known whose code spills, and smaller ones hardly help (see above)."""


@dataclasses.dataclass(frozen=True)
class Planning:
    """How a program is planned.

    Attributes:
        mode: who runs the stages, as option `schedule` of `Options`.
        cut: option `cut` of `kitsune-form-stages`.
        tried: what was cut: a stage's name, its parts (as `_parts` has them), and how many of them should stay.
        settled: stages that are as small as they can be: the engine that takes anything may do them.
        replanned: a sentence for each plan that was given up.
        times: milliseconds of stages by name, where planning cannot know them: of those that only the generic engine took.
    """

    mode: str
    cut: tuple[str, ...] = ()
    tried: tuple[tuple[str, str, int, int], ...] = ()
    settled: frozenset[str] = frozenset()
    replanned: tuple[str, ...] = ()
    times: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def cheaper(self, error: AssemblyTimeout, stages: Sequence[Mapping[str, Any]], mode: str) -> Planning:
        """The plan to try after one whose kernel took too long.

        Args:
            error: names the kernel and its stages.
            stages: those of the plan, as `summarize` describes them.
            mode: who runs them. Of several launches the one that took too long is cut (`codegen.gpu.compile.compile_launches`).

        Raises:
            AssemblyTimeout: there is none.
        """
        held = [stage for stage in stages if stage["name"] in error.stages]
        why = f"kernel '{error.kernel}' took ptxas more than {error.limit:g} s"
        apart = (" ".join(stage["name"] for stage in held), "launch", len(held), 1)
        if len(held) > 1 and mode == "separate" and apart not in self.tried and len(self.replanned) < MOST_PLANS:
            return self._after(f"{why}: its {len(held)} stages have launches of their own", tried=(*self.tried, apart))
        if len(held) > 1 and self.mode == "auto" and mode != "separate":
            return self._after(f"{why}: planned again with launches for its {len(held)} stages", mode="separate")
        name = _largest(held) if held else ""
        smaller = self._smaller(name, why, held)
        if smaller is None:
            before = "".join(f"\n  before: {sentence}" for sentence in self.replanned)
            raise AssemblyTimeout(error.kernel, error.limit, error.seconds, error.stages, before) from error
        return smaller

    def without(self, error: BrokenOffer, stages: Sequence[Mapping[str, Any]]) -> Planning:
        """The plan to try after one in which engines declined what they had offered: their stages are made of fewer ops.

        A stage that cannot be made smaller is settled. Those of one op are so from the start (`accepted`). One stage is cut,
        and those like it: after that stages have other names, so the next plan says which offers still break.
        """
        other = self
        for one in (error, *error.others):
            if other.cut == self.cut:
                other = other._without(one, stages)
        return other

    def _without(self, error: BrokenOffer, stages: Sequence[Mapping[str, Any]]) -> Planning:
        why = f"engine '{error.engine}' declines what became of stage '{error.stages[0]}' ({error.reason})"
        smaller = self._smaller(error.stages[0], why, stages)
        if smaller is None:
            return dataclasses.replace(self, settled=self.settled | {error.stages[0]})
        return smaller

    def lighter(
        self, kernels: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]], machine: Target
    ) -> Planning | None:
        """The plan to try after one of whose kernels one spills registers: the next rung, with fewer products or ops in its
        largest stage. None if none spills enough to be worth a hand-off, or nothing smaller can be made of it.

        Args:
            kernels: those of the program, as its summary has them.
            stages: see `cheaper`.
            machine: what the program is for.
        """
        shares = _shares(kernels, stages, machine) if len(stages) > MANY_STAGES else {}
        for kernel in kernels:
            held = [stage for stage in stages if stage["name"] in kernel["tasks"]]
            if shares and (len(held) > 1 or shares[kernel["name"]] < SPILLING_SHARE):
                continue
            least = SPILLED_EACH * len(held) if len(held) > MANY else SPILLED
            if kernel["spill_store_bytes"] < least or not held:
                continue
            name = _largest(held)
            why = f"kernel '{kernel['name']}' spills {kernel['spill_store_bytes']} bytes a thread"
            # What does not fit the registers many times over is not halved as often, each time for ptxas to take as long.
            share = 1 + kernel["spill_store_bytes"] // (4 * kernel["registers"])
            if (smaller := self._smaller(name, why, stages, max(2, share))) is not None:
                return smaller
        return None

    def accepted(self, stages: Sequence[Mapping[str, Any]]) -> frozenset[str]:
        """The stages of a plan that the engine that takes anything may do: no smaller ones can be made of them."""
        return self.settled | {stage["name"] for stage in stages if _parts(stage)[1] < 2}

    def _smaller(self, name: str, why: str, stages: Sequence[Mapping[str, Any]], share: int = 2) -> Planning | None:
        """The plan with half as many products, or ops, in stages like the one of that name, or one in `share`; None if there is
        none."""
        unit, parts = next((_parts(stage) for stage in stages if stage["name"] == name), ("", 1))
        most = max(1, parts // share) if parts > 1 else 0
        while (step := (name, unit, parts, most)) in self.tried:  # the passes did not make anything else of it
            most //= 2
        if not most or len(self.replanned) == MOST_PLANS:
            return None
        size = f"{most} {unit}" + "s" * (most > 1)
        sentence = f"{why}: planned again with at most {size} in stages like {name}"
        return self._after(sentence, cut=(*self.cut, f"{name}:{most}"), tried=(*self.tried, step))

    def _after(self, sentence: str, **changes: Any) -> Planning:
        return dataclasses.replace(self, replanned=(*self.replanned, sentence), **changes)


def _parts(stage: Mapping[str, Any]) -> tuple[str, int]:
    """What a stage is cut into, and how many of them it has. ("product" > "op": products are most of the code.)"""
    products = stage["ops"].get("product", 0)
    return ("product", products) if products > 1 else ("op", sum(stage["ops"].values()))


def _shares(kernels: Sequence[Mapping[str, Any]], stages: Sequence[Mapping[str, Any]], machine: Target) -> dict[str, float]:
    """The share of the program's time that the launches of each kernel take, by what they compute and move at least."""
    least = {
        stage["name"]: max(
            stage["operations"] / machine.matrix_rate, (stage["reads"] + sum(stage["writes"])) / machine.cache_rate
        )
        for stage in stages
    }
    whole = sum(least.values()) or 1.0
    found: dict[str, float] = {}
    for kernel in kernels:
        found[kernel["name"]] = found.get(kernel["name"], 0.0) + sum(least.get(task, 0.0) for task in kernel["tasks"]) / whole
    return found


def _largest(stages: Sequence[Mapping[str, Any]]) -> str:
    """The name of the stage of most parts."""
    return max((*_parts(stage), stage["name"]) for stage in stages)[-1]


def report(module: ModuleOp, stages: Sequence[str], sentence: str, listener: Callable[[Diagnostic], None] | None) -> None:
    """Tell the listener to remarks what is done about some stages of a tile program."""
    if listener is not None:
        tasks = [op for op in walk(module.operation) if op.name == "kitsune.task"]
        places = [op.location for op in tasks if ir.StringAttr(op.attributes["sym_name"]).value in stages]
        listener(diagnostic_at(places[0] if places else module.operation.location, "remark", sentence))
