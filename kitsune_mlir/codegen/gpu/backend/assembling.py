"""LLVM IR -> PTX -> cubin of several kernels side by side, while the caller goes on.

LLVM runs outside of Python's global lock, one call at a time (llvmlite has a lock of its own), and ptxas is a program. So with
two cores the kernels after one are emitted while that one is assembled.
"""

from __future__ import annotations

import functools
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from kitsune_mlir.cache.store import Store
from kitsune_mlir.codegen.gpu.backend.cubin import Cubin, assemble_best
from kitsune_mlir.codegen.gpu.backend.cubin_cache import CubinCache
from kitsune_mlir.codegen.gpu.backend.ptxas import Children, find_ptxas
from kitsune_mlir.codegen.gpu.backend.to_llvm import Text, to_assembly

__all__ = ["Assembling"]


class Assembling:
    """Assembles kernels by threads, one a processor, until it is left; with an error nothing goes on then.

    Args:
        chip: what for.
        seconds: wall time that ptxas may take for a kernel; None is no limit.
        store: where assembled kernels are kept; None is nowhere.
    """

    def __init__(self, chip: str, seconds: float | None, store: Store | None = None):
        self._chip, self._seconds = chip, seconds
        self._kept = CubinCache(store) if store is not None else None
        self._children = Children()
        self._threads = ThreadPoolExecutor(_count(), "assembling")

    def submit(self, text: Text) -> Future[tuple[str, Cubin]]:
        """PTX and cubin of a kernel, in time. Errors as of `to_assembly` and `assemble_best`."""
        return self._threads.submit(self._children.owning, functools.partial(self._assembled, text))

    def _assembled(self, text: Text) -> tuple[str, Cubin]:
        ptx = to_assembly(text)
        if self._kept is None:
            return ptx, assemble_best(ptx, self._chip, self._seconds)
        if (known := self._kept.get(ptx, self._chip)) is not None:
            return ptx, known
        begun = time.monotonic()
        made = assemble_best(ptx, self._chip, self._seconds)
        # Where the time was over, something better may have been given up.
        if self._seconds is None or time.monotonic() - begun < self._seconds:
            self._kept.put(ptx, made)
        return ptx, made

    def __enter__(self) -> Assembling:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._children.kill()
        self._threads.shutdown()


def _count() -> int:
    """Threads: nvJitLink, which works in this process, does one kernel at a time."""
    return len(os.sched_getaffinity(0)) if find_ptxas() is not None else 1
