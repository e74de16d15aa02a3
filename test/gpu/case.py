"""What a GPU check consists of: a kernel compiled here, and a description from which another machine runs and checks it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.kernel.kernel import Compiled, Kernel


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel and how to run it.

    Attributes:
        kernel: compiled artefacts.
        tensors: one dict per tensor: name, dtype, shape, init ("ints", "signs", "normal", "zeros", "ones", "nan", "arange",
            "permutation", "index", or a list of numbers), and for "index" the bound.
        arguments: per kernel parameter {"tensor": name, "byte_offset": n} or {"value": number}.
        check: name of the function of `primitives_check.py` that looks at the results.
        params: what that function wants to know.
        blocks: size of the grid.
        spills: whether spilling registers is tolerated.
    """

    kernel: Compiled
    tensors: list[dict[str, Any]]
    arguments: list[dict[str, Any]]
    check: str
    params: dict[str, Any]
    blocks: int = 1
    spills: bool = False

    def write(self, folder: Path, name: str) -> None:
        """Put `name`.cubin and `name`.json into `folder`."""
        (folder / f"{name}.cubin").write_bytes(self.kernel.cubin.data)
        description = {
            "name": name,
            "manifest": self.kernel.manifest,
            "tensors": self.tensors,
            "arguments": self.arguments,
            "check": self.check,
            "params": self.params,
            "blocks": self.blocks,
        }
        (folder / f"{name}.json").write_text(json.dumps(description))


CASES: dict[str, Callable[[], Case]] = {}
"""All cases by name; calling one builds it."""


def register(name: str, make: Callable[[], Case]) -> None:
    """Add a case; it is built in a context of its own."""

    def build() -> Case:
        with ir.Context(), ir.Location.unknown():
            return make()

    if name in CASES:
        raise ValueError(f"two cases are named {name}")
    CASES[name] = build


def tensor(name: str, dtype: str, shape: list[int], init: Any = "zeros", bound: int = 0) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape, "init": init, "bound": bound}


def finish(
    kernel: Kernel,
    tensors: list[dict],
    check: str,
    blocks: int = 1,
    fastmath: str = "contract",
    scalars: tuple = (),
    **params: Any,
) -> Case:
    """Compile, with the tensors as arguments in the order of the parameters, then the scalars."""
    arguments: list[dict] = [{"tensor": item["name"]} for item in tensors][: len(kernel.parameters) - len(scalars)]
    arguments += [{"value": value} for value in scalars]
    return Case(kernel.compile(fastmath=fastmath), tensors, arguments, check, params, blocks)
