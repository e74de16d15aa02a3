"""Tile sizes by measurement: `Options(tune=True)`.

Every stage is compiled and timed alone, with the tile that the planner chose and with its neighbours (`candidates`); the
fastest is what the program is then planned with. Results are kept on disk by device and by what the stage computes (`cache`,
`stage_key`), so a stage that many models have is measured once.
"""

from kitsune_mlir.tuning.cache import TuningCache
from kitsune_mlir.tuning.isolate import tensor_types
from kitsune_mlir.tuning.progress import progress
from kitsune_mlir.tuning.search import Tuned, Work, partition, plan, tune

__all__ = ["Tuned", "TuningCache", "Work", "partition", "plan", "progress", "tensor_types", "tune"]
