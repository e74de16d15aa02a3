"""Types of the tile program: semaphores and ring queues."""

from torch_mlir import ir

from .kitsune import Kitsune


class SemaphoreType(Kitsune.Type, name="semaphore"):
    """`!kitsune.semaphore`: an array of arrival counters, one a slot, in device memory (cuSync, section 4).

    A slot counts the posts made in the current run of the program; it never decreases within a run.
    """


class QueueType(Kitsune.Type, name="queue"):
    """`!kitsune.queue<tile type, depth>`: a ring of `depth` tiles in L2 between two co-resident stages (Kitsune, section 4).

    Each slot carries its own sequence number, so that a producer's lag and a consumer's lag cannot add up to a deadlock.
    """

    tile: ir.TypeAttr
    depth: ir.IntegerAttr
