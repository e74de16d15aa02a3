"""Bulk copies and mbarriers for the emulator of whole blocks: copies happen at once, and what must come before is checked."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from test.emulators.block import Race

UNIT = 16  # bulk copies begin and end at multiples of this


def tile_bytes(map_: dict) -> int:
    """Bytes of a tensor map's box, 16 bits an element."""
    return 2 * int(np.prod(map_["box"]))


def copy_tile(machine, map_: dict, base: int, target: int, places: list[int], inward: bool) -> None:
    """Copy the box at `places` (outermost first) between a tensor map's memory at `base` and shared memory at `target`."""
    size = {"bf16": 2, "f16": 2}[map_["dtype"]]
    strides = [*map_["strides_bytes"], size]
    space, start = machine.at(np.array([target]))
    memory, begin = machine.at(np.array([base]))
    swizzle, width = map_["swizzle"], map_["box"][-1] * size
    assert int(start[0]) % (8 * swizzle) == 0, "a tile that is not aligned"
    *outer, last = places[: len(map_["box"])]
    rows = np.indices(map_["box"][:-1]).reshape(len(outer), -1) + np.array(outer, np.int64)[:, None]
    extents = np.array(map_["shape"][: len(outer)])[:, None]
    inside = ((rows >= 0) & (rows < extents)).all(0)
    moved = (rows * np.array(strides[: len(outer)])[:, None]).sum(0)
    byte = np.arange(0, -(-width // UNIT) * UNIT, size)
    cols = last + byte // size
    valid = inside[:, None] & ((cols >= 0) & (cols < map_["shape"][-1]))
    at = np.arange(len(inside))[:, None] * swizzle
    key = (at >> 7) & (swizzle // UNIT - 1)
    here = (int(start[0]) + at + ((key ^ (byte >> 4)) << 4) + byte % UNIT) // size
    there = np.where(valid, int(begin[0]) + moved[:, None] + cols * size, 0)
    assert not (there % size).any(), "elements that are not aligned"
    shared, whole = space.data.view(np.uint16), memory.data.view(np.uint16)
    if inward:
        shared[here] = np.where(valid, whole[there // size], 0)
    else:
        whole[there[valid] // size] = shared[here[valid]]


class BulkCopies:
    """What `nvvm.mbarrier.*` and `nvvm.cp.async.bulk.*` do; a mixin for `VectorBlock`.

    Whether tiles that TMA loads come over what is still read is not looked for: mbarriers order them.
    """

    def bulk(self, op, operands, mask):
        """Run an operation; NotImplemented if it is none of these."""
        name = op.name
        if name in ("nvvm.fence.proxy", "nvvm.fence.mbarrier.init", "nvvm.mbarrier.inval"):
            return None
        if name in ("nvvm.cp.async.bulk.commit.group", "nvvm.cp.async.bulk.wait_group"):
            return None
        if name == "nvvm.inline_ptx" and str(op.attributes["ptxCode"]).startswith('"mov.b32'):
            return operands[0]
        if name == "llvm.addrspacecast":
            return operands[0]
        states = self.__dict__.setdefault("barrier_states", {})
        if name == "nvvm.mbarrier.init":
            states[self._one(operands[0], mask)] = {
                "arrivals": self._one(operands[1], mask),
                "bytes": 0,
                "phases": 0,
                "came": 0,
            }
            return None
        if name == "nvvm.mbarrier.arrive.expect_tx":
            state = states[self._one(operands[0], mask)]
            state["came"] += int(mask.sum())
            state["bytes"] += self._one(operands[1], mask)
            return None
        if name == "nvvm.mbarrier.arrive":
            for place in operands[0][mask].tolist():  # each thread's, which may be another one
                states[place]["came"] += 1
                self._settle(states[place])
            return None
        if name == "nvvm.mbarrier.try_wait.parity":
            state = states[self._one(operands[0], mask)]
            assert state["phases"] % 2 != self._one(operands[1], mask), "a wait for copies that nobody has started"
            return None
        if name == "nvvm.cp.async.bulk.shared.cluster.global":
            target, source, barrier, size = (self._one(operand, mask) for operand in operands[:4])
            self._copy(target, source, size, mask, inward=True)
            state = states[barrier]
            state["bytes"] -= size
            self._settle(state)
            return None
        if name == "nvvm.cp.async.bulk.tensor.shared.cluster.global":
            assert mask.sum() == 1, "one thread starts a copy"
            one = [self._one(operand, mask) for operand in operands]
            rank = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[2]
            map_, base = self.machine.maps[one[1]]
            copy_tile(self.machine, map_, base, one[0], one[2 : 2 + rank][::-1], True)
            states[one[2 + rank]]["bytes"] -= tile_bytes(map_)
            self._settle(states[one[2 + rank]])
            return None
        if name == "nvvm.cp.async.bulk.global.shared.cta":
            target, source, size = (self._one(operand, mask) for operand in operands[:3])
            self._copy(target, source, size, mask, inward=False)
            return None
        return NotImplemented

    @staticmethod
    def _settle(state: dict[str, int]) -> None:
        """Complete a phase whose arrivals and bytes have come."""
        if not state["bytes"] and state["came"] == state["arrivals"]:
            state["came"], state["phases"] = 0, state["phases"] + 1

    @staticmethod
    def _one(value: np.ndarray, mask: np.ndarray) -> int:
        """The number that all active threads have."""
        found = set(np.asarray(value)[mask].tolist())
        assert len(found) == 1, "threads disagree"
        return int(found.pop())

    def _copy(self, target: int, source: int, size: int, mask: np.ndarray, inward: bool) -> None:
        assert mask.sum() == 1, "one thread starts a copy"
        assert size % UNIT == 0 and target % UNIT == 0 and source % UNIT == 0, "a bulk copy that is not aligned"
        if not size:
            return
        to, into = self.machine.at(np.array([target]))
        of, out_of = self.machine.at(np.array([source]))
        into, out_of = int(into[0]), int(out_of[0])
        zone = 64  # the red zone of `emulators.vector`; loads may touch what lies in the same 16 bytes as the buffer's end
        assert into + size <= len(to.data) - zone and out_of + size <= len(of.data) - zone + UNIT - 1, "outside of its buffer"
        if inward and (to.read[into : into + size] == self.phase).any():
            raise Race("a copy into shared memory that was read since the last barrier")
        if not inward:
            written = of.written[out_of : out_of + size] == self.phase
            if (written & (of.writer[out_of : out_of + size] != int(np.flatnonzero(mask)[0]))).any():
                raise Race("a copy out of shared memory that another thread wrote since the last barrier")
        to.data[into : into + size] = of.data[out_of : out_of + size]
