"""kitsune-mlir."""
