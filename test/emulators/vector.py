"""The kernel emulator with vectors, packed 16-bit floats and checks of alignment: what the simt engine's kernels need."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from torch_mlir import ir

from kitsune_mlir.runtime.manifest import REQUEST_HEADER, Manifest
from test.emulators.arithmetic import DTYPES
from test.emulators.block import Race, Space
from test.emulators.bulk import BulkCopies
from test.emulators.kernel import RED_ZONE, SHIFT, KernelBlock, Machine, run_blocks


def _shape(type: ir.Type) -> tuple[int, type]:
    """(elements, element dtype) of a scalar or vector type."""
    if isinstance(type, ir.VectorType):
        return type.shape[0], DTYPES[str(type.element_type)]
    return 1, DTYPES[str(type)]


APPROXIMATE = {
    "nvvm.ex2": np.exp2,
    "nvvm.rcp.approx.ftz.f": np.reciprocal,
    "nvvm.sqrt.approx": np.sqrt,
    "nvvm.divf": np.divide,
}
"""Instructions whose last bits only the hardware knows: emulated exactly."""


MEETING_SECONDS = 60


class VectorBlock(BulkCopies, KernelBlock):
    """A block whose values may be vectors: arrays of one row a thread.

    Attributes:
        peers: the blocks of its cluster, by rank; `meeting` is where they wait for each other.
    """

    peers: Sequence[VectorBlock] = ()
    meeting: threading.Barrier

    def op(self, op, mask):
        if op.name in ("nvvm.cluster.arrive", "nvvm.cluster.wait"):
            assert mask.all(), "a barrier of the cluster that not every thread reaches"
            if op.name == "nvvm.cluster.wait":
                self.phase += 1
                self.meeting.wait(MEETING_SECONDS)
            return
        if op.name == "nvvm.barrier" and len(op.operands):
            _, counts = np.unique(self.env[op.operands[0]][mask], return_counts=True)  # threads may meet at different ones
            reached = (counts == int(self.env[op.operands[1]][0])).all()
            assert reached, "a named barrier that not every thread of it reaches"
            self.phase += 1
            self.barriers += 1
            return
        super().op(op, mask)

    def stop_others(self) -> None:
        super().stop_others()
        self.meeting.abort()

    def simple(self, op, operands, mask):
        name = op.name
        if (found := self.bulk(op, operands, mask)) is not NotImplemented:
            return found
        if name == "llvm.load":
            return self.load(op, operands[0], mask)
        if name == "llvm.store":
            return self.store(op, operands[0], operands[1], mask)
        if name == "nvvm.read.ptx.sreg.cluster.ctarank":
            return self.words(self.number % len(self.peers))
        if name == "nvvm.mapa":
            shared = np.array([block.shared for block in self.peers])
            return operands[0] - self.shared + shared[np.clip(operands[1], 0, len(shared) - 1)]
        if name == "vector.from_elements":
            return np.stack(operands, 1)
        if name == "vector.extract":
            (position,) = ir.DenseI64ArrayAttr(op.attributes["static_position"])
            return np.ascontiguousarray(operands[0][:, position])
        if name == "llvm.mlir.undef":
            count, dtype = _shape(op.results[0].type)
            return np.zeros((self.threads, count), dtype)
        if name == "llvm.extractelement":
            return np.ascontiguousarray(operands[0][np.arange(self.threads), operands[1]])
        if name == "llvm.insertelement":
            changed = operands[0].copy()
            changed[np.arange(self.threads), operands[2]] = operands[1]
            return changed
        if name in APPROXIMATE:
            with np.errstate(all="ignore"):
                return APPROXIMATE[name](*operands)
        if name.startswith("nvvm.convert.f32x2.to."):
            _, dtype = _shape(op.results[0].type)
            with np.errstate(all="ignore"):
                return np.stack([operands[1], operands[0]], 1).astype(dtype)  # the first operand is the upper half
        if name == "llvm.bitcast":
            count, dtype = _shape(op.results[0].type)
            raw = np.ascontiguousarray(operands[0]).view(dtype)
            return raw.reshape(self.threads, count) if isinstance(op.results[0].type, ir.VectorType) else raw.reshape(-1)
        if name in ("arith.addf", "arith.subf") and isinstance(op.results[0].type, ir.VectorType):
            a, b = (operand.astype(np.float32) for operand in operands)
            return (a + b if name == "arith.addf" else a - b).astype(operands[0].dtype)
        return super().simple(op, operands, mask)

    def _bytes(self, op, pointer, type, mask):
        """(space, bytes touched by each active thread) after checks of bounds, alignment and, in shared memory, races."""
        count, dtype = _shape(type)
        size = np.dtype(dtype).itemsize * count
        space, start = self.machine.at(pointer[mask])
        start = start.reshape(-1)
        align = ir.IntegerAttr(op.attributes["alignment"]).value if "alignment" in op.attributes else size
        assert (start >= 0).all() and (start + size <= len(space.data) - RED_ZONE).all(), f"outside of its buffer: {op}"
        assert (start % align == 0).all(), f"not aligned to {align}: {op}"
        return space, start[:, None] + np.arange(size)

    def load(self, op, pointer, mask):
        type = op.results[0].type
        count, dtype = _shape(type)
        out = np.zeros((self.threads, count), dtype)
        if mask.any():
            space, at = self._bytes(op, pointer, type, mask)
            self._touch(space, at, mask, False)
            raw = np.ascontiguousarray(space.data[at])
            assert dtype != np.bool_, "a bool is loaded as a byte"
            out[mask] = raw.view(dtype)
        return out if isinstance(type, ir.VectorType) else out[:, 0].copy()

    def store(self, op, value, pointer, mask):
        if not mask.any():
            return None
        type = op.operands[0].type
        for number in np.unique(pointer[mask] >> SHIFT):  # stores to other blocks go to several spaces
            there = mask & (pointer >> SHIFT == number)
            space, at = self._bytes(op, pointer, type, there)
            self._touch(space, at, there, True)
            chosen = np.ascontiguousarray(value[there])
            space.data[at] = chosen.view(np.uint8).reshape(len(at), -1)
        return None

    def _touch(self, space: Space, at: np.ndarray, mask: np.ndarray, writes: bool) -> None:
        if space is not self.machine.spaces[(self.shared >> 40) - 1]:
            return
        threads = np.repeat(np.arange(self.threads)[mask], at.shape[1])
        places = at.reshape(-1)
        foreign = (space.written[places] == self.phase) & (space.writer[places] != threads)
        if foreign.any():
            raise Race("shared memory that another thread wrote since the last barrier")
        read = (space.read[places] == self.phase) & (space.reader[places] != threads)
        if writes and read.any():
            raise Race("a write to shared memory that another thread read since the last barrier")
        if not writes:
            space.reader[places] = np.where(read, -1, threads)
            shared = space.reader[places] != threads  # several threads at once
            space.reader[places[shared]] = -1
            space.read[places] = self.phase
            return
        space.writer[places], space.written[places] = threads, self.phase


def run_kernel(
    module: ir.Operation,
    manifest: Manifest,
    inputs: list[np.ndarray],
    results: list[np.ndarray],
    blocks: int,
    block_type: type[VectorBlock] = VectorBlock,
    arena: np.ndarray | None = None,
) -> None:
    """Run a kernel on `blocks` blocks of a type; fills `results`.

    Args:
        arena: what the arena holds before and, filled, after; None: zeros before. Results that lie where inputs do begin
            with the inputs' values.

    Raises:
        AssertionError: an access out of bounds or badly aligned, a race, or a barrier that threads miss.
    """
    machine = Machine()
    machine.define(module)
    workspace = _zeros(machine, manifest.workspace_bytes(blocks))[1]
    memory = _Memory(machine, manifest, inputs, results, arena)
    _run(machine, module, manifest, [*memory.pointers, workspace, *memory.maps(machine)], blocks, block_type)
    memory.read(results)
    if arena is not None:
        arena[:] = memory.spaces["arena", 0][0].data[: arena.nbytes]


def run_requests(
    module: ir.Operation,
    manifest: Manifest,
    requests: list[tuple[list[np.ndarray], list[np.ndarray]]],
    blocks: int,
    block_type: type[VectorBlock] = VectorBlock,
) -> None:
    """Run a kernel of several requests, each with inputs and results as `run_kernel` has them; raises as that does."""
    machine = Machine()
    machine.define(module)
    workspace = _zeros(machine, manifest.workspace_bytes(blocks))[1]
    memories = [_Memory(machine, manifest, inputs, results, None) for inputs, results in requests]
    count = sum(parameter.kind == "tensor_map" for parameter in manifest.parameters)
    maps = machine.add(Space(128 * max(1, count) * len(requests)))
    for number, memory in enumerate(memories):
        memory.maps(machine, maps + 128 * count * number)
    header = np.zeros(REQUEST_HEADER // 8, np.int64)
    header[:3] = len(requests), workspace, maps
    rows = np.array([memory.pointers for memory in memories], np.int64)
    table = machine.fill(np.concatenate([header, rows.reshape(-1)]))
    _run(machine, module, manifest, [table], blocks, block_type)
    for (_, results), memory in zip(requests, memories, strict=True):
        memory.read(results)


class _Memory:
    """What a request reads and writes: spaces by role and number, and the kernel's pointers to them."""

    def __init__(
        self,
        machine: Machine,
        manifest: Manifest,
        inputs: list[np.ndarray],
        results: list[np.ndarray],
        arena: np.ndarray | None,
    ):
        self.manifest = manifest
        self.spaces: dict[tuple[str, int], tuple[Space, int]] = {}
        for role, arrays in (("input", inputs), ("result", results)):
            for number, array in enumerate(arrays):
                space = Space(array.nbytes + RED_ZONE, checked=False)
                # Not rounded up, so that the byte behind the last one is out of bounds.
                space.data = np.full(array.nbytes + RED_ZONE, 0xFF, np.uint8)
                self.spaces[role, number] = space, machine.add(space)
                over = manifest.overwrites[number] if role == "result" and manifest.overwrites else -1
                if role == "input" or arena is not None or over >= 0:
                    held = inputs[over] if over >= 0 else array
                    space.data[: array.nbytes] = np.ascontiguousarray(held).reshape(-1).view(np.uint8)
        self.spaces["arena", 0] = _zeros(machine, manifest.arena_bytes)
        if arena is not None:
            self.spaces["arena", 0][0].data[: arena.nbytes] = arena
        places = [parameter for parameter in manifest.parameters if (parameter.kind, parameter.index) in self.spaces]
        self.pointers = [self.spaces[place.kind, place.index][1] + place.offset for place in places]

    def maps(self, machine: Machine, place: int | None = None) -> list[int]:
        """Make the tensor maps, one after the other from `place` on, or each in memory of its own; their addresses."""
        found = []
        for parameter in self.manifest.parameters:
            if parameter.kind == "tensor_map":
                found.append(machine.add(Space(128)) if place is None else place + 128 * len(found))
                machine.maps[found[-1]] = parameter.map, self.spaces[parameter.of, parameter.index][1] + parameter.offset
        return found

    def read(self, results: list[np.ndarray]) -> None:
        """Fill the results."""
        for number, array in enumerate(results):
            array.reshape(-1).view(np.uint8)[:] = self.spaces["result", number][0].data[: array.nbytes]


def _zeros(machine: Machine, size: int) -> tuple[Space, int]:
    space = Space(size + 2 * RED_ZONE, checked=False)
    space.data[:] = 0
    return space, machine.add(space)


def _run(
    machine: Machine,
    module: ir.Operation,
    manifest: Manifest,
    pointers: list[int],
    blocks: int,
    block_type: type[VectorBlock],
) -> None:
    shared = manifest.shared_bytes + RED_ZONE
    bodies = [block_type(machine, module, manifest.threads, number, blocks, shared) for number in range(blocks)]

    for first in range(0, blocks, manifest.cluster):
        cluster, meeting = bodies[first : first + manifest.cluster], threading.Barrier(manifest.cluster)
        for block in cluster:
            block.peers, block.meeting = cluster, meeting

    run_blocks(bodies, module.context, manifest.kernel, pointers)
