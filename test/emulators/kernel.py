"""Runs a whole executor kernel (a `gpu.module` of `kitsune-to-gpu` with the generic engine) on the processor.

Each block is a Python thread that goes through the kernel with all its GPU threads in lockstep (`block.py`).
Pointers are numbers: the upper half names a piece of memory, the lower is the byte in it. Waits poll the counters that other
blocks bump.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from torch_mlir import ir

from kitsune_mlir.runtime.manifest import Manifest
from test.emulators.arithmetic import DTYPES
from test.emulators.block import Block, Ref, Space, contiguous

SHIFT = 40
MARKER = -(1 << 31)  # a run-time index of getelementptr
SECONDS = 30.0
RED_ZONE = 64
"""Bytes behind every buffer that nobody may touch."""


class Machine:
    """Memory, and the counters' lock. `spaces[n]` is what pointers of number n point to; `tables`: addresses of constants.

    `maps`: tensor maps, each with the address of its memory, by their own address.
    """

    def __init__(self):
        self.spaces: list[Space] = []
        self.maps: dict[int, tuple[dict, int]] = {}
        self.tables: dict[str, int] = {}
        self.lock = threading.Lock()
        self.stop = threading.Event()

    def add(self, space: Space) -> int:
        """The address of a new piece of memory."""
        with self.lock:
            self.spaces.append(space)
            return len(self.spaces) << SHIFT

    def fill(self, words: np.ndarray) -> int:
        """The address of new memory that holds these words."""
        space = Space(words.nbytes + RED_ZONE, checked=False)
        space.data[: words.nbytes] = words.view(np.uint8)
        return self.add(space)

    def define(self, module: ir.Operation) -> None:
        """Make the tables of constants of a `gpu.module`."""
        for op in module.regions[0].blocks[0].operations:
            if op.operation.name == "llvm.mlir.global" and "value" in op.attributes:
                name = ir.StringAttr(op.attributes["sym_name"]).value
                self.tables[name] = self.fill(np.array(ir.DenseElementsAttr(op.attributes["value"])))

    def at(self, pointer: np.ndarray) -> tuple[Space, np.ndarray]:
        """The piece of memory that all of `pointer` points into, and the bytes in it."""
        number = int(pointer.reshape(-1)[0]) >> SHIFT
        return self.spaces[number - 1], pointer & ((1 << SHIFT) - 1)


class KernelBlock(Block):
    """One block of a kernel."""

    def __init__(self, machine: Machine, module: ir.Operation, threads: int, number: int, blocks: int, shared_bytes: int):
        super().__init__(threads)
        self.machine, self.number, self.blocks = machine, number, blocks
        self.shared = machine.add(Space(shared_bytes + 64))
        operations = [op.operation for op in module.regions[0].blocks[0].operations]
        self.functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in operations if op.name == "llvm.func"}

    def words(self, value: int, dtype=np.int32) -> np.ndarray:
        return np.full(self.threads, value, dtype)

    def simple(self, op, operands, mask):
        name = op.name
        if name.startswith("nvvm.read.ptx.sreg."):
            registers = {
                "tid": np.arange(self.threads, dtype=np.int32),
                "ctaid": self.words(self.number),
                "nctaid": self.words(self.blocks),
                "smid": self.words(self.number),
                "nsmid": self.words(self.blocks),
            }
            _, register, *axis = name.rsplit(".", 2 if name[-2:] in (".x", ".y", ".z") else 1)
            return registers[register]
        if name == "nvvm.shfl.sync" and "idx" in str(op.attributes["kind"]):
            lanes = operands[1].reshape(-1, 32)
            return np.take_along_axis(lanes, operands[2].reshape(-1, 32), axis=1).reshape(-1)
        if name == "llvm.mlir.addressof":
            symbol = ir.FlatSymbolRefAttr(op.attributes["global_name"]).value
            return self.words(self.machine.tables.get(symbol, self.shared), np.int64)
        if name == "llvm.inttoptr":
            return operands[0]
        if name == "llvm.getelementptr":
            (index,) = ir.DenseI32ArrayAttr(op.attributes["rawConstantIndices"])
            return operands[0] + (operands[1].astype(np.int64) if index == MARKER else index)
        if name in ("llvm.load", "llvm.store"):
            pointer = operands[-1]
            space, byte = self.machine.at(pointer[mask])
            dtype = DTYPES[str(op.results[0].type)] if op.results else operands[0].dtype
            at = np.zeros(self.threads, np.int64)
            at[mask] = byte // np.dtype(dtype).itemsize
            return self.move(space.data.view(dtype), at, mask, None if op.results else operands[0])
        if name in ("llvm.inline_asm", "nvvm.inline_ptx"):
            code = op.attributes["asm_string" if name == "llvm.inline_asm" else "ptxCode"]
            return self.assembly(ir.StringAttr(code).value, operands, mask)
        if name == "llvm.extractvalue":
            return operands[0][ir.DenseI64ArrayAttr(op.attributes["position"])[0]]
        if name == "llvm.mlir.undef":
            return None
        if name == "llvm.mlir.constant":
            return self.words(ir.IntegerAttr(op.attributes["value"]).value, np.int64)
        if name == "llvm.insertvalue":
            first = list(ir.DenseI64ArrayAttr(op.attributes["position"])) == [0]
            return operands[1] if first else operands[0]  # a descriptor is known by its pointer and its type
        if name == "builtin.unrealized_conversion_cast":
            return self.memref(operands[0], ir.MemRefType(op.results[0].type))
        if name == "memref.atomic_rmw":
            with self.machine.lock:
                return super().simple(op, operands, mask)
        if name == "llvm.call":
            function = self.functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            block = self.code(function)
            for argument, value in zip(block.arguments, operands, strict=True):
                self.env[argument] = value
            self.block(block, mask)
            return None
        return super().simple(op, operands, mask)

    def stop_others(self) -> None:
        """End what other blocks wait for: this one has failed."""
        self.machine.stop.set()

    def memref(self, pointer, type):
        space, byte = self.machine.at(pointer)
        dtype = DTYPES[str(type.element_type)]
        return Ref(space, dtype, byte // np.dtype(dtype).itemsize, list(type.shape), contiguous(type.shape))

    def assembly(self, text, operands, mask):
        assert mask.any()
        if text == "mov.b32 $0, $1;":  # `inline.fresh`
            return operands[0]
        if text == "// pinned":  # `inline.pinned`
            return operands if len(operands) > 1 else operands[0]
        if ".L2::cache_hint" in text:
            return self.hinted(text, operands, mask)
        if text.startswith(("ld.relaxed", "st.relaxed")):
            return self.relaxed(text, operands, mask)
        space, byte = self.machine.at(operands[0][mask])
        if text.startswith("red.relaxed.gpu.global.add") and ".f32 " in text:
            with self.machine.lock:
                for number, value in enumerate(operands[1:]):
                    np.add.at(space.data.view(np.float32), byte // 4 + number, value[mask])
            return None
        at, words = byte // 4, space.data.view(np.int32)
        if text.startswith("red.release.gpu.global.add.u32"):
            with self.machine.lock:
                np.add.at(words, at, operands[1][mask])
            return None
        assert "ld.acquire.gpu.global" in text, text
        start = time.monotonic()
        while (words[at] < operands[1][mask]).any():
            time.sleep(0)
            if self.machine.stop.is_set() or time.monotonic() - start > SECONDS:
                raise TimeoutError(f"block {self.number} waits for ever")
        return None

    def relaxed(self, text, operands, mask):
        """Loads and stores that other blocks' meet, whole pieces at a time."""
        if self.machine.stop.is_set():
            raise TimeoutError(f"block {self.number} waits for ever")
        time.sleep(0)  # whoever is waited for goes on
        space, byte = self.machine.at(operands[0][mask])
        piece = np.int64 if ".b64" in text else np.int32
        data, at = space.data[: len(space.data) // 8 * 8].view(piece), np.zeros(self.threads, np.int64)
        assert (byte % (16 if text.startswith("ld") else np.dtype(piece).itemsize) == 0).all(), f"not aligned: {text}"
        at[mask] = byte // np.dtype(piece).itemsize
        if text.startswith("st."):
            return self.move(data, at, mask, operands[1])
        return [self.move(data, at + number, mask) for number in range(16 // np.dtype(piece).itemsize)]

    def hinted(self, text, operands, mask):
        """A load or store of words with a hint for L2 (`memory.load`, `memory.store`)."""
        space, byte = self.machine.at(operands[0][mask])
        data, at = space.data.view(np.int32), np.zeros(self.threads, np.int64)
        at[mask] = byte // 4
        if text.startswith("st."):
            for number, value in enumerate(operands[1:-1]):
                self.move(data, at + number, mask, value)
            return None
        count = next((width for width in (2, 4) if f".v{width}." in text), 1)
        loaded = [self.move(data, at + number, mask) for number in range(count)]
        return loaded if count > 1 else loaded[0]


def launch(machine: Machine, module: ir.Operation, manifest: Manifest, pointers: list[int], blocks: int) -> None:
    """Run the kernel of a `gpu.module` on `blocks` blocks at once.

    Raises:
        AssertionError, TimeoutError: what any block ran into.
    """
    with module.context:
        machine.define(module)
    if manifest.arrays:
        pointers = [machine.fill(np.array(pointers, np.int64)), 0]
    run_blocks(
        [KernelBlock(machine, module, manifest.threads, number, blocks, manifest.shared_bytes) for number in range(blocks)],
        module.context,
        manifest.kernel,
        pointers,
    )


def run_blocks(blocks: Sequence[KernelBlock], context: ir.Context, kernel: str, pointers: Sequence[int], *words: int) -> None:
    """Run a kernel's blocks at once, each in a thread of its own, with the same parameters: pointers, then i32 words.

    Raises:
        AssertionError, TimeoutError: what any block ran into.
    """
    failures: list[BaseException] = []
    blocks[0].code(blocks[0].functions[kernel])
    for block in blocks:
        block.known = blocks[0].known

    def work(block: KernelBlock) -> None:
        try:
            with context, ir.Location.unknown():
                parameters = [*(block.words(p, np.int64) for p in pointers), *map(block.words, words)]
                block.run(block.functions[kernel], parameters)
        except BaseException as error:
            failures.append(error)
            block.stop_others()

    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
