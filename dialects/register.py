"""Loading the dialects of this project into a context."""

from torch_mlir import ir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.passmanager import PassManager

from . import attributes, recurrence, stage_graph, tile_program, types  # noqa: F401  (importing a module adds its ops)
from .kitsune import Kitsune


def load(context: ir.Context) -> ir.Context:
    """Load the kitsune dialect (once) and torch-mlir's own dialects into `context`, and return it.

    Must run before text that uses the dialect is parsed. Loading twice is harmless.
    """
    torch_dialect.register_dialect(context)  # tm_tensor ops, and the passes that lower them, live there
    with context, ir.Location.unknown():
        if not context.is_dialect_loaded(Kitsune.DIALECT_NAMESPACE):
            Kitsune.load()
            # The bindings cannot load tm_tensor by name, but any pass that makes its ops loads it before it runs.
            PassManager.parse("builtin.module(func.func(tm-tensor-bufferize))").run(ir.Module.create().operation)
    return context


def new_context() -> ir.Context:
    """A fresh context that knows every dialect this project uses."""
    return load(ir.Context())
