"""`compile`: whatever holds a model, for arguments of one size or of many."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten_with_path, tree_leaves

from kitsune_mlir import pipeline
from kitsune_mlir.dynamo.exported import compile_exported, has_changing_sizes
from kitsune_mlir.dynamo.exported_gradients import compile_gradients
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.frontend import opened
from kitsune_mlir.frontend.export import export, parameter_names
from kitsune_mlir.frontend.imported import ImportedModel
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import Options, options_of
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.settings import choose_target
from kitsune_mlir.sized.gradient_program import GradientProgram
from kitsune_mlir.sized.program import SizedProgram

__all__ = ["compile"]

Sizes = Mapping[Any, Any] | Sequence[Any]


@overload
def compile(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options | Mapping[str, Any] | None = None,
    dynamic: None = None,
    gradients: Literal[False] = False,
) -> Program: ...


@overload
def compile(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options | Mapping[str, Any] | None = None,
    dynamic: Sizes,
    gradients: Literal[False] = False,
) -> SizedProgram: ...


@overload
def compile(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options | Mapping[str, Any] | None = None,
    dynamic: None = None,
    gradients: Literal[True],
) -> GradientProgram: ...


def compile(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    target: str = "auto",
    options: Options | Mapping[str, Any] | None = None,
    dynamic: Sizes | None = None,
    gradients: bool = False,
) -> Any:
    """Compile a model for the shapes and dtypes of example arguments, or for many sizes.

    Args:
        model: a `torch.nn.Module` (its forward is exported; parameters stay shared with the program), a function of tensors, an
            `ExportedProgram`, or the path of a file that holds one (docs/sources.md).
        args, kwargs: example arguments; tensors give shapes and dtypes, other values are compiled in. What was exported has its
            own.
        target: "host", "sm_90a", or "auto": a Hopper GPU where model and arguments are on one, else the host.
        options: an `Options`, or its fields as a mapping.
        dynamic: the sizes that change, by names or positions of arguments, as torch.export's `dynamic_shapes` has them:
            `{"x": {0: torch.export.Dim("n", max=4096)}}`. One Dim at several places is one size. An `ExportedProgram` with such
            sizes has its own.
        gradients: compile the backward, too: of parameters and example arguments that need gradients (`requires_grad`). The
            model is in the mode that it is in, training or evaluation.

    Returns:
        A `Program`; with sizes that change a `SizedProgram`: it is called like one, and serves all sizes; with gradients a
        `GradientProgram`, whose results `backward()` can be called on.

    Raises:
        FrontendError: the model cannot be imported (names the operator and the source line).
        CompileError: a pass or the code generator failed (names the op and a reproducer).
        TargetError: the target does not exist or lacks a component, which is named.
        ArgumentError: an option does not exist, model or arguments are of no kind that is taken, or `dynamic` names none.
        OSError: a file cannot be opened.

    Warns:
        PerformanceWarning: stages will be far slower than the chip needs to be; names them and says why.
    """
    held, example, named = opened(model, args, kwargs)
    exported = isinstance(held, ExportedProgram)
    if gradients:
        return _with_gradients(held, example, named, target, options, dynamic)
    if dynamic is None and not (exported and has_changing_sizes(held)):
        return pipeline.compile(held, example, named, target=target, options=options)
    machine = find_target(choose_target(held, tree_leaves((example, named))) if target == "auto" else target)
    program, names, bound = _exported(held, example, named, dynamic)
    return compile_exported(program, machine, options_of(options), parameter_names(held, len(example)), names, bound)


def _exported(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Sizes | None
) -> tuple[ExportedProgram, dict[tuple[int, int], str], dict[int, Any]]:
    """A model as torch.export captures it, what its sizes are called, and inputs that are bound into it."""
    if dynamic is None:
        program, bound = export(model, args, kwargs)
        return program, {}, bound
    if not (isinstance(model, torch.nn.Module) or (callable(model) and not isinstance(model, ExportedProgram))):
        raise ArgumentError("'dynamic' is for modules and functions; what was exported says itself which sizes change")
    shapes, names = _dynamic_shapes(model, args, kwargs, dynamic)
    program, bound = export(model, args, kwargs, shapes)
    return program, names, bound


def _with_gradients(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], target: str, options: Any, dynamic: Sizes | None
) -> GradientProgram:
    if isinstance(model, ImportedModel):
        raise ArgumentError("'gradients' is for modules, functions and programs of torch.export; this file holds another model")
    leaves = tree_leaves((args, kwargs))
    machine = find_target(choose_target(model, leaves) if target == "auto" else target)
    program, names, bound = _exported(model, args, kwargs, dynamic)
    if isinstance(model, ExportedProgram) and model.example_inputs is not None:
        leaves = tree_leaves(model.example_inputs)
    trained = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]
    given = trained, parameter_names(model, len(args)), names, bound
    return compile_gradients(program, machine, options_of(options), *given)


def _dynamic_shapes(
    model: torch.nn.Module | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Sizes
) -> tuple[dict[str, Any], dict[tuple[int, int], str]]:
    """Sizes as torch.export takes them, of all arguments by name; and what they are called, by leaf and dimension."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
        found = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"the model does not take these arguments: {error}") from error
    rest = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_POSITIONAL and p.name in found), None)
    more = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD and p.name in found), None)
    places = [name for name in found if name not in (rest, more, *kwargs)]
    places += [f"{rest}[{n}]" for n in range(len(args) - len(places))]
    each = dict(enumerate(dynamic)) if isinstance(dynamic, Sequence) else dict(dynamic)
    asked: dict[str, Any] = {}
    for name, sizes in each.items():
        known = places[name] if isinstance(name, int) and name < len(places) else name
        if known not in (*places, *kwargs):
            raise ArgumentError(f"'dynamic' has sizes of {name!r}; arguments are {', '.join([*places, *kwargs]) or 'none'}")
        asked[known] = sizes
    shapes = {name: asked.get(name) for name in found if name not in (rest, more)}
    if rest is not None:
        shapes[rest] = tuple(asked.get(f"{rest}[{n}]") for n in range(len(found[rest])))
    if more is not None:
        shapes[more] = {name: asked.get(name) for name in found[more]}
    names: dict[tuple[int, int], str] = {}
    position = 0
    for name, value in [*zip(places, args, strict=True), *kwargs.items()]:
        for path, leaf in tree_flatten_with_path(value)[0]:
            for dim, size in _dims(asked.get(name), path):
                if isinstance(leaf, Tensor) and isinstance(dim, int) and dim < leaf.dim() and hasattr(size, "__name__"):
                    if leaf.shape[dim] < 2:
                        raise ArgumentError(
                            f"dimension {dim} of example argument '{name}' has {leaf.shape[dim]} elements; size"
                            f" '{size.__name__}' needs an example of two or more, which tells it from sizes that are fixed"
                        )
                    names[position, dim] = size.__name__
            position += 1
    return {name: shapes[name] for name in found}, names


def _dims(sizes: Any, path: Sequence[Any]) -> Sequence[tuple[Any, Any]]:
    """The sizes of a leaf of an argument, by dimension."""
    for key in path:
        step = getattr(key, "idx", None)
        try:
            sizes = sizes[key.key if step is None else step]
        except (TypeError, KeyError, IndexError, AttributeError):
            return []
    if isinstance(sizes, Mapping):
        return list(sizes.items())
    return list(enumerate(sizes)) if isinstance(sizes, list | tuple) else []
