"""Descriptions of TMA tensor maps: what the runtime encodes with `cuTensorMapEncodeTiled`. Pure Python, no IR.

Dimensions are written as for arrays, outermost first; the last one is contiguous. (The driver and PTX count the other way.)
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from kitsune_mlir.errors import CompileError

__all__ = ["ELEMENT_BYTES", "TensorMap"]

ELEMENT_BYTES = {
    "i8": 1,
    "u8": 1,
    "i16": 2,
    "f16": 2,
    "bf16": 2,
    "i32": 4,
    "f32": 4,
    "tf32": 4,
    "i64": 8,
    "f64": 8,
}
"""Bytes of the element types a tensor map can have. "tf32" makes TMA round f32 to tf32 (toward what wgmma reads)."""


@dataclasses.dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory, and the box that one TMA instruction moves.

    Attributes:
        dtype: one of `ELEMENT_BYTES`.
        shape: elements by dimension, outermost first, 1 to 5 dimensions.
        strides_bytes: distance in bytes between neighbours, for every dimension but the last (which is contiguous).
        box: elements that one instruction moves, by dimension, at most 256 each.
        swizzle: bytes of the span within which 16-byte pieces are permuted in shared memory: 0, 32, 64 or 128. The
            shared-memory layout is `shared_tile.SharedTile`'s.
        fill: what reading outside of the shape gives: "zero" or "nan". Writing outside does nothing.
        steps: take every so manieth element of the box, by dimension; empty is every one. The last dimension's is 1.
        promotion: bytes that L2 brings from DRAM at a time: 64, 128 or 256. Boxes of narrow rows that lie far apart come 9 %
            faster with 128 than with 256, where only one block reads them (products of few rows, measured on an H200).

    Raises:
        CompileError: the driver would reject it; the message names the limit and the value.
    """

    dtype: str
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    fill: str = "zero"
    steps: tuple[int, ...] = ()
    promotion: int = 256

    def __post_init__(self) -> None:
        for field in ("shape", "strides_bytes", "box", "steps"):
            object.__setattr__(self, field, tuple(int(number) for number in getattr(self, field)))
        self._check()

    @classmethod
    def contiguous(cls, dtype: str, shape: tuple[int, ...], box: tuple[int, ...], swizzle: int = 128) -> TensorMap:
        """The map of a dense row-major tensor.

        Raises:
            CompileError: an element type that tensor maps do not have.
        """
        if dtype not in ELEMENT_BYTES:
            raise CompileError(f"a tensor map has no element type '{dtype}'; known: {', '.join(ELEMENT_BYTES)}")
        strides = tuple(math.prod(shape[axis + 1 :]) * ELEMENT_BYTES[dtype] for axis in range(len(shape) - 1))
        return cls(dtype, tuple(shape), strides, tuple(box), swizzle)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def box_bytes(self) -> int:
        """Bytes that one load brings (what the barrier expects); parts outside of the shape count too."""
        steps = self.steps or (1,) * self.rank
        taken = math.prod(-(-extent // step) for extent, step in zip(self.box, steps, strict=True))
        return taken * ELEMENT_BYTES[self.dtype]

    def manifest(self) -> dict[str, Any]:
        """Plain form for JSON; `runtime.tensormap.encode` reads it."""
        return {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "strides_bytes": list(self.strides_bytes),
            "box": list(self.box),
            "swizzle": self.swizzle,
            "fill": self.fill,
            "steps": list(self.steps),
            "promotion": self.promotion,
        }

    def _check(self) -> None:
        def require(condition: bool, what: str) -> None:
            if not condition:
                raise CompileError(f"tensor map of {self.dtype} {list(self.shape)}: {what}")

        require(self.dtype in ELEMENT_BYTES, f"no such element type; known: {', '.join(ELEMENT_BYTES)}")
        size = ELEMENT_BYTES[self.dtype]
        require(1 <= self.rank <= 5, f"1 to 5 dimensions, not {self.rank}")
        require(len(self.box) == self.rank, f"the box {list(self.box)} needs {self.rank} dimensions")
        require(
            len(self.strides_bytes) == self.rank - 1,
            f"{self.rank - 1} strides (all dimensions but the last), not {len(self.strides_bytes)}",
        )
        require(all(1 <= extent <= 1 << 32 for extent in self.shape), "extents are 1 to 2^32")
        require(all(1 <= extent <= 256 for extent in self.box), f"box extents are 1 to 256, not {list(self.box)}")
        for stride in self.strides_bytes:
            require(stride % 16 == 0, f"strides are multiples of 16 bytes, not {stride}")
            require(0 <= stride < 1 << 40, f"strides are below 2^40 bytes, not {stride}")
        require(
            not self.steps
            or (len(self.steps) == self.rank and all(1 <= step <= 8 for step in self.steps) and self.steps[-1] == 1),
            f"steps are 1 to 8, one a dimension, 1 for the last, not {list(self.steps)}",
        )
        require(self.swizzle in (0, 32, 64, 128), f"the swizzle is 0, 32, 64 or 128 bytes, not {self.swizzle}")
        inner = self.box[-1] * size
        require(inner % 16 == 0, f"the innermost box extent is a multiple of 16 bytes, not {inner}")
        require(
            not self.swizzle or inner <= self.swizzle,
            f"the innermost box extent is at most the swizzle's {self.swizzle} bytes, not {inner}",
        )
        require(self.promotion in (64, 128, 256), f"L2 is filled by 64, 128 or 256 bytes, not {self.promotion}")
        require(self.fill in ("zero", "nan"), f"the fill is 'zero' or 'nan', not '{self.fill}'")
        require(self.fill == "zero" or "f" in self.dtype, "only floating-point types are filled with NaN")
