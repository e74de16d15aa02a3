"""TMA tensor maps for a launch: from the description in a manifest to the 128 bytes that the kernel gets."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from kitsune_mlir.errors import ArgumentError, KitsuneError, TargetError

__all__ = ["DTYPES", "FILLS", "MAP_BYTES", "PROMOTIONS", "SWIZZLES", "EncodedMaps", "encode", "encoder"]

MAP_BYTES = 128
"""Size of an encoded tensor map (CUtensorMap of cuda.h)."""
KEPT_MAPS = 4096
"""Encoded tensor maps that are kept for each of a kernel's."""

DTYPES = {
    "i8": ("UINT8", 1),
    "u8": ("UINT8", 1),
    "i16": ("UINT16", 2),
    "f16": ("FLOAT16", 2),
    "bf16": ("BFLOAT16", 2),
    "i32": ("INT32", 4),
    "f32": ("FLOAT32", 4),
    "tf32": ("TFLOAT32", 4),
    "i64": ("INT64", 8),
    "f64": ("FLOAT64", 8),
}
"""The driver's names of element types, and their bytes."""

SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
FILLS = {"zero": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}
PROMOTIONS = (64, 128, 256)


def encode(description: dict[str, Any], address: int) -> Any:
    """Encode a tensor map with the driver.

    Args:
        description: `dtype`, `shape`, `strides_bytes`, `box` (outermost first; no stride for the last dimension), `swizzle`
            (0, 32, 64, 128 bytes), `fill` ("zero", "nan"), `steps` (empty: all 1) and `promotion` (64, 128, 256 bytes that L2
            brings at a time): what the compiler writes into it.
        address: of the tensor's first element in global memory, a multiple of 16.

    Returns:
        A `CUtensorMap`; `int(map.getPtr())` is the address of its 128 bytes, which must live until the launch.

    Raises:
        ArgumentError: the address is not aligned.
        TargetError: `cuda-bindings` is missing.
        KitsuneError: the driver rejects the map.
    """
    return encoder(description)(address)


def encoder(description: dict[str, Any]) -> Callable[[int], Any]:
    """What encodes tensor maps of a description, as `encode` does; all but the address is made ready once."""
    try:
        from cuda.bindings import driver as cu
    except ImportError as error:
        raise TargetError("launching on a GPU needs the package 'cuda-bindings'") from error
    rank = len(description["shape"])
    kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{DTYPES[description['dtype']][0]}")
    rest = (
        [cu.cuuint64_t(extent) for extent in reversed(description["shape"])],
        # A vector has no strides, but the driver wants the array to exist.
        [cu.cuuint64_t(stride) for stride in reversed(description["strides_bytes"])] or [cu.cuuint64_t(16)],
        [cu.cuuint32_t(extent) for extent in reversed(description["box"])],
        [cu.cuuint32_t(step) for step in reversed(description.get("steps") or [1] * rank)],
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[description['swizzle']]}"),
        getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_L2_{description.get('promotion', 256)}B"),
        getattr(cu.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{FILLS[description['fill']]}"),
    )

    def encoded(address: int) -> Any:
        if address % 16:
            raise ArgumentError(f"a tensor read by TMA starts at a multiple of 16 bytes, not at {address:#x}")
        status, made = cu.cuTensorMapEncodeTiled(kind, rank, address, *rest)
        if status != cu.CUresult.CUDA_SUCCESS:
            raise KitsuneError(f"the driver rejects the tensor map {description} at {address:#x}: {status.name}")
        return made

    return encoded


class EncodedMaps(dict[int, bytes]):
    """A kernel's tensor map in bytes, by where the memory begins that it is of; encoded when it is asked for.

    Args:
        description: as of `encode`.
        offset: bytes from there to the tensor's first element.
    """

    def __init__(self, description: dict[str, Any], offset: int):
        super().__init__()
        self._description, self._offset = description, offset
        self._encode: Callable[[int], Any] | None = None

    def __missing__(self, start: int) -> bytes:
        if len(self) >= KEPT_MAPS:
            self.clear()
        if self._encode is None:
            self._encode = encoder(self._description)
        encoded = self._encode(start + self._offset)
        found = self[start] = ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)
        return found
