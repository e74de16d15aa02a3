"""Rewrites LLVM 24's IR text, which the MLIR wheel prints, into text that LLVM 22 (llvmlite) reads.

Three spellings differ (LLVM 24 release notes, "floating-point literals"):

* `f0x3727C5AC`: the bits of the value in the value's own type. LLVM 22 knows `0x` plus the 64 bits of the value
widened to double (for `float` and `double`), `0xH` plus 16 bits (`half`) and `0xR` plus 16 bits (`bfloat`).
* Decimals such as `float 1.000000e-01` that are rounded to the type. LLVM 22 takes a decimal only if it is exact.
* `+inf`, `-inf`, `+qnan`, `+nan(0x123)`, `+snan(0x1)`. LLVM 22 has only the hexadecimal spelling of these.

So every floating-point literal is written in hexadecimal. Its type is the nearest type name to its left on the line:
`fadd float %a, 1.000000e-01` and `phi float [ 1.0, %b ]` name the type once for several operands. Quoted strings
(inline PTX has literals of its own) and comments stay as they are.

`llvm.inline_asm` has no way to say `convergent` in MLIR, yet barriers, wgmma and shuffles must neither be duplicated
nor moved into divergent code: `mark_inline_asm` adds the attribute.
"""

from __future__ import annotations

import re
import struct

import numpy as np

__all__ = ["downgrade_floats", "mark_inline_asm"]

# Type name -> (total bits, mantissa bits).
_FORMATS = {"half": (16, 10), "bfloat": (16, 7), "float": (32, 23), "double": (64, 52)}

_TOKEN = re.compile(
    r"""
      "(?:[^"\\]|\\.)*"                                     # a string: left alone
    | ;[^\n]*                                               # a comment: left alone
    | (?<![\w.%@$-])(?P<type>half|bfloat|float|double)\b
    | (?<![\w.%@$-])(?P<literal>
          f0x[0-9A-Fa-f]+
        | [+-](?:inf|qnan|s?nan\(0x[0-9A-Fa-f]+\))
        | [+-]?\d+\.\d*(?:[eE][+-]?\d+)?
      )(?![\w.])
    """,
    re.VERBOSE,
)
# Lines without one of these have no literal; most have none, and this is quicker to find out than reading their tokens.
_CANDIDATE = re.compile(r"f0x|[+-](?:inf|qnan|s?nan)|\d\.\d*")
_ASM_CALL = re.compile(r'^(\s*(?:%\S+ = )?(?:\w+ )?call [^"]*\basm\b[^"]*"[^\n]*?)((?:, ![^"\n]*)?)$', re.MULTILINE)
_GROUP = re.compile(r"^attributes #(\d+)", re.MULTILINE)


def downgrade_floats(text: str) -> str:
    """Spell every floating-point literal of `text` (LLVM 24's IR) so that LLVM 22 reads the same bits.

    Raises:
        ValueError: a literal stands on a line with no floating-point type before it.
    """
    return "\n".join(_spelled(line) if _CANDIDATE.search(line) else line for line in text.split("\n"))


def _spelled(line: str) -> str:
    current: str | None = None

    def spell(match: re.Match[str]) -> str:
        nonlocal current
        if match["type"]:
            current = match["type"]
        elif match["literal"]:
            if current is None:
                raise ValueError(f"floating-point literal without a type: {line[: match.end()]}")
            return _hexadecimal(_bits(match["literal"], current), current)
        return match.group()

    return _TOKEN.sub(spell, line)


def mark_inline_asm(text: str) -> str:
    """Give every inline assembly call its attributes: `convergent` if it has side effects, else `memory(none)`.

    Calls without `sideeffect` are pure arithmetic (`add.rn.bf16x2`). LLVM takes them for reads and writes of any memory
    unless told otherwise.
    """
    group = 1 + max((int(number) for number in _GROUP.findall(text)), default=-1)

    def mark(match: re.Match[str]) -> str:
        effects = "sideeffect" in match[1].split('"', 1)[0]
        return f"{match[1]} #{group if effects else group + 1}{match[2]}"

    marked, changed = _ASM_CALL.subn(mark, text)
    if not changed:
        return text
    return (
        f"{marked}\nattributes #{group} = {{ convergent nounwind }}\n"
        f"attributes #{group + 1} = {{ nounwind willreturn memory(none) }}\n"
    )


def _bits(literal: str, type_name: str) -> int:
    """The bits of `literal` in the format `type_name`, as an unsigned integer."""
    total, mantissa = _FORMATS[type_name]
    if literal.startswith("f0x"):
        return int(literal[3:], 16)
    sign = (literal[0] == "-") << (total - 1)
    infinity = (1 << (total - 1)) - (1 << mantissa)
    quiet = 1 << (mantissa - 1)
    if literal[1:] == "inf":
        return sign | infinity
    if literal[1:] == "qnan":
        return sign | infinity | quiet
    if "nan(" in literal:
        payload = int(literal[literal.index("0x") : -1], 16)
        return sign | infinity | payload | (0 if "snan" in literal else quiet)
    return _round_decimal(float(literal), type_name)


def _round_decimal(value: float, type_name: str) -> int:
    if type_name == "double":
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    if type_name == "half":
        return int(np.float16(value).view(np.uint16))
    single = int(np.float32(value).view(np.uint32))
    if type_name == "float":
        return single
    # Round to nearest even on the upper half. The text has at most seven digits, so that rounding twice is harmless.
    return (single + 0x7FFF + ((single >> 16) & 1)) >> 16


def _hexadecimal(bits: int, type_name: str) -> str:
    if type_name == "half":
        return f"0xH{bits:04X}"
    if type_name == "bfloat":
        return f"0xR{bits:04X}"
    if type_name == "double":
        return f"0x{bits:016X}"
    return f"0x{_widen_single(bits):016X}"


def _widen_single(bits: int) -> int:
    """Bits of the double that equals the single with `bits`; NaN payloads keep their place, quiet or not."""
    if bits & 0x7F800000 == 0x7F800000:
        return (bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29
    return struct.unpack("<Q", struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]))[0]
