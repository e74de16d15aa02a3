"""Kernels of one program that overlap: programmatic dependent launch (PTX ISA, `griddepcontrol`)."""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import nvvm

__all__ = ["launch_dependents", "wait_for_prerequisites"]


def launch_dependents() -> None:
    """Once all blocks of this kernel have come here (or ended), the next kernel's may start where there is room for them.

    They see what this kernel writes only after `wait_for_prerequisites`, so this may stand at the kernel's beginning.
    """
    nvvm.griddepcontrol(ir.Attribute.parse("#nvvm<grid_dep_action launch_dependents>"))


def wait_for_prerequisites() -> None:
    """The calling thread waits until the kernel before has ended and what it wrote is visible. It may be called again."""
    nvvm.griddepcontrol(ir.Attribute.parse("#nvvm<grid_dep_action wait>"))
