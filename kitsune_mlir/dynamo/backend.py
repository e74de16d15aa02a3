"""The `kitsune` backend of torch.compile (PyTorch finds it through the package's entry point)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kitsune_mlir.errors import ArgumentError, KitsuneError

if TYPE_CHECKING:
    from kitsune_mlir.options import Options

__all__ = ["MODES", "kitsune"]

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    # A program is one launch or a few: there is nothing to be gained by recording them.
    "reduce-overhead": {},
    "max-autotune": {"tune": True},
    "max-autotune-no-cudagraphs": {"tune": True},
}
"""torch.compile's modes, as options of ours."""


def kitsune(
    gm: Any, example_inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph that Dynamo captured: static shapes, inference.

    Args:
        gm: the captured `torch.fx.GraphModule`.
        example_inputs: one for each of its placeholders.
        mode: one of torch.compile's modes; see `MODES`.
        options: fields of `kitsune_mlir.Options` (`torch.compile(..., options={"threads": 1})`).

    A graph that needs gradients, or that cannot be compiled, runs as PyTorch would run it, with a warning that says why.

    Raises:
        ArgumentError: there is no such mode or option; the message lists those that there are.
    """
    import torch

    chosen = _options(mode, options)
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in example_inputs):
        return _in_pytorch(gm, "it needs gradients; call the model under torch.no_grad()")
    try:
        return _compiled(gm, list(example_inputs), chosen)
    except KitsuneError as error:
        return _in_pytorch(gm, str(error))
    except Exception as error:  # a user's model goes on, whatever is wrong with the compiler
        return _in_pytorch(gm, f"the compiler failed, which is a bug in it: {type(error).__name__}: {error}")


def _options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    from kitsune_mlir.options import options_of

    if mode is not None and mode not in MODES:
        raise ArgumentError(f"mode '{mode}' of torch.compile is unknown; modes are {', '.join(MODES)}")
    return options_of({**MODES[mode or "default"], **(options or {})})


def _in_pytorch(gm: Any, why: str) -> Callable[..., Any]:
    warnings.warn(f"kitsune: a graph of {len(gm.graph.nodes)} nodes runs in PyTorch: {why}", stacklevel=3)
    return gm.forward


def _compiled(gm: Any, inputs: list[Any], options: Options) -> Callable[..., Any]:
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    from kitsune_mlir.dialects import new_context
    from kitsune_mlir.dynamo.call import Call
    from kitsune_mlir.dynamo.outputs import outputs_of
    from kitsune_mlir.frontend import import_graph_module
    from kitsune_mlir.machine.target import find_target
    from kitsune_mlir.options import Phases
    from kitsune_mlir.pipeline import choose_target, compile_imported, warn_if_slow

    # Dynamo's tracing must not see ours: torch.export would write Dynamo's guards, and its variables, into the program.
    with unset_fake_temporarily(), torch._guards.tracing(None), torch.no_grad():
        outputs = outputs_of(gm, inputs)
        computed = outputs.computed_graph(gm)
        if computed is None:  # views of inputs only: PyTorch makes them without any work
            return gm.forward
        imported = import_graph_module(computed, inputs, context=new_context())
        machine = find_target(choose_target(gm, inputs))
        program = compile_imported(imported, machine, options, Phases(options.on_phase))
    warn_if_slow(program.summary, stacklevel=3)
    return program if outputs.are_the_program_s(program.signature) else Call(program, outputs, gm.forward)
