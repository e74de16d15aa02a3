"""GPU code that is emitted and translated to PTX, and not assembled."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from unittest import mock

from kitsune_mlir.codegen.gpu.backend.cubin import Cubin, KernelResources

__all__ = ["unassembled"]


@contextlib.contextmanager
def unassembled(seen: Callable[[str], object] = lambda ptx: None) -> Iterator[None]:
    """Inside, compiling ends before ptxas, as if no kernel needed registers.

    Args:
        seen: called with each PTX text.
    """

    def skip(ptx: str, *_: object, **__: object) -> Cubin:
        seen(ptx)
        names = re.findall(r"\.entry (\w+)", ptx)
        return Cubin(b"", "sm_90a", {name: KernelResources(name, 0, 0, 0, 0, 0, 0) for name in names}, (), "")

    with (
        mock.patch("kitsune_mlir.codegen.gpu.backend.assembling.assemble_best", skip),
        mock.patch("kitsune_mlir.codegen.gpu.backend.assembling._count", lambda: 1),  # texts in the kernels' order
        mock.patch("kitsune_mlir.codegen.gpu.backend.cubin.assemble_best", skip),
        mock.patch("kitsune_mlir.codegen.gpu.backend.cubin.assemble", skip),
    ):
        yield
