"""What waits in an engine: who waits no longer, and what the engine's figures of that are."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from kitsune_mlir.serving.aside import Aside
from kitsune_mlir.serving.backlog import Backlog
from kitsune_mlir.serving.bell import Bell
from kitsune_mlir.serving.bulk import Bulk
from kitsune_mlir.serving.counts import Counts
from kitsune_mlir.serving.family import Family
from kitsune_mlir.serving.groups import Group, Member
from kitsune_mlir.serving.requests import Request, Waiting

__all__ = ["Waits"]

KEPT = 64
"""Cancelled requests that are held at least, beside as many as wait."""


class Waits:
    """An engine's requests that wait, in its families, among what has arrived and what was handed in together; the part of
    `engine.Engine` that takes some out. `_queues` is taken before `_lock`."""

    _families: Mapping[str, Family]
    _all: Sequence[Family]
    _queues: threading.Lock
    _lock: threading.Lock
    _arrived: list[Waiting]
    _waiting: int
    _bulk: Bulk
    _aside: Aside
    _backlog: Backlog
    _counts: Counts
    _bell: Bell

    def _pending(self) -> list[Waiting]:
        """The requests that wait, and those of them that were cancelled and are not forgotten yet."""
        with self._queues, self._lock:
            self._arrived += self._bulk.members()
            return self._held()

    def _held(self) -> list[Waiting]:
        return [*(one for family in self._all for one in family.pending()), *self._arrived, *self._aside.arrived]

    def _cancelled(self, request: Request) -> None:
        with self._lock:
            self._dropped([request])

    def _drop(self, group: Group) -> list[int]:
        """Let a group's requests wait no longer; their numbers."""
        with self._queues, self._lock:
            own = [one for one in self._held() if type(one) is Member and one.group is group] if not group.dropped else []
            own += self._bulk.members(group)
            group.dropped = True
            self._dropped(own)
        return [one.place for one in own]

    def _dropped(self, requests: Sequence[Waiting]) -> None:
        """Requests were cancelled; `_lock` is held."""
        self._leave(requests)
        for request in requests:
            self._counts.of[request.model].cancelled += 1
        if len(self._arrived) > 2 * self._waiting + KEPT:
            self._arrived = [request for request in self._arrived if not request.cancelled()]
        self._bell.ring()

    def _leave(self, requests: Sequence[Waiting]) -> None:
        """Requests wait no longer; `_lock` is held."""
        self._waiting -= len(requests)
        if not self._waiting:
            for family in self._all:
                family.backlog.clear()
        elif not self._aside.families:
            self._backlog.leave(requests)
        else:
            for request in requests:
                self._families[request.model].backlog.leave((request,))

    def _left(self, count: int, length: int, seconds: float) -> None:
        """As `_leave`, of so many that the backlog knows as `seconds` in all."""
        self._waiting -= count
        if self._waiting:
            self._backlog.enter(length, -seconds)
        else:
            self._backlog.clear()
