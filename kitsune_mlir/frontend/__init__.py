"""From PyTorch to linalg on tensors: `import_model` for modules, `import_graph_module` for Dynamo's graphs."""

from kitsune_mlir.frontend.graph_module import import_graph_module
from kitsune_mlir.frontend.imported import Argument, FixedInput, ImportedModel, Result, dtype_name
from kitsune_mlir.frontend.importer import import_model

__all__ = [
    "Argument",
    "FixedInput",
    "ImportedModel",
    "Result",
    "dtype_name",
    "import_graph_module",
    "import_model",
]
