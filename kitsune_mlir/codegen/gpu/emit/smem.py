"""The shared-memory arena: offsets of everything that a kernel keeps in the one `@smem` symbol. Pure Python, no IR.

The symbol starts on a 1024-byte boundary (the period of the 128-byte swizzle), so an offset that is a multiple of
1024 is a properly aligned tile for TMA and wgmma.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from kitsune_mlir.errors import CompileError

__all__ = ["SHARED_LIMIT", "SharedArena", "SharedSpan"]

SHARED_LIMIT = 232448
"""Bytes of shared memory that one block can have on sm_90 (227 KiB)."""


@dataclasses.dataclass(frozen=True)
class SharedSpan:
    """A named piece of shared memory: `offset` and `bytes` from the start of `@smem`."""

    name: str
    offset: int
    bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.bytes


class SharedArena:
    """Hands out shared memory from the bottom up.

    Spans live until their scope closes: `with arena.scope("stage 3"):` gives back, at its end, what was taken inside
    it, so that stages that run one after the other share the same bytes (the caller puts a barrier between them).
    `peak` is what the launch needs.
    """

    def __init__(self, limit: int = SHARED_LIMIT):
        self.limit = limit
        self.used = 0
        self.peak = 0
        self._live: list[SharedSpan] = []

    @property
    def live(self) -> tuple[SharedSpan, ...]:
        """The spans that are in use now, lowest first."""
        return tuple(self._live)

    @property
    def free(self) -> int:
        """Bytes left above what is in use."""
        return self.limit - self.used

    def take(self, name: str, bytes: int, align: int = 16) -> SharedSpan:
        """A span of `bytes` whose offset is a multiple of `align` (a power of two up to 1024).

        Raises:
            CompileError: it does not fit; the message lists what is in use.
        """
        if align < 1 or align > 1024 or align & (align - 1):
            raise ValueError(f"alignment of '{name}' must be a power of two up to 1024, not {align}")
        if bytes < 0:
            raise ValueError(f"'{name}' cannot have {bytes} bytes")
        start = -(-self.used // align) * align
        if start + bytes > self.limit:
            table = ", ".join(f"{span.name} {span.bytes}" for span in self._live) or "nothing"
            raise CompileError(
                f"shared memory is full: '{name}' needs {bytes} bytes, {max(0, self.limit - start)} of {self.limit} are left "
                f"(in use, in bytes: {table})"
            )
        span = SharedSpan(name, start, bytes)
        self._live.append(span)
        self.used = span.end
        self.peak = max(self.peak, self.used)
        return span

    def fits(self, bytes: int, align: int = 16) -> bool:
        """Whether `take` would succeed."""
        return -(-self.used // align) * align + bytes <= self.limit

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[SharedArena]:
        """Spans taken inside the `with` block are given back at its end; `name` says who in error messages of leaks."""
        used, count = self.used, len(self._live)
        yield self
        if len(self._live) < count:
            raise CompileError(f"shared-memory scope '{name}' gave back spans that it did not take")
        del self._live[count:]
        self.used = used

    def reset(self) -> None:
        """Give everything back; `peak` stays."""
        self._live.clear()
        self.used = 0
