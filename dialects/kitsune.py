"""The `kitsune` dialect object and the way to load it into a context.

One dialect holds both forms of a program (docs/dialect.md): the *stage graph* (`stage_graph.py`) and the *tile program*
(`tile_program.py`). Ops are defined in Python through `torch_mlir.dialects.ext`, which prints them in MLIR's generic syntax.
"""

import sys

from torch_mlir import ir
from torch_mlir.dialects import ext

# Whenever an op of a dialect is touched, the bindings import torch_mlir.dialects.<its name> until that works once: it has to,
# or each touch searches the whole module path again.
sys.modules.setdefault("torch_mlir.dialects.kitsune", sys.modules[__name__])


class Kitsune(ext.Dialect, name="kitsune"):
    """Dataflow between the stages of one model, and the tile tasks that the stages become."""


def load(context: ir.Context) -> ir.Context:
    """Load the kitsune dialect (once) and torch-mlir's own dialects into `context`, and return it.

    Must run before text that uses the dialect is parsed. Loading twice is harmless.
    """
    from torch_mlir.dialects import torch as torch_dialect
    from torch_mlir.passmanager import PassManager

    from . import attributes, stage_graph, tile_program, types  # noqa: F401  (importing a module adds its ops)

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
