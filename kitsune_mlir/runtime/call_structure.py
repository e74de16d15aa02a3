"""How the arguments of a call are nested, and which of them are compiled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.arguments import fixed_text, leaf_words
from kitsune_mlir.runtime.structure import call_words, difference, leaf_name

__all__ = ["CallStructure"]


class CallStructure:
    """What a program is called with.

    Args:
        spec: pytree of `(args, kwargs)`.
        parameters: names of the positional arguments, as the model has them; fewer where it does not say.
        fixed: leaves that are no tensors: (position, value); the program holds for these values only.
    """

    def __init__(self, spec: Any, parameters: Sequence[str], fixed: Sequence[tuple[int, Any]]):
        from torch.utils import _pytree as pytree

        self.spec, self._parameters, self._fixed, self._flatten = spec, parameters, fixed, pytree.tree_flatten

    def leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The leaves of a call's arguments, in the program's order.

        Raises:
            ArgumentError: they are nested in another way, or a value is another one than was compiled in; says which.
        """
        leaves, spec = self._flatten((args, kwargs))
        if spec != self.spec:
            leaves = self._arranged(args, kwargs, leaves, spec)
        for position, value in self._fixed:
            given, text = leaves[position], fixed_text(value)
            by_text = isinstance(value, dict | float)  # 0.0 equals -0.0, and nan not even itself
            if (repr(given) != text) if by_text else (type(given) is not type(value) or given != value):
                name = leaf_name(self.spec, position, self._parameters)
                raise ArgumentError(f"{name} is {leaf_words(given, 'a ')}; the program was compiled for {text} only")
        return leaves

    def _arranged(self, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Sequence[Any], spec: Any) -> Sequence[Any]:
        """Leaves of arguments that differ in the order of dictionaries only (a pytree has one), or are named where the program
        takes them by position."""
        parameters = self._parameters
        by_name = [name for name in parameters[len(args) :] if name in kwargs]
        if by_name == [*parameters[len(args) :]]:  # what the program takes by position
            args, kwargs = (*args, *(kwargs[name] for name in by_name)), {n: v for n, v in kwargs.items() if n not in by_name}
            leaves, spec = self._flatten((args, kwargs))
        try:
            arranged = self.spec.flatten_up_to((args, kwargs))
            if len(arranged) == len(leaves) and {*map(id, arranged)} == {*map(id, leaves)}:
                return arranged
        except (ValueError, TypeError):  # another structure
            pass
        fixed = {position: fixed_text(value) for position, value in self._fixed}
        takes = call_words(self.spec, [fixed.get(n, "tensor") for n in range(self.spec.num_leaves)])
        raise ArgumentError(
            f"{difference(self.spec, spec, parameters) or 'the arguments have another structure'}: "
            f"the program takes {takes} and was given {call_words(spec, list(map(leaf_words, leaves)))}"
        )
