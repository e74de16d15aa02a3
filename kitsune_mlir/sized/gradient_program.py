"""`GradientProgram`: a compiled model whose results can be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kitsune_mlir.errors import ArgumentError, UnsupportedError
from kitsune_mlir.sized.compiled import Backward
from kitsune_mlir.sized.expressions import size_at
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
        """The sizes that change, and what `Program.explain` says of each forward and backward."""
        each = [f"{words}:\n{program.explain()}" for words, program in self.compiled.programs()]
        return "\n\n".join([*filter(None, [self._ranges_text()]), *each])

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

    def sizes_of(self, primals: Sequence[Tensor]) -> dict[str, int]:
        """What symbols are in a call."""
        known = self.compiled.known
        return dict(zip(known.places, known.values(primals), strict=True))

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
        kept = results[backward.outputs :]
        ctx.program, ctx.sizes = program, program.sizes_of(primals)
        ctx.numbers = [None if isinstance(value, Tensor) else value for value in kept]
        ctx.save_for_backward(*(value for value in kept if isinstance(value, Tensor)))
        differentiable = {n for n, _, _ in backward.tangents}
        others = [value for n, value in enumerate(outputs) if n not in differentiable and isinstance(value, Tensor)]
        ctx.mark_non_differentiable(*others)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> tuple[Any, ...]:
        backward, given = ctx.program.backward, []
        tensors = iter(ctx.saved_tensors)
        kept = [next(tensors) if number is None else number for number in ctx.numbers]
        with torch.no_grad():
            for n, size, stride in backward.tangents:
                both = [[size_at(one, ctx.sizes) for one in each] for each in (size, stride)]
                given.append(with_strides(tangents[n].detach(), *both))
            found = backward.run(*kept, *given)
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
