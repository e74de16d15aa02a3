"""What PyTorch's Python dispatcher runs for an operator while a model is traced, put back afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["kernels_restored"]


@contextmanager
def kernels_restored(ops: Iterable[Any]) -> Iterator[None]:
    """Whatever is done within to the operators' `py_kernels` before the first of them is traced ends here."""
    before = {op: dict(op.py_kernels) for op in ops}
    for op in before:
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in before.items():
            op.py_kernels.clear()
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
