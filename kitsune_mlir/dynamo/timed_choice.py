"""Ours or PyTorch, whichever is faster: timed at the first call, on its own inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.cache.store import Store
from kitsune_mlir.dynamo.decisions import decision_key, decision_of_all_ranks, keep_decision, kept_decision
from kitsune_mlir.dynamo.recorded import Recorded
from kitsune_mlir.dynamo.report import Timed, logger
from kitsune_mlir.dynamo.stopwatch import Budget, milliseconds_beside

__all__ = ["EQUAL", "Peer", "Rules", "TimedChoice", "choices_wait"]

EQUAL = 0.97
"""Of our time that PyTorch stays below where it is taken: closer than that they count as equal."""

MOST_COPIED = 256 << 20
"""Bytes of inputs that are written to, which are copied to be timed: with more, a first call would need far more memory than
any later one (a training step's weights and the optimizer's state a second time, beside all that PyTorch's way needs)."""

_PLAIN = (Tensor, torch.nn.Parameter)

_waiting = threading.local()


@contextlib.contextmanager
def choices_wait() -> Iterator[None]:
    """Nothing is timed in this thread meanwhile, as other work would disturb it: ours is called, and a later call chooses."""
    before = getattr(_waiting, "on", False)
    _waiting.on = True
    try:
        yield
    finally:
        _waiting.on = before


@dataclasses.dataclass(frozen=True)
class Rules:
    """How choices of one graph of Dynamo's are made.

    Attributes:
        budget: what all its measurements may take together.
        store: where decisions are kept, or None.
        asked: options that decide what is compared, as text.
        peer: the name of PyTorch's own way: "eager" or "Inductor".
        recorded: whether it all runs in CUDA graphs, and is to be timed so.
    """

    budget: Budget
    store: Store | None
    asked: str
    peer: str
    recorded: bool = False


@dataclasses.dataclass(frozen=True)
class Peer:
    """PyTorch's own way: its name, and what makes it when it is needed, for inputs like those that it is given."""

    name: str
    make: Callable[[Sequence[Any]], Callable[..., Any]]


class TimedChoice:
    """Calls ours or PyTorch's own way of the same function.

    The first call times both, with the inputs that it is given, and answers with the faster. Nothing is timed while a CUDA
    graph is recorded or in deterministic mode: ours is called then, and a later call chooses. Whatever goes wrong leaves ours.

    Args:
        what: its name in the report: "the graph", or a part.
        own: ours.
        peer: PyTorch's.
        text: gives the graph as text, for the key on disk.
        written: numbers of inputs that the function writes to.
        note: called with what came out.
        sizes: what of the inputs a choice holds for, where it is not for all calls.
    """

    def __init__(
        self,
        what: str,
        own: Callable[..., Any],
        peer: Peer,
        text: Callable[[], str],
        written: Collection[int],
        rules: Rules,
        note: Callable[[Timed], None],
        sizes: Callable[[Sequence[Any]], Any] | None = None,
    ):
        self._what, self.own, self._peer, self._text = what, own, peer, text
        self._written, self._rules, self._note, self._sizes = written, rules, note, sizes
        self._made: Callable[..., Any] | None = None
        self._chosen: dict[Any, Callable[..., Any]] = {}
        self._only: Callable[..., Any] | None = None  # the choice, where there is one for all calls
        self._lock = threading.RLock()
        self._measuring = False

    def __call__(self, *args: Any) -> Any:
        """What the function gives."""
        run = self._only
        if run is None:
            run = self._choice(args)
        return run(*args)

    def _choice(self, args: Sequence[Any]) -> Callable[..., Any]:
        sizes = self._sizes(args) if self._sizes is not None else None
        run = self._chosen.get(sizes)
        if run is not None:
            return run
        with self._lock:
            if sizes in self._chosen:
                return self._chosen[sizes]
            if self._measuring or not _may_measure(args):
                return self.own
            self._measuring = True
            try:
                run = self._chosen[sizes] = self._decided(args, sizes)
            finally:
                self._measuring = False
            if self._sizes is None:
                self._only = run
            return run

    def _decided(self, args: Sequence[Any], sizes: Any) -> Callable[..., Any]:
        remembered, problem, times = False, "", None

        def known_or_measured() -> tuple[float, float] | None:
            nonlocal remembered, problem
            try:
                found = kept_decision(self._rules.store, key)
                remembered = found is not None
                if found is None:
                    found = self._measured(args, device)
                    problem = "there was too little time" if found is None else ""
                    if found is not None:
                        keep_decision(self._rules.store, key, found)
                return found
            except Exception as error:  # a user's model goes on, whatever is wrong with measuring it
                problem = f"{type(error).__name__}: {error}"
                return None

        try:
            device = next((a.device for a in args if isinstance(a, Tensor) and a.device.type == "cuda"), torch.device("cpu"))
            counted = args if self._sizes is None else [value for value in args if not isinstance(value, Tensor | int | float)]
            key = decision_key(
                f"{self._what}\n{self._text()}\n{sizes}", counted, device, f"{self._peer.name} {self._rules.asked}"
            )
            times = decision_of_all_ranks(key, known_or_measured)
            problem = problem or ("rank 0 has no measurement" if times is None else "")
        except Exception as error:  # as above
            problem = f"{type(error).__name__}: {error}"
        peer_is_kept = times is not None and times[1] < EQUAL * times[0]
        timed = Timed(self._what, self._peer.name, times, peer_is_kept, remembered, problem.partition("\n")[0])
        self._note(timed)
        logger.info("%s", timed)
        return self._pytorch(args) if peer_is_kept else self.own

    def _pytorch(self, args: Sequence[Any]) -> Callable[..., Any]:
        if self._made is None:
            self._made = self._peer.make(args)
        return self._made

    def _measured(self, args: Sequence[Any], device: torch.device) -> tuple[float, float] | None:
        inputs, runs = Inputs(args, self._written), [self.own, self._pytorch(args)]
        if self._rules.recorded and not inputs.leaves:
            runs = [Recorded(run, range(len(args))) for run in runs]
        calls = [inputs.call_of(run) for run in runs]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            inputs.restore()
            if self._peer.name.startswith("Inductor"):
                calls[1]()  # it is compiled: that time does not count
            times = milliseconds_beside(calls, inputs.restore if self._written else None, device, self._rules.budget.clock())
            inputs.restore()
        return None if times is None else (times[0], times[1])


class Inputs:
    """Inputs that a function can be called with again and again, with its backward where it has one.

    Args:
        args: of a call. They stay as they are: what is written to is copied, what has a gradient stands for itself without.
        written: numbers of those that are written to.

    Raises:
        ValueError: they cannot be stood in for, or only by large copies.
    """

    def __init__(self, args: Sequence[Any], written: Collection[int]):
        self.args, self._pairs = list(args), list[tuple[Tensor, Tensor]]()
        copied = sum(args[n].nbytes for n in written if isinstance(args[n], Tensor))
        if copied > MOST_COPIED:
            raise ValueError(f"{copied >> 20} MB of inputs that are written to would be copied")
        memory = [value.untyped_storage()._cdata for value in args if isinstance(value, Tensor)]
        training = torch.is_grad_enabled()
        for n, value in enumerate(args):
            if not isinstance(value, Tensor):
                continue
            wanted = training and value.requires_grad
            if n in written:
                if memory.count(value.untyped_storage()._cdata) > 1 or wanted:
                    raise ValueError("an input that is written to shares memory with another, or has a gradient")
                self.args[n] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
                self._pairs.append((self.args[n], value.detach()))
            elif wanted:
                self.args[n] = value.detach().requires_grad_()
        self.leaves = [value for value in self.args if training and isinstance(value, Tensor) and value.requires_grad]

    def restore(self) -> None:
        """Make copies what the inputs are."""
        with torch.no_grad():
            for copy, value in self._pairs:
                copy.copy_(value)

    def call_of(self, function: Callable[..., Any]) -> Callable[[], Any]:
        """A call of a function with these inputs, and with backward through all of its outputs where gradients are wanted."""
        if not self.leaves:
            return lambda: function(*self.args)

        def forward_and_backward() -> None:
            outputs = [value for value in function(*self.args) if isinstance(value, Tensor) and value.requires_grad]
            if outputs:
                ones = [torch.ones_like(value) for value in outputs]
                torch.autograd.grad(outputs, self.leaves, ones, allow_unused=True)

        return forward_and_backward


def _may_measure(args: Sequence[Any]) -> bool:
    """Whether calls can be timed now. It is asked at each call until they were."""
    if torch.are_deterministic_algorithms_enabled() or getattr(_waiting, "on", False):
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    return all(type(value) in _PLAIN and value.layout == torch.strided for value in args if isinstance(value, Tensor))
