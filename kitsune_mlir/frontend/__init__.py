"""From PyTorch to linalg on tensors: `import_model` for modules, `import_graph_module` for Dynamo's graphs, `opened`
for files."""

from kitsune_mlir.frontend.graph_module import import_graph_module
from kitsune_mlir.frontend.imported import Argument, FixedInput, ImportedModel, Result, dtype_name
from kitsune_mlir.frontend.importer import ExportedModel, export_model, import_exported, import_model
from kitsune_mlir.frontend.opening import opened

__all__ = [
    "Argument",
    "ExportedModel",
    "FixedInput",
    "ImportedModel",
    "Result",
    "dtype_name",
    "export_model",
    "import_exported",
    "import_graph_module",
    "import_model",
    "opened",
]
