"""The `kitsune` backend of torch.compile."""

from kitsune_mlir.dynamo.artifacts import register
from kitsune_mlir.dynamo.backend import kitsune
from kitsune_mlir.dynamo.graph_options import MODES

__all__ = ["MODES", "kitsune"]

register()
