"""Counting tensor-core instructions in a cubin: the check that the assembler has kept every product.

ptxas (CUDA 13.0 to 13.5) was seen to drop `wgmma.mma_async` without a word at low optimisation, which no report shows; the
results are then wrong. Instructions of sm_90 have 16 bytes, the opcode in the low 12 bits; HGMMA's low nine are 0x1f0 (found by
assembling kernels with known numbers of products), whatever the form of its operands.
"""

from __future__ import annotations

import re
import struct

__all__ = ["products_in_cubin", "products_in_ptx"]

_INSTRUCTION = 16
_OPCODE_MASK, _HGMMA = 0x1FF, 0x1F0


def products_in_ptx(ptx: str) -> int:
    """How many `wgmma.mma_async` instructions a PTX text has."""
    return len(re.findall(r"\bwgmma\.mma_async\b", ptx))


def products_in_cubin(cubin: bytes) -> int:
    """How many HGMMA instructions the code of a cubin (an ELF file for sm_90a) has.

    Raises:
        ValueError: it is no 64-bit ELF file.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("a cubin is a 64-bit ELF file")
    return sum(
        struct.unpack_from("<H", code, place)[0] & _OPCODE_MASK == _HGMMA
        for code in _code_sections(cubin)
        for place in range(0, len(code), _INSTRUCTION)
    )


def _code_sections(cubin: bytes) -> list[bytes]:
    """The sections `.text.*` (ELF-64 header and section header, little endian)."""
    (first,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<II16xQQ", cubin, first + size * number) for number in range(count)]
    text = headers[names][2]
    found = []
    for name, _, start, length in headers:
        if cubin[text + name :].startswith(b".text."):
            found.append(cubin[start : start + length])
    return found
