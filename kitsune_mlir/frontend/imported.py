"""What the frontend hands to the compiler: a module of linalg on tensors and the meaning of its arguments and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._pytree import TreeSpec
from torch_mlir import ir

from kitsune_mlir.runtime.strided import Strided

__all__ = ["Argument", "FixedInput", "ImportedModel", "Result", "dtype_name"]

_DTYPE_NAMES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "ui8",
    torch.uint32: "ui32",
    torch.bool: "i1",
    torch.complex64: "complex<f32>",
    torch.complex128: "complex<f64>",
}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of `dtype` as MLIR spells it (`bf16`, `i64`, `i1`); unsigned ones keep their sign: `ui8`."""
    return _DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Argument:
    """One argument of `main`.

    Attributes:
        name: the weight's qualified name in the model (`layers.0.weight`), or the input's name in the exported graph.
        kind: `constant` is a tensor that the model's code made or holds outside its parameters and buffers; `derived` is
            computed from others.
        shape: sizes, in elements.
        dtype: as `dtype_name` gives it. The function's type is signless: `ui8` arrives as `tensor<…xi8>`.
        value: the weight itself, not a copy; of device meta where it is derived, None for an input.
        position: an input's place among the leaves of `pytree.tree_flatten((args, kwargs))`; None for a weight.
        recipe: how a derived weight is made (`runtime.derived`).
        lies: how an input that is not contiguous does in a dense tensor, which the function takes.
    """

    name: str
    kind: Literal["parameter", "buffer", "constant", "derived", "input"]
    shape: tuple[int, ...]
    dtype: str
    value: torch.Tensor | None = None
    position: int | None = None
    recipe: str = ""
    lies: Strided | None = None


@dataclass(frozen=True)
class FixedInput:
    """A leaf of the user's inputs that is no tensor: the compiled code holds for this value only.

    Attributes:
        position: as `Argument.position`.
        value: an int, float, bool, string, dtype, … or None.
    """

    position: int
    value: Any


@dataclass(frozen=True)
class Result:
    """One leaf of the model's output, or one tensor that the model changes in place.

    Attributes:
        kind: `tensor` is computed by `main`; `alias` is an argument handed back unchanged; `python` is no tensor.
        shape: sizes, in elements; empty for `python`.
        dtype: as `Argument.dtype`; empty for `python`.
        index: for `tensor`, which result of `main`. Two leaves may share one.
        argument: for `alias`, the name of the argument.
        value: for `python`, the value itself (a number, a string, None, …).
        mutates: None for a leaf of the output, else the name of the buffer, parameter or input to be overwritten.
        copied: it is a tensor of its own although an output before it has the same value.
        lies: for `alias`, where in the argument it is, if it is no more than a part of it.
        valid_rows: the argument that says how many of its rows are wanted, and how many it has; None where all are.
    """

    kind: Literal["tensor", "alias", "python"]
    shape: tuple[int, ...] = ()
    dtype: str = ""
    index: int | None = None
    argument: str | None = None
    value: Any = None
    mutates: str | None = None
    copied: bool = False
    valid_rows: tuple[str, int] | None = None
    lies: Strided | None = None


@dataclass(frozen=True)
class ImportedModel:
    """A model as one function of static shapes.

    Attributes:
        module: holds `func.func @main`, on tensors, in the dialects linalg, tensor, arith, math, cf, scf and tm_tensor.
            Arguments carry their name as `kitsune.name`; operations carry the location `"aten.op"(file:line)`.
        arguments: one per function argument: weights first (parameters, then buffers, then constants, each in the
            model's order; unused ones left out, tied ones once), then the tensor inputs in the order in which
            `(args, kwargs)` flattens.
        sources: weights that are no arguments, but that derived ones are made of.
        results: the leaves of the output in `out_spec`'s order, then the mutations. `main` returns only the `tensor`
            ones, each value once; a value may still be an argument or a constant where the arithmetic came to nothing.
        fixed_inputs: the leaves of the input that are no tensors.
        in_spec: pytree of `(args, kwargs)`.
        out_spec: pytree of the model's output.
        seconds: how long each phase took: `export`, `decompose`, `import`, `lower`.
        parameters: names of the positional arguments, as the model has them.
    """

    module: ir.Module
    arguments: tuple[Argument, ...]
    sources: tuple[Argument, ...]
    results: tuple[Result, ...]
    fixed_inputs: tuple[FixedInput, ...]
    in_spec: TreeSpec
    out_spec: TreeSpec
    seconds: dict[str, float]
    parameters: tuple[str, ...] = ()

    @property
    def inputs(self) -> Sequence[Argument]:
        """The arguments that the user supplies at each call."""
        return [a for a in self.arguments if a.kind == "input"]

    @property
    def weights(self) -> Sequence[Argument]:
        """The arguments that the model supplies, or that are derived from what it supplies."""
        return [a for a in self.arguments if a.kind != "input"]

    @property
    def supplied(self) -> dict[str, torch.Tensor]:
        """The model's own tensors by name."""
        own = [a for a in (*self.weights, *self.sources) if not a.recipe]
        return {a.name: a.value for a in own if a.value is not None}
