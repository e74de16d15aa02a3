"""What AOTAutograd knows of the inputs and outputs of the graph at hand, which PyTorch has no public name for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd import runtime_wrappers

from kitsune_mlir.errors import FrontendError

__all__ = [
    "CHANGING",
    "changing_outputs",
    "differentiable_outputs",
    "plain_call",
    "regenerated",
    "static_inputs",
    "traced_outputs",
    "written_inputs",
]


_APART = hasattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices")
CHANGING = "_dynamo_propagated_dynamic_indices" if _APART else "_dynamo_weak_dynamic_indices"
"""Where a tensor says which of its sizes change; the other one is what users mark, which guards ask for where they differ."""


def _metadata() -> Any:
    """What AOTAutograd knows of the inputs and outputs of the graph at hand."""
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)


def static_inputs() -> list[int]:
    """Numbers of the inputs of the graph at hand that are parameters and buffers, or that the user marked as static."""
    return list(getattr(_metadata(), "static_input_indices", None) or ())


def written_inputs(count: int) -> frozenset[int] | None:
    """Numbers of the inputs, of so many, that the graph at hand changes, or in whose memory it changes tensors; None where it
    changes some, and their numbers are not those of the graph's inputs."""
    infos = getattr(_metadata(), "input_info", ())
    found = frozenset(n for n, info in enumerate(infos) if info.mutates_data)
    return found if len(infos) == count or not found else None


def plain_call(count: int) -> Sequence[int] | None:
    """Numbers of the inputs whose changes AOTAutograd counts in a call of the graph at hand, if all else that it does there is
    to call what was compiled, with the same inputs, of which there are so many: changes are made in the graph, outputs are new
    tensors, and no tensor is of a subclass. None where it does more."""
    metadata = _metadata()
    try:
        changed = [i for i in metadata.input_info if i.mutates_data or i.mutates_metadata or i.mutates_storage_metadata]
        within = all(i.mutation_type.name == "MUTATED_IN_GRAPH" and not i.mutates_metadata for i in changed)
        within = within and not any(i.mutates_storage_metadata or i.mutation_inductor_storage_resize for i in changed)
        new = all(o.output_type.name == "non_alias" and issubclass(o.raw_type, torch.Tensor) for o in metadata.output_info)
        plain = all(type(m).__name__ == "PlainTensorMeta" for m in metadata.subclass_inp_meta)
        plain = plain and all(type(m).__name__ == "PlainTensorMeta" for m in metadata.subclass_fw_graph_out_meta)
        more = metadata.tokens or metadata.num_intermediate_bases or metadata.is_rng_op_functionalized
        more = more or metadata.num_mutated_inp_runtime_indices
        same = len(metadata.input_info) == count and metadata.grad_enabled_mutation is None
        counted = list(metadata.mutated_graph_handled_indices_seen_by_autograd)
        return counted if same and new and plain and within and not more else None
    except AttributeError:  # a PyTorch that says it in other words
        return None


def changing_outputs() -> list[tuple[int, Collection[int]]]:
    """Numbers of the outputs of the graph at hand with dimensions whose sizes are not known, and these dimensions."""
    infos: Any = getattr(_metadata(), "output_info", ())
    return [(n, {*info.dynamic_dims}) for n, info in enumerate(infos) if info.dynamic_dims]


def traced_outputs() -> int:
    """How many outputs the inference graph at hand gives, those among them that are written back into inputs."""
    metadata = _metadata()
    return len(metadata.output_info) + metadata.num_mutated_inp_runtime_indices


def differentiable_outputs() -> list[int]:
    """Numbers of the outputs of the graph at hand, a forward, that have gradients.

    Raises:
        FrontendError: an output shares memory with an input or another output, or an input that has gradients is changed.
    """
    metadata = _metadata()
    if metadata.num_mutated_inp_runtime_indices:
        raise FrontendError("the model changes an input or a parameter that has gradients, or the size or strides of one")
    for n, info in enumerate(metadata.output_info):
        if info.output_type.name in ("alias_of_input", "is_input"):
            raise FrontendError(f"output {n} is an input, or a view of one; return a clone of it")
        if info.output_type.name not in ("non_alias", "unsafe_view_alias", "custom_function_view"):
            raise FrontendError(f"output {n} shares memory with another output; return a clone of it")
    return [n for n, info in enumerate(metadata.output_info) if info.requires_grad]


def regenerated() -> set[int]:
    """Numbers of outputs of the inference graph at hand that AOTAutograd makes itself of inputs."""
    metadata = _metadata()
    if metadata is None or metadata.num_mutated_inp_runtime_indices:
        return set()
    kinds = [info.output_type.name for info in metadata.output_info]
    return {n for n, kind in enumerate(kinds) if kind in ("alias_of_input", "is_input")}
