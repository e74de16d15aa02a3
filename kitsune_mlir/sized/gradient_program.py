"""`GradientProgram`: a compiled model whose results can be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.errors import ArgumentError, UnsupportedError
from kitsune_mlir.sized.compiled import Backward
from kitsune_mlir.sized.program import SizedProgram
from kitsune_mlir.sized.restride import with_strides

__all__ = ["GradientProgram"]


class GradientProgram(SizedProgram):
    """A compiled forward and backward: call it with what the model takes, and call `backward()` on what it gives.

    Gradients go to `weights`, which are the model's own parameters, or what a file held, and to inputs that needed gradients
    when it was compiled. `torch.optim` takes `program.parameters()`.
    """

    @property
    def backward(self) -> Backward:
        """The compiled backward."""
        assert self.compiled.backward is not None
        return self.compiled.backward

    def parameters(self) -> list[Tensor]:
        """The weights that gradients go to."""
        names = [weight.name for weight in self.signature.weights]
        return [self.weights[names[n]] for n in self.backward.trained if n < len(names)]

    def explain(self) -> str:
        """What `Program.explain` says of the forward and of the backward."""
        return "\n\n".join(f"{words}:\n{program.explain()}" for words, program in self.compiled.programs())

    def _outputs(self, tensors: Sequence[Tensor]) -> list[Any]:
        primals = [*(self.weights[weight.name] for weight in self.signature.weights), *tensors]
        if torch.is_grad_enabled():
            self._check_trained(primals)
            found = list(_Call.apply(self, *primals))  # type: ignore[no-untyped-call]
        else:
            found = self.forward(primals)[: self.backward.outputs]
        for place, value in self.backward.plain:
            found.insert(place, value)
        return found

    def forward(self, primals: Sequence[Tensor]) -> list[Any]:
        """The model's outputs, and behind them what the backward takes, for weights and inputs."""
        count = len(self.signature.weights)
        weights = [tensor.detach().resolve_conj().resolve_neg() for tensor in primals[:count]]
        results, _ = self._results(weights, primals[count:])
        return list(results)

    def _check_trained(self, primals: Sequence[Tensor]) -> None:
        trained = {*self.backward.trained}
        for n, tensor in enumerate(primals):
            if tensor.requires_grad and n not in trained:
                weights = self.signature.weights
                kind, name = ("weight", weights[n]) if n < len(weights) else ("input", self.signature.inputs[n - len(weights)])
                wanted = "compile it with one that does"
                raise ArgumentError(f"{kind} '{name.name}' needs gradients, which it did not when this was compiled; {wanted}")

    def __repr__(self) -> str:
        return f"<kitsune_mlir.GradientProgram for {self.target}: gradients of {len(self.backward.trained)} tensors>"


class _Call(torch.autograd.Function):
    """A call, as autograd knows it."""

    @staticmethod
    def forward(ctx: Any, program: GradientProgram, *primals: Tensor) -> tuple[Any, ...]:
        results, backward = program.forward(primals), program.backward
        outputs = results[: backward.outputs]
        ctx.program = program
        ctx.save_for_backward(*results[backward.outputs :])
        differentiable = {n for n, _, _ in backward.tangents}
        ctx.mark_non_differentiable(*(value for n, value in enumerate(outputs) if n not in differentiable))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Any, ...]:
        backward = ctx.program.backward
        with torch.no_grad():
            given = [with_strides(tangents[n].detach(), size, stride) for n, size, stride in backward.tangents]
            found = backward.run(*ctx.saved_tensors, *given)
        if torch.is_grad_enabled():  # create_graph
            found = _Once.apply(torch.zeros((), requires_grad=True), *found)  # type: ignore[no-untyped-call]
        return None, *found


class _Once(torch.autograd.Function):
    """Gradients, as they are, that cannot be differentiated: without it they would count as constants."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *gradients: Any) -> tuple[Any, ...]:
        return tuple(value if value is None else value.view_as(value) for value in gradients)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        raise UnsupportedError("GradientProgram", "it has no gradients of gradients; let PyTorch run the model for them")
