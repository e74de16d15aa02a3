"""What a pass is: a frozen dataclass whose fields are its options and whose docstring is its help."""

from dataclasses import dataclass
from typing import ClassVar

from torch_mlir import ir

from kitsune_mlir.errors import KitsuneError


class PassFailure(KitsuneError):
    """A pass cannot go on. Carries the op, so that the driver reports `file:line:col: error: message`."""

    def __init__(self, op: ir.Operation | ir.OpView, message: str):
        self.op = op.operation
        self.location = op.location
        self.message = message
        super().__init__(f"{self.location}: '{self.op.name}' op {message}")


@dataclass(frozen=True)
class Pass:
    """Base of all passes. `run` rewrites a module in place and leaves verified IR, or raises PassFailure.

    A pass that `only_schedules` sets attributes of stages and pipelines and changes nothing else.
    """

    name: ClassVar[str] = ""
    only_schedules: ClassVar[bool] = False

    def run(self, module: ir.Operation) -> None:
        """Rewrite the module whose operation is given."""
        raise NotImplementedError(f"{type(self).__name__}.run")
