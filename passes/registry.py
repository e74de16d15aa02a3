"""All passes of this project: one table, and the order in which `compile` runs them."""

from .base import Pass
from .channels_last import ChannelsLast
from .check_progress import CheckProgress
from .finalize_nvvm import FinalizeNvvm
from .form_stages import FormStages
from .fuse_attention import FuseAttention
from .fuse_pairs import FusePairs
from .hoist_gathers import HoistGathers
from .materialize import Materialize
from .merge_rows import MergeRows
from .micro_batches import MicroBatches
from .normalize import Normalize
from .pad_sums import PadSums
from .partition_streams import PartitionStreams
from .place_buffers import PlaceBuffers
from .split_reductions import SplitReductions
from .synchronize import Synchronize
from .to_gpu import ToGpu
from .to_host import ToHost
from .write_in_place import WriteInPlace

PASSES: dict[str, type[Pass]] = {
    cls.name: cls
    for cls in (
        *(
            ChannelsLast,
            Normalize,
            HoistGathers,
            FuseAttention,
            MergeRows,
            PadSums,
            FusePairs,
            MicroBatches,
            SplitReductions,
            FormStages,
            PartitionStreams,
            WriteInPlace,
            PlaceBuffers,
            Synchronize,
            Materialize,
        ),
        *(CheckProgress, ToHost, ToGpu, FinalizeNvvm),
    )
}

# From linalg on tensors to the tile program, whatever the target; `compile` appends the target's own passes.
PIPELINE: list[str] = [
    "kitsune-channels-last",
    "kitsune-normalize",
    "kitsune-hoist-gathers",
    "kitsune-fuse-attention",
    "kitsune-merge-rows",
    "kitsune-pad-sums",
    "kitsune-fuse-pairs",
    "kitsune-micro-batches",
    "kitsune-split-reductions",
    "kitsune-form-stages",
    "kitsune-partition-streams",
    "kitsune-write-in-place",
    "kitsune-place-buffers",
    "kitsune-synchronize",
    "kitsune-materialize",
    "kitsune-check-progress",
]
