"""From MLIR text to a cubin: nothing here knows a task."""
