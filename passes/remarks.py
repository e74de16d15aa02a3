"""Remarks: what a pass wants a user to know, shown under `--remarks`.

The bindings can emit errors only, so remarks go through a collector of this project's own.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

from torch_mlir import ir


class Remark(str):
    """`loc(...): remark: 'op' op message`, with its parts."""

    location: ir.Location
    message: str

    def __new__(cls, op: ir.Operation, message: str) -> "Remark":
        message = f"'{op.name}' op {message}"
        self = super().__new__(cls, f"{op.location}: remark: {message}")
        self.location, self.message = op.location, message
        return self


_sink: contextvars.ContextVar[Callable[[Remark], None] | None] = contextvars.ContextVar("kitsune_remarks", default=None)


def remark(op: ir.Operation | ir.OpView, message: str) -> None:
    """Report `message` about `op`; costs nothing when nobody listens."""
    sink = _sink.get()
    if sink is not None:
        sink(Remark(op.operation, message))


@contextlib.contextmanager
def collect_remarks(sink: Callable[[Remark], None]) -> Iterator[None]:
    """Send the remarks of passes run inside the `with` block to `sink`."""
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)
