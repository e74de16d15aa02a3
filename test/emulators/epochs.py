"""Runs an epoch kernel on the processor, its blocks each in a thread of its own."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

import numpy as np
from torch_mlir import ir

from kitsune_mlir.runtime.epoch import Epoch, Instance
from kitsune_mlir.runtime.epoch_manifest import EpochManifest
from kitsune_mlir.runtime.manifest import REPORT_BYTES, Parameter
from test.emulators.atomics import AtomicBlock
from test.emulators.block import Space
from test.emulators.kernel import RED_ZONE, Machine, run_blocks

_CLAIM = re.compile(r"\{ \.reg \.pred first; setp\.eq\.s32 first, \$2, 0; .*@first atom\.relaxed\.gpu\.global\.add\.u32")


class EpochBlock(AtomicBlock):
    """A block that claims tickets; `order` has each ticket that a block got, in the order of the claims."""

    order: list[tuple[int, int]]

    def simple(self, op, operands, mask):
        if op.name == "nvvm.bar.warp.sync":  # all threads go in lockstep
            return None
        return super().simple(op, operands, mask)

    def assembly(self, text, operands, mask):
        if _CLAIM.match(text) is None:
            return super().assembly(text, operands, mask)
        got = np.zeros(self.threads, np.int32)
        with self.machine.lock:
            (word,) = self._words(operands[0], 0, np.int32, 1)
            got[0] = word[0]
            word[0] += 1
            self.order.append((self.number, int(got[0])))
        return got


class Tensors:
    """Memory of the machine that programs read and write, by the address that they are given."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self._held: dict[int, tuple[Space, int]] = {}

    def add(self, array: np.ndarray) -> int:
        """Address of new memory that holds an array."""
        space = Space(array.nbytes + RED_ZONE, checked=False)
        space.data = np.full(array.nbytes + RED_ZONE, 0xFF, np.uint8)
        space.data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        address = self.machine.add(space)
        self._held[address] = space, array.nbytes
        return address

    def read(self, address: int, like: np.ndarray) -> np.ndarray:
        """What is at an address."""
        space, size = self._held[address]
        return space.data[:size].view(like.dtype).reshape(like.shape).copy()


def run_epoch(
    machine: Machine,
    module: ir.Operation,
    manifest: EpochManifest,
    instances: Sequence[Instance],
    blocks: int = 3,
    ready_first: bool = False,
) -> list[tuple[int, int]]:
    """Run an epoch on the memory of a machine; (block, ticket) of each claim, in order.

    Raises:
        AssertionError, TimeoutError: what any block ran into.
    """
    with module.context:
        machine.define(module)
    epoch = Epoch(manifest, ready_first)
    for instance in instances:
        epoch.append(instance)

    def zeros(size: int) -> int:
        space = Space(size + 2 * RED_ZONE, checked=False)
        space.data[:] = 0
        return machine.add(space)

    def encode(parameter: Parameter, address: int) -> bytes:
        number = len(found)
        found.append((parameter.map or {}, address))
        return number.to_bytes(8, "little") * 16

    found: list[tuple[dict, int]] = []
    words, arena = zeros(epoch.packed_bytes), zeros(epoch.arena_bytes)
    packed = epoch.pack(words, arena, encode)
    machine.at(np.array([words]))[0].data[: len(packed.data)] = packed.data
    if found:  # by their own addresses
        for number, (map_, address) in enumerate(found):
            machine.maps[words + packed.maps + 128 * number] = map_, address
    report = zeros(REPORT_BYTES * (blocks + 1))
    pointers = [words + packed.tickets, words + packed.records, words + packed.upstream, zeros(epoch.counter_bytes)]
    pointers += [zeros(epoch.partial_bytes), zeros(blocks * manifest.scratch_bytes), report]
    order: list[tuple[int, int]] = []
    made = []
    for number in range(blocks):
        block = EpochBlock(machine, module, manifest.threads, number, blocks, manifest.shared_bytes + RED_ZONE)
        block.order, block.peers, block.meeting = order, [block], threading.Barrier(1)
        made.append(block)
    run_blocks(made, module.context, manifest.kernel, pointers, epoch.tickets)
    return order
