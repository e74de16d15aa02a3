"""Rows of graphs with symbolic sizes: which dimensions they are, and where they are not independent."""

from kitsune_mlir.frontend.rows.analysis import Rows, rows_of
from kitsune_mlir.frontend.rows.axes import Axis
from kitsune_mlir.frontend.rows.node import Crossing

__all__ = ["Axis", "Crossing", "Rows", "rows_of"]
