"""What differs between versions of PyTorch, or is no public part of it: AOTAutograd, and what it knows of the graph at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "aot_autograd",
    "compiling",
    "make_boxed_func",
    "min_cut_rematerialization_partition",
    "regenerated",
    "static_inputs",
    "writes_to_inputs",
]


@contextmanager
def compiling() -> Iterator[None]:
    """Dynamo's tracing must not see ours: constants would be fake, and its guards be written into programs."""
    with unset_fake_temporarily(), _disable_current_modes(), torch._guards.tracing(None), torch.no_grad():
        yield


def _metadata() -> Any:
    """What AOTAutograd knows of the inputs and outputs of the graph at hand."""
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)


def static_inputs() -> list[int]:
    """Numbers of the inputs of the graph at hand that are parameters and buffers, or that the user marked as static."""
    return list(getattr(_metadata(), "static_input_indices", None) or ())


def writes_to_inputs() -> bool:
    """Whether the graph at hand changes its inputs, or tensors in whose memory they lie."""
    metadata = _metadata()
    return metadata is not None and any(info.mutates_data for info in metadata.input_info)


def regenerated() -> set[int]:
    """Numbers of outputs of the inference graph at hand that AOTAutograd makes itself of inputs."""
    metadata = _metadata()
    if metadata is None or metadata.num_mutated_inp_runtime_indices:
        return set()
    kinds = [info.output_type.name for info in metadata.output_info]
    return {n for n, kind in enumerate(kinds) if kind in ("alias_of_input", "is_input")}
