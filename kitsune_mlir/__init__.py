"""kitsune-mlir: compile a PyTorch model into a few persistent dataflow kernels.

    import kitsune_mlir
    program = kitsune_mlir.compile(model, (x,))
    y = program(x)

Names are imported on first use, so that loading a stored program needs neither torch-mlir nor the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kitsune_mlir.dynamo.explain import explain
    from kitsune_mlir.epochs import epoch_kernel
    from kitsune_mlir.models import compile
    from kitsune_mlir.pipeline import Options
    from kitsune_mlir.runtime.load import load
    from kitsune_mlir.runtime.program import Program
    from kitsune_mlir.serving.serve import serve
    from kitsune_mlir.simulation.simulate import simulate
    from kitsune_mlir.training.train_step import train_step
    from kitsune_mlir.windows.capture import window
    from kitsune_mlir.windows.trace_tree import trace_tree
    from kitsune_mlir.windows.window import Window

_WHERE = {
    "compile": "kitsune_mlir.models",
    "epoch_kernel": "kitsune_mlir.epochs",
    "explain": "kitsune_mlir.dynamo.explain",
    "Options": "kitsune_mlir.pipeline",
    "load": "kitsune_mlir.runtime.load",
    "Program": "kitsune_mlir.runtime.program",
    "serve": "kitsune_mlir.serving.serve",
    "simulate": "kitsune_mlir.simulation.simulate",
    "trace_tree": "kitsune_mlir.windows.trace_tree",
    "train_step": "kitsune_mlir.training.train_step",
    "Window": "kitsune_mlir.windows.window",
    "window": "kitsune_mlir.windows.capture",
}

__all__ = [
    "Options",
    "Program",
    "Window",
    "compile",
    "epoch_kernel",
    "explain",
    "load",
    "serve",
    "simulate",
    "trace_tree",
    "train_step",
    "window",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'kitsune_mlir' has no attribute '{name}'")
