"""The `kitsune` dialect object.

One dialect holds both forms of a program (docs/dialect.md): the *stage graph* (`stage_graph.py`) and the *tile program*
(`tile_program.py`). Ops are defined in Python through `torch_mlir.dialects.ext`, which prints them in MLIR's generic syntax.
"""

import sys

from torch_mlir.dialects import ext

# Whenever an op of a dialect is touched, the bindings import torch_mlir.dialects.<its name> until that works once: it has to,
# or each touch searches the whole module path again.
sys.modules.setdefault("torch_mlir.dialects.kitsune", sys.modules[__name__])


class Kitsune(ext.Dialect, name="kitsune"):
    """Dataflow between the stages of one model, and the tile tasks that the stages become."""
