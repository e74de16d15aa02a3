"""What a compiled program takes and gives, as plain data: checked at each call, stored in package files."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.plain import record
from kitsune_mlir.runtime.strided import Strided

__all__ = ["MODES", "Access", "Input", "Output", "Signature", "Weight", "torch_dtype"]

_TORCH_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "ui8": "uint8",
    "i1": "bool",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}


def torch_dtype(name: str) -> Any:
    """The torch dtype for MLIR's spelling of an element type ("bf16", "i64", "i1").

    Raises:
        ArgumentError: torch has none.
    """
    import torch

    if name not in _TORCH_NAMES:
        raise ArgumentError(f"no torch dtype for element type '{name}'")
    return getattr(torch, _TORCH_NAMES[name])


@dataclasses.dataclass(frozen=True)
class Weight:
    """An argument that the model supplies: parameter, buffer or constant; or one derived from these by `recipe`
    (`runtime.derived`). `order`: the order of dimensions in memory, outermost first, in which the program takes it; empty is
    row-major. `wide`: the extents with which it does, with zeros at the ends; empty is `shape`. `beside`: of the weight of a
    convolution in groups, rows of a group, and how many groups lie side by side: of group g the channels, its second dimension,
    are number g modulo so many of the wide ones, and zeros are beside them."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...] = ()
    wide: tuple[int, ...] = ()
    recipe: str = ""
    beside: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Input:
    """A tensor that the caller supplies: leaf number `position` of the flattened (args, kwargs); `order` as a weight's.
    `lies`: how one that is not contiguous does, in a dense tensor that is the program's argument."""

    name: str
    position: int
    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...] = ()
    lies: Strided | None = None

    @property
    def taken(self) -> tuple[int, ...]:
        """Extents of the program's argument."""
        return self.shape if self.lies is None else self.lies.whole


@dataclasses.dataclass(frozen=True)
class Output:
    """A leaf of the output, or a tensor changed in place. `kind`: "tensor" (result `index` of the program), "alias" (argument
    `argument` handed back), "python" (`value`). `mutates`: name of the weight or input to overwrite, or None.
    `copied`: it is a tensor of its own although another output has the same value. `in_place`: the program itself writes what
    is overwritten, in place of result `index`: it is given that memory twice. `lies`: where in the argument an alias is, if it
    is a view of it."""

    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    index: int | None = None
    argument: str | None = None
    value: Any = None
    mutates: str | None = None
    copied: bool = False
    in_place: bool = False
    lies: Strided | None = None

    def view_of(self, tensor: Any) -> Any:
        """What is handed back of a caller's tensor; of one that is not contiguous, of a copy."""
        return tensor if self.lies is None else self.lies.part_of(tensor, self.shape)


MODES = ("read", "write", "both")


@dataclasses.dataclass(frozen=True)
class Access:
    """Bytes that a run of a program touches.

    Attributes:
        tensor: the name of a weight or input, or "result N".
        offset: of the first byte, from the first of the tensor.
        bytes: how many.
        mode: "read": their values are used; "write": they may be changed, and what was there is not looked at; "both".
    """

    tensor: str
    offset: int
    bytes: int
    mode: str


@dataclasses.dataclass(frozen=True)
class Signature:
    """The whole calling convention of a program.

    Attributes:
        weights, inputs: the program's arguments, weights first, each in the order of the program.
        outputs: leaves of the output in `out_spec`'s order, then mutations.
        results: shape and dtype of each of the program's results.
        fixed: leaves of the input that are no tensors: (position, value); the code holds for these values only.
        result_orders: by the number of a result, the order of its dimensions in memory, where that is not row-major.
        sources: the model's weights that are no arguments, but that derived weights are made of.
        accesses: what a run reads and writes of weights, inputs and results, as these lie in the program's memory. Ranges of
            one tensor do not overlap; what is in none of them is not touched.
        parameters: names of the positional arguments, as the model has them; fewer where it does not say.
        in_spec, out_spec: `torch.utils._pytree.treespec_dumps` of `(args, kwargs)` and of the output.
    """

    weights: tuple[Weight, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    results: tuple[tuple[tuple[int, ...], str], ...]
    fixed: tuple[tuple[int, Any], ...]
    in_spec: str
    out_spec: str
    result_orders: dict[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    sources: tuple[Weight, ...] = ()
    accesses: tuple[Access, ...] = ()
    parameters: tuple[str, ...] = ()

    @functools.cached_property
    def words(self) -> tuple[str, ...]:
        """The arguments for messages, weights first."""
        return (*(f"weight '{w.name}'" for w in self.weights), *(f"input '{i.name}'" for i in self.inputs))

    @functools.cached_property
    def written(self) -> tuple[int, ...]:
        """Numbers of the arguments, weights first, that a call changes."""
        names = [argument.name for argument in (*self.weights, *self.inputs)]
        return tuple(names.index(output.mutates) for output in self.outputs if output.mutates is not None)

    @functools.cached_property
    def reach(self) -> dict[str, int]:
        """For each argument that a run touches, its bytes up to the last one of these."""
        return {a.tensor: a.offset + a.bytes for a in sorted(self.accesses, key=lambda a: a.offset)}

    @property
    def supplied(self) -> tuple[Weight, ...]:
        """What a model or a file has to give: the weights but for derived ones, and what only these are made of."""
        return (*(weight for weight in self.weights if not weight.recipe), *self.sources)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. A fixed value that JSON cannot hold is kept as its `repr`.

        Raises:
            ArgumentError: an output is a Python object that JSON cannot hold.
        """
        data = dataclasses.asdict(self)
        plain = (int, float, bool, str, type(None))
        data["result_orders"] = {str(n): list(order) for n, order in self.result_orders.items()}
        data["fixed"] = [[p, v if isinstance(v, plain) else {"repr": repr(v)}] for p, v in self.fixed]
        for output in data["outputs"]:
            if not isinstance(output["value"], plain):
                raise ArgumentError(f"an output of the model is a {type(output['value']).__name__}, which a file cannot hold")
        return data

    @staticmethod
    def from_dict(data: Any) -> Signature:
        """The inverse of `to_dict`.

        Raises:
            ValueError: the data is no signature; the message says which value, and what was expected.
        """
        return record(Signature, data, "the signature")
