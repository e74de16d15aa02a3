"""Failures of the code generators: what they did not expect is an error of this package too, and says what they worked on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_mlir import ir

from kitsune_mlir.errors import CompileError, KitsuneError

__all__ = ["named"]


@contextmanager
def named(what: str, location: ir.Location) -> Iterator[None]:
    """An exception that is none of this package's, raised inside, becomes a `CompileError` that says who failed, and where.

    Args:
        what: who works on what: "engine 'chain', planning task 'product_0',".
        location: of what it works on.
    """
    try:
        yield
    except KitsuneError:
        raise
    except Exception as error:
        raise CompileError(f"{location}: {what} failed: {type(error).__name__}: {error}") from error
