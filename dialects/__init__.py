"""The kitsune dialect: the stage graph and the tile program (see docs/dialect.md)."""

from .attributes import buffer_attr, sync_attr
from .kitsune import Kitsune
from .register import load, new_context
from .types import QueueType, SemaphoreType

__all__ = ["Kitsune", "QueueType", "SemaphoreType", "buffer_attr", "load", "new_context", "sync_attr"]
