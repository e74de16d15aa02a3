"""The kernel that copies inputs into larger ones: its text, gone through on the processor, thread by thread."""

from __future__ import annotations

import ctypes
import random
import re

import pytest
import torch

from kitsune_mlir.runtime import copy_kernel
from kitsune_mlir.sized import padded_input
from kitsune_mlir.sized.padded_input import CopiedTogether, PaddedInput

MASKS = {"u8": 0xFF, "u32": 0xFFFFFFFF, "b32": 0xFFFFFFFF, "u64": (1 << 64) - 1, "b64": (1 << 64) - 1, "s64": (1 << 64) - 1}
TYPES = {"u8": ctypes.c_uint8, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64}
ALU = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "shl": lambda a, b: a << b,
    "div": lambda a, b: a // b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "mov": lambda a: a,
    "cvt": lambda a: a,
    "cvta": lambda a: a,
}
COMPARE = {"ge": lambda a, b: a >= b, "lt": lambda a, b: a < b, "eq": lambda a, b: a == b}
LINES = [line.rstrip(";") for line in copy_kernel._TEXT.partition("{\n")[2].splitlines() if line[0] not in ".}"]
LABELS = {line[:-1]: n for n, line in enumerate(LINES) if line.endswith(":")}


def thread(block: int, number: int, rows: int) -> int:
    """Run one thread; how many units it copied."""
    registers = {"%ctaid.x": block, "%tid.x": number, "rows": rows}

    def value(text):
        return registers[text] if text in registers else int(text)

    at = stores = 0
    while LINES[at] != "ret":
        line, at = LINES[at], at + 1
        if line.endswith(":") or line == "griddepcontrol.launch_dependents":
            continue
        if line.startswith("@"):
            guard, _, line = line.partition(" ")
            if not registers[guard[1:]]:
                continue
        name, _, rest = line.partition(" ")
        operation, *kinds = name.split(".")
        operands = [one.strip() for one in re.split(r",\s*(?![^{]*})", rest)]
        if operation == "bra":
            at = LABELS[operands[0]]
        elif operation == "setp":
            registers[operands[0]] = COMPARE[kinds[0]](*map(value, operands[1:]))
        elif operation in ("ld", "st"):
            place, names = (operands[1], operands[0]) if operation == "ld" else operands
            base, _, offset = place.strip("[]").partition("+")
            for n, register in enumerate(names.strip("{}").split(", ")):
                cell = TYPES[kinds[-1]].from_address(registers[base] + int(offset or 0) + 4 * n)
                if operation == "ld":
                    registers[register] = cell.value
                else:
                    cell.value = registers[register]
            stores += operation == "st"
        else:
            kind = "u64" if "wide" in kinds else kinds[0] if operation == "cvt" else kinds[-1]
            registers[operands[0]] = ALU[operation](*map(value, operands[1:])) & MASKS[kind]
    return stores


def launched(copies):
    """Runs all threads."""
    table, blocks = copy_kernel.table_of(copies)
    assert len(copies) <= copy_kernel.MOST_COPIES and len(table) == 320
    rows = (ctypes.c_uint8 * len(table)).from_buffer_copy(table)
    units = sum(thread(block, n, ctypes.addressof(rows)) for block in range(blocks) for n in range(copy_kernel.THREADS))
    widths = [16 if not together % 16 else 4 if not together % 4 else 1 for together in map(aligned, copies)]
    sizes = [piece * count for _, _, piece, count, _ in copies]
    assert units == sum(size // width for size, width in zip(sizes, widths, strict=True))


def aligned(copy):
    """What all addresses of a copy are multiples of is what this is a multiple of."""
    source, target, piece, count, pitch = copy
    return source | target | piece | (pitch if count > 1 else 0)


@pytest.fixture
def on_gpu(monkeypatch):
    """As if inputs were on a device; which copies were launched together."""
    found = []

    class Copies:
        def __init__(self, copies, device, stream):
            self.copies = copies

        def __call__(self, sources):
            found.append([(source, *copy[1:]) for source, copy in zip(sources, self.copies, strict=True)])
            launched(found[-1])

    monkeypatch.setattr(padded_input, "Copies", Copies)
    return found


def copied(inputs):
    """What a program would be called with."""
    args = [given for _, given in inputs]
    CopiedTogether([*enumerate(how for how, _ in inputs)])(0, args)
    return args


def inside(whole, shape):
    for dim, n in enumerate(shape):
        whole = whole.narrow(dim, 0, n)
    return whole


def test_rows_and_pieces(on_gpu):
    """Nodes and pairs of edges in one launch, words and long words."""
    nodes, edges = PaddedInput((40, 12), (12, 1)), PaddedInput((2, 128), (128, 1))
    for count in (3, 8, 40):
        given = torch.randn(count, 12), torch.randint(count, (2, 27 + count))
        for how, value in zip(given, copied([(nodes, given[0]), (edges, given[1])]), strict=True):
            assert torch.equal(inside(value, how.shape), how)
    assert [len(copies) for copies in on_gpu] == [2, 2, 1]  # 40 rows are as they are to be


def test_any_bytes(on_gpu):
    """Odd sizes of one and two bytes, more pieces than rows, and more inputs than one launch takes."""
    rng = random.Random(random.random())
    dtype, inputs = rng.choice([torch.uint8, torch.bfloat16, torch.bool, torch.float64]), []
    for _ in range(9):
        larger = rng.randint(2, 5), rng.randint(2, 9), rng.randint(2, 7)
        shape = [larger[0] - 1, *(rng.randint(1, n) for n in larger[1:])]
        inputs.append((PaddedInput(larger, (larger[1] * larger[2], larger[2], 1)), (3 * torch.randn(shape)).to(dtype)))
    for (how, given), whole in zip(inputs, copied(inputs), strict=True):
        behind = torch.ones(how.size, dtype=torch.bool)
        inside(behind, given.shape).fill_(False)
        assert torch.equal(inside(whole, given.shape), given) and not whole[behind].any()
    assert all(0 < len(copies) <= 8 for copies in on_gpu)


def test_many_blocks(on_gpu, monkeypatch):
    """More units than all threads have at once, which go on."""
    monkeypatch.setattr(copy_kernel, "MOST_BLOCKS", 2)
    rows, given = PaddedInput((300, 20), (20, 1)), torch.randn(257, 20)
    (whole,) = copied([(rows, given)])
    assert torch.equal(whole[:257], given) and not whole[257:].any()
