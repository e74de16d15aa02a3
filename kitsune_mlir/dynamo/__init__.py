"""The `kitsune` backend of torch.compile."""

from kitsune_mlir.dynamo.backend import MODES, kitsune

__all__ = ["MODES", "kitsune"]
