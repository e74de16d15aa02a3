"""Weights as a program takes them: the model's own tensors where they lie so, else copies that are kept in step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.derived import evaluate, sources_of
from kitsune_mlir.runtime.results import in_order
from kitsune_mlir.runtime.signature import Signature, Weight, torch_dtype

__all__ = ["WeightCopies", "WeightCopy", "discarded", "placed", "without_values"]

_VERSION = attrgetter("_version")


@dataclasses.dataclass
class WeightCopy:
    """A weight that was copied or derived: `placed` holds what `value` gave when `sources` had these versions.

    A tensor counts the operations that changed it in place (`_version`), but an inference tensor: that is copied at every call.
    A replayed CUDA graph runs no Python, so it keeps using what was placed when it was captured.
    """

    sources: Sequence[Any]
    value: Callable[[], Any]
    placed: Any
    versions: list[int] | None

    @property
    def stale(self) -> bool:
        """Whether a source was changed, or may have been."""
        return self.versions is None or any(s._version != v for s, v in zip(self.sources, self.versions, strict=True))

    def refresh(self) -> None:
        """Copy again if a source was changed."""
        if self.stale:
            self.placed.copy_(self.value())
            self.versions = _versions(self.sources)


class WeightCopies(Sequence[WeightCopy]):
    """All copies that a program has of weights: a call that finds none of their sources changed pays for one comparison.

    Args:
        copies: each of them.
    """

    def __init__(self, copies: Sequence[WeightCopy] = ()):
        self._copies = tuple(copies)
        counted = [copy for copy in copies if copy.versions is not None]
        self._uncounted = tuple(copy for copy in copies if copy.versions is None)
        # By object: a tensor that several are made of is asked once.
        self._sources = tuple({id(source): source for copy in counted for source in copy.sources}.values())
        self._versions: list[int] | None = None  # with which all copies that count were in step

    def __getitem__(self, n: Any) -> Any:
        """A copy."""
        return self._copies[n]

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def stale(self) -> bool:
        """Whether a source of one was changed, or may have been."""
        if not self._copies or (not self._uncounted and list(map(_VERSION, self._sources)) == self._versions):
            return False
        return any(copy.stale for copy in self._copies)

    def refresh(self) -> None:
        """Copy those again of which a source was changed."""
        if not self._copies:
            return
        versions = list(map(_VERSION, self._sources))
        if versions != self._versions:
            for copy in self._copies:
                copy.refresh()
            self._versions = versions  # as they were before: what changes meanwhile is found by the next call
        else:
            for copy in self._uncounted:
                copy.refresh()


def placed(signature: Signature, weights: Mapping[str, Any], device: str) -> tuple[list[Any], WeightCopies]:
    """Weights on the program's device, as it takes them, in its order; and those among them that are copies.

    Args:
        weights: the model's own, by name.

    Raises:
        ArgumentError: one is missing, or has another shape, type or layout than was compiled for.
    """
    import torch

    for weight in signature.supplied:
        if weight.name not in weights:
            raise ArgumentError(f"the program needs a weight '{weight.name}', which it was not given")
        tensor = weights[weight.name]
        if tensor.layout != torch.strided:
            raise ArgumentError(f"weight '{weight.name}' has layout {tensor.layout}, a dense tensor was expected")
        if tuple(tensor.shape) != weight.shape or tensor.dtype != torch_dtype(weight.dtype):
            wanted = f"{weight.dtype} {list(weight.shape)}"
            raise ArgumentError(f"weight '{weight.name}' is {tensor.dtype} {list(tensor.shape)}, compiled for {wanted}")
    tensors, copies = [], []
    for weight in signature.weights:
        sources = [weights[name] for name in (sources_of(weight.recipe) if weight.recipe else [weight.name])]

        def value(weight: Weight = weight) -> Any:
            made = evaluate(weight.recipe, weights, device) if weight.recipe else weights[weight.name].detach()
            return made.unflatten(0, (-1, *weight.beside[::-1])) if weight.beside else made

        tensor = value()
        own = tensor.to(device)
        if weight.beside:
            own = _between_zeros(weight, own).copy_(own)
        else:
            own = in_order(own, weight.order)
            if own.data_ptr() % 16:
                own = own.clone()
        if weight.wide and not weight.beside:
            whole = own.new_zeros(weight.wide)
            own = whole[tuple(map(slice, weight.shape))].copy_(own)
        tensors.append(own)
        if weight.recipe or own.data_ptr() != tensor.data_ptr():
            copies.append(WeightCopy(sources, value, own, _versions(sources)))
    return tensors, WeightCopies(copies)


def _between_zeros(weight: Weight, like: Any) -> Any:
    """The places of a weight whose groups lie side by side, in a new tensor of zeros: [groups / count, count, rows, ...]."""
    rows, count = weight.beside
    whole = in_order(like.new_zeros(weight.wide), weight.order).unflatten(0, (-1, count, rows))
    return whole.unflatten(3, (count, weight.shape[1])).diagonal(0, 1, 3).movedim(-1, 1)


def discarded(signature: Signature, weights: Mapping[str, Any], tensors: Sequence[Any]) -> tuple[dict[str, Any], int]:
    """Give back the memory of weights that a program has copies of, but those that it returns: these names, each with a tensor
    without values, and the bytes.

    Args:
        weights: the model's own, by name. tensors: what the program takes, as `placed` gave it.
    """
    import torch

    returned = {output.argument for output in signature.outputs}
    kept = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    kept |= {weights[name].untyped_storage().data_ptr() for name in weights if name in returned}
    found, size = {}, 0
    for name in (weight.name for weight in signature.supplied):
        storage = weights[name].untyped_storage()
        if storage.data_ptr() in kept or storage.device.type == "meta" or not storage.resizable():
            continue
        found[name] = torch.empty_like(weights[name], device="meta")
        size += storage.nbytes()
        storage.resize_(0)
    return found, size


def without_values(weights: Mapping[str, Any]) -> str | None:
    """The name of a weight on the meta device."""
    return next((name for name, tensor in weights.items() if tensor.device.type == "meta"), None)


def _versions(tensors: Sequence[Any]) -> list[int] | None:
    return None if any(tensor.is_inference() for tensor in tensors) else [tensor._version for tensor in tensors]
