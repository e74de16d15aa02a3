"""Whether bytes can be an object file of this compiler: a relocatable ELF file for x86-64 whose tables fit.

LLVM's linker ends the process on some files whose tables do not fit, and writes outside of its memory on others. This looks at
the tables only: what the instructions do, nobody can say.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["check_object"]

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QIIq")
IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
RELOCATABLE, X86_64 = 1, 62
SYMBOLS, STRINGS, RELOCATIONS, NO_BITS = 2, 3, 4, 8
KINDS = (0, 1, SYMBOLS, STRINGS, RELOCATIONS, 7, NO_BITS, 14, 15, 16, 0x70000001, 0x6FFF4C03)
"""Types of sections that LLVM writes: bits, tables, notes, arrays of functions, unwinding, addresses of significance."""

ALLOCATED, THREADS = 2, 0x400
"""Flags of sections: there is memory for it, and memory for each thread, which code here has not."""

UNNAMED = SECTION_ITSELF, FILE = 3, 4
KINDS_OF_SYMBOLS = (0, 1, 2, SECTION_ITSELF, FILE)  # any, data, code; there are none of threads
BINDINGS = (0, 1, 2)  # local, global, weak
SPECIAL = (0xFFF1,)  # a symbol without a section
WIDTHS = {1: 8, 2: 4, 4: 4, 9: 4, 10: 4, 11: 4, 24: 8, 41: 4, 42: 4}
"""Bytes that relocations of a type change."""

NEAR = (2, 24)  # what they refer to lies in this file; the others go through tables or are whole addresses
SLACK = 64  # bytes that a reference may lie outside of a section, because it counts from the next instruction
LARGEST = 1 << 31


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


def check_object(data: bytes) -> None:
    """Raises ValueError: the bytes are no object file, or a table of it does not fit; the message says which."""
    sections, names = _sections(data)
    _require(0 < names < len(sections) and sections[names].kind == STRINGS, "names of sections are in no table")
    for number, (section, name) in enumerate(zip(sections, _names(data, len(sections)), strict=True)):
        what = f"section {number}"
        _require(section.kind in KINDS, f"{what} is of the type {section.kind:#x}")
        _require(name < max(1, sections[names].size), f"{what} has no name")
        length = 0 if section.kind == NO_BITS else section.size
        _require(section.offset + length <= len(data) and section.size < LARGEST, f"{what} ends outside of the file")
        power = section.alignment & (section.alignment - 1) == 0 if section.alignment else True
        _require(not section.flags & THREADS, f"{what} belongs to threads")
        _require(power and section.alignment <= 1 << 16, f"{what} is aligned to {section.alignment}")
        _require(section.link < len(sections), f"{what} refers to section {section.link} of {len(sections)}")
        if section.kind == STRINGS:
            _require(section.size > 0 and data[section.offset + section.size - 1] == 0, f"{what} is a text without an end")
    tables = [section for section in sections if section.kind == SYMBOLS]
    _require(len(tables) == 1, f"there are {len(tables)} tables of symbols")
    symbols = _symbols(data, sections, tables[0])
    for number, section in enumerate(sections):
        if section.kind == RELOCATIONS:
            _check_relocations(data, sections, section, symbols, number)


def _sections(data: bytes) -> tuple[list[_Section], int]:
    """All sections, and the number of the one that has their names."""
    _require(len(data) >= HEADER.size and data[:7] == IDENT, "it is no ELF file of 64 bits")
    _, kind, machine, _, _, _, at, _, length, _, _, size, count, names = HEADER.unpack_from(data)
    _require((kind, machine) == (RELOCATABLE, X86_64), f"it is of type {kind} for machine {machine}")
    _require((length, size) == (HEADER.size, SECTION.size), f"its headers have {length} and {size} bytes")
    _require(0 < count and at + count * SECTION.size <= len(data), "its table of sections ends outside of the file")
    found = [_Section(*entry[1:3], *entry[4:]) for entry in SECTION.iter_unpack(data[at : at + count * SECTION.size])]
    return found, names


def _names(data: bytes, count: int) -> list[int]:
    at = HEADER.unpack_from(data)[6]
    return [entry[0] for entry in SECTION.iter_unpack(data[at : at + count * SECTION.size])]


def _symbols(data: bytes, sections: list[_Section], table: _Section) -> list[tuple[int, int]]:
    """Section and place of each symbol."""
    names = sections[table.link]
    _require(names.kind == STRINGS and table.entry == SYMBOL.size, "names of symbols are in no table")
    _require(table.size % SYMBOL.size == 0 and table.info <= table.size // SYMBOL.size, "the table of symbols has half a one")
    found: list[tuple[int, int]] = []
    seen: set[bytes] = set()
    for name, kind, _, section, place, size in SYMBOL.iter_unpack(data[table.offset : table.offset + table.size]):
        _require(name < names.size, f"symbol {len(found)} has no name")
        text = data[names.offset + name : data.index(b"\0", names.offset + name)]
        if found and kind & 15 not in UNNAMED:  # the linker finds symbols by name
            _require(text != b"" and text not in seen, f"symbol {len(found)} has the name {text!r}")
            seen.add(text)
        _require(kind & 15 in KINDS_OF_SYMBOLS and kind >> 4 in BINDINGS, f"symbol {len(found)} is of kind {kind}")
        _require(kind & 15 != FILE or section in SPECIAL, f"symbol {len(found)} is a file in section {section}")
        _require(section < len(sections) or section in SPECIAL, f"symbol {len(found)} is in section {section}")
        if 0 < section < len(sections):
            _require(place + size <= sections[section].size, f"symbol {len(found)} ends outside of its section")
        found.append((section, place))
    return found


def _check_relocations(
    data: bytes, sections: list[_Section], table: _Section, symbols: list[tuple[int, int]], number: int
) -> None:
    """Every relocation changes bytes of its section, and refers to a place in this file or to a symbol outside."""
    what = f"a relocation of section {number}"
    fits = table.entry == RELOCATION.size and table.size % RELOCATION.size == 0 and 0 < table.info < len(sections)
    fits = fits and sections[table.link].kind == SYMBOLS and sections[table.info].kind != NO_BITS
    _require(fits, f"section {number} is no table of relocations")
    changed = sections[table.info].size
    for place, kind, symbol, addend in RELOCATION.iter_unpack(data[table.offset : table.offset + table.size]):
        _require(kind in WIDTHS, f"{what} is of the type {kind}")
        _require(place + WIDTHS[kind] <= changed, f"{what} is outside of its section")
        at = sections[table.info].offset + place
        _require(not any(data[at : at + WIDTHS[kind]]), f"{what} changes bytes that are not zero")  # they would be added
        _require(symbol < len(symbols), f"{what} is of symbol {symbol} of {len(symbols)}")
        section, start = symbols[symbol]
        if 0 < section < len(sections):
            inside = -SLACK <= start + addend <= sections[section].size + SLACK
            _require(bool(sections[section].flags & ALLOCATED), f"{what} refers to section {section}, which has no memory")
            _require(inside, f"{what} refers to byte {start + addend} of {sections[section].size}")
        else:
            outside = symbol > 0 and section == 0 and kind not in NEAR and abs(addend) <= SLACK
            _require(outside, f"{what} is of a symbol that is not there")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(f"the object file: {problem}")
