"""`train_step`: forward, backward and the optimizer's update as one program."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from kitsune_mlir.dynamo.graph_options import options_of_backend
from kitsune_mlir.dynamo.report import GraphReport, logger
from kitsune_mlir.errors import ArgumentError, UnsupportedError
from kitsune_mlir.training.checks import Answered
from kitsune_mlir.training.compiled import CompiledStep
from kitsune_mlir.training.optimizers import group_constants
from kitsune_mlir.training.scaling import scaling_constants
from kitsune_mlir.training.traced import Asked

__all__ = ["TrainStep", "train_step"]

PATIENCE = 4
"""Times that a step asks a tensor something in vain, before PyTorch does all of its kind."""
MOST = 8
"""Programs of one step, for different sizes, modes and numbers of an optimizer; what comes after them runs in parts."""


_FACTS = attrgetter("dtype", "device", "requires_grad", "grad", "_backward_hooks")


class _Facts:
    """Many things that a graph is made for, as a part of a key whose hash is known."""

    __slots__ = ("_hash", "_known")

    def __init__(self, known: tuple[Any, ...]):
        self._known, self._hash = known, hash(known)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Facts) and self._known == other._known


def train_step(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    optimizer: torch.optim.Optimizer,
    *,
    scaler: torch.amp.GradScaler | None = None,
    before_update: Callable[[], Any] | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> TrainStep:
    """A whole training step as one program: forward, backward and the optimizer's update, in place.

        step = kitsune_mlir.train_step(model, F.cross_entropy, torch.optim.AdamW(model.parameters(), 1e-3))
        for x, y in batches:
            loss = step(x, y)
            scheduler.step()

    Args:
        model: in the mode (`train()`, `eval()`) that it has in a call; parameters that require no gradient stay as they are.
        loss_fn: of the model's output and the targets gives the loss, a tensor of one element, or a tuple that begins with it.
        optimizer: of PyTorch's. It keeps its state: `state_dict` and `load_state_dict` mean what they always do.
        scaler: scales the loss for the backward pass (f16 autocast), divides gradients by the scale, skips the update where one
            of them is not finite, and finds the next scale, all in the program: nothing waits for the device.
        before_update: called between backward (gradients are no longer scaled) and the update, while the step is traced:
            `lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)`. It works on `grad` of the parameters.
        mode, options: as for `torch.compile(..., backend="kitsune")`.

    Raises:
        ArgumentError: there is no such mode or option, or an argument is of another kind.
    """
    return TrainStep(model, loss_fn, optimizer, scaler=scaler, before_update=before_update, mode=mode, options=options)


class TrainStep:
    """What `train_step` gives; its arguments are there.

    A program is made at the first call, and again for batches of other sizes and types, for another mode of a module, and where
    an option of the optimizer changes that is no number. Python of the model and the loss runs while it is traced,
    and not again.

    Attributes:
        model, loss_fn, optimizer, before_update: as given.
        scaler: as given; None where it is not enabled.
        reports: what became of each graph, in the order in which they were compiled; `str` of one, and its `details()`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Callable[..., Any],
        optimizer: torch.optim.Optimizer,
        *,
        scaler: torch.amp.GradScaler | None = None,
        before_update: Callable[[], Any] | None = None,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ):
        kinds = {"model": (model, nn.Module), "optimizer": (optimizer, torch.optim.Optimizer)}
        kinds |= {} if scaler is None else {"scaler": (scaler, torch.amp.GradScaler)}
        for name, (value, kind) in kinds.items():
            if not isinstance(value, kind):
                raise ArgumentError(f"argument '{name}' of train_step is a {kind.__name__}, not {type(value).__name__}")
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.scaler, self.before_update = scaler if scaler is not None and scaler.is_enabled() else None, before_update
        self.reports: list[GraphReport] = []
        self._asked = options_of_backend(mode, options)
        roots = [getattr(model, "_orig_mod", model), *([loss_fn] if isinstance(loss_fn, nn.Module) else [])]
        self._model = roots[0]
        self._modules = list({id(m): m for root in roots for m in root.modules()}.values())
        self._steps: dict[Any, list[CompiledStep | None]] = {}
        given: dict[str, Any] = {"backend": "kitsune", "mode": mode, "options": options}
        self._compile = functools.partial(torch.compile, **given)
        self._parts: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._last: dict[bool, tuple[list[Any], _Facts]] = {}

    def __call__(self, inputs: Any, *targets: Any, update: bool = True) -> Any:
        """One step.

        Args:
            inputs: of the model: a tensor; a tuple or list of arguments; a dictionary of keyword arguments.
            targets: what `loss_fn` takes after the model's output.
            update: whether the optimizer updates parameters. Without, gradients are added to `grad` of the parameters, as
                `backward()` does; the next step with it adds its own, updates, and sets `grad` to None.

        Returns:
            What `loss_fn` gave, without gradients.

        Raises:
            Exception: what the model, the loss or `before_update` raises, also where they look at a tensor for it
                (`clip_grad_norm_(error_if_nonfinite=True)`): parameters and the optimizer are as before. A step that looks
                waits for the device.
        """
        batch, spec = tree_flatten((inputs, targets))
        step = self._step(batch, spec, update)
        if step is None:
            return self._run_in_parts(inputs, targets, update)
        try:
            result = step(batch)
        except Answered:
            self._answered(step)
            return self._run_in_parts(inputs, targets, update)
        if update:
            self.optimizer._opt_called = True  # what LR schedulers look for
        return result

    def _step(self, batch: Sequence[Any], spec: Any, update: bool) -> CompiledStep | None:
        """The step for a batch, or of an update alone where `spec` is None; None where it runs in parts."""
        key, groups = self._key(batch, spec, update), self.optimizer.param_groups
        for step in self._steps.get(key, ()):
            if step is None or step.fits(groups):
                return step
        return self._compiled(key, batch, spec, update)

    def _answered(self, step: CompiledStep | None) -> None:
        """A step was done by PyTorch for what a tensor holds; where that is often so, it is from now on."""
        if step is not None and step.answers >= PATIENCE:
            for steps in self._steps.values():
                steps[:] = [None if one is step else one for one in steps]

    def _forward(self, inputs: Any, targets: Sequence[Any]) -> Any:
        return self.loss_fn(self._of_model(inputs), *targets)

    def _of_model(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            return self._model(**inputs)
        return self._model(*inputs) if isinstance(inputs, tuple | list) else self._model(inputs)

    def _key(self, batch: Sequence[Any], spec: Any, update: bool) -> Any:
        """All that a graph is made for."""
        first = {id(value): number for number, value in reversed(list(enumerate(batch)))}
        seen = [
            (v.shape, v.stride(), v.dtype, v.device, v.requires_grad, first[id(v)]) if isinstance(v, Tensor) else (type(v), v)
            for v in batch
        ]
        return (
            *seen, spec, update,
            tuple([m.training for m in self._modules]),
            self._of_parameters(update),
            str(group_constants(self.optimizer)) if update else "",
            scaling_constants(self.scaler),
            *[(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        )  # fmt: skip

    def _of_parameters(self, update: bool) -> _Facts:
        """What a graph is made for of parameters and their state. It is the same object as in the last call where nothing has
        changed, which is found out without a line of Python for each of them."""
        state = self.optimizer.state
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        now = [list(map(id, parameters)), list(map(_FACTS, parameters)), list(map(id, state)), list(map(len, state.values()))]
        before, facts = self._last.get(update, (None, None))
        if facts is not None and now == before:
            return facts
        facts = _Facts((
            tuple([(id(p), p.dtype, p.device, p.requires_grad, p.grad is None) for p in parameters]),
            tuple([len(p._backward_hooks or ()) for p in parameters]),
            tuple([len(state.get(p, ())) for p in parameters]) if update else (),
        ))  # fmt: skip
        if all(grad is None and hooks is None for *_, grad, hooks in now[1]):  # else they may change and be the same objects
            self._last[update] = now, facts
        return facts

    def _count(self) -> int:
        return sum(map(len, self._steps.values()))

    def _compiled(self, key: Any, batch: Sequence[Any], spec: Any, update: bool) -> CompiledStep | None:
        """The step for a key, which is kept; None where it runs in parts."""
        problem = None
        if spec is not None and any(isinstance(m, DistributedDataParallel) for m in self._modules):
            problem = "DistributedDataParallel sends gradients while others are computed"
        elif any(nn.parameter.is_lazy(t) for m in self._modules for t in (*m._parameters.values(), *m._buffers.values())):
            problem = "the model has parameters without sizes, which its first call gives them"
        elif self._count() >= MOST:
            problem = f"there are {MOST} programs of it for other sizes, modes or numbers"
        else:
            try:
                forward = (lambda *flat: self._forward(*tree_unflatten(flat, spec))) if spec is not None else None
                more = self.scaler, self.before_update, self._asked[0].attention_dropout
                asked = Asked(self._modules, forward, self.optimizer, update, *more)
                step = CompiledStep(asked, batch, *self._asked, self.reports.append)
            except UnsupportedError as error:
                if self._asked[0].require_full:
                    raise
                problem = str(error)
            except Exception as error:
                problem = f"it cannot be traced: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            else:
                key = self._key(batch, spec, update)  # the optimizer's state is there now
                self._steps.setdefault(key, []).append(step)
                return step
        if self._asked[0].require_full:
            raise UnsupportedError("train_step", f"option 'require_full' wants all of a step in programs: {problem}")
        what = "a training step" if spec is not None else "an optimizer's update"
        warnings.warn(f"kitsune: {what} runs in parts: {problem}", stacklevel=5)
        logger.info("%s runs in parts: %s", what, problem)
        if self._count() < MOST:
            self._steps.setdefault(key, []).append(None)
        return None

    def _run_in_parts(self, inputs: Any, targets: Sequence[Any], update: bool) -> Any:
        """Forward and backward as torch.compile makes graphs of them, and the update, if it can be traced, as one."""
        if self._parts is None:
            sent = isinstance(self._model, DistributedDataParallel)
            forward = self._forward_inside_ddp() if sent else self._compile(self._forward)
            self._parts = forward, self._compile(self.optimizer.step)
        with torch.enable_grad():
            made = self._parts[0](inputs, targets)
            loss = made[0] if isinstance(made, tuple | list) else made
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if update:
            try:
                self._update()
            finally:
                for parameter in [p for m in self._modules for p in m._parameters.values() if p is not None]:
                    parameter.grad = None
        return tree_map_only(Tensor, Tensor.detach, made)

    def _forward_inside_ddp(self) -> Callable[..., Any]:
        """As `_forward`, with a compiled module in DDP: it cuts graphs where buckets end, and sends each when it is full."""
        inner = self._model.module
        compiled = self._compile(inner._call_impl)
        loss_fn: Callable[..., Any] = self._compile(self.loss_fn)

        def forward(inputs: Any, targets: Sequence[Any]) -> Any:
            before, inner._compiled_call_impl = inner._compiled_call_impl, compiled
            try:
                made = self._of_model(inputs)
            finally:
                inner._compiled_call_impl = before
            return loss_fn(made, *targets)

        return forward

    def _update(self) -> None:
        """The update of gradients that are there: as a program if it can be, else as PyTorch does it."""
        assert self._parts is not None
        if (step := self._step((), None, True)) is not None:
            try:
                step(())
            except Answered:
                self._answered(step)
            else:
                self.optimizer._opt_called = True
                return
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.before_update is not None:
            self.before_update()
        if self.scaler is None:
            self._parts[1]()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
