"""The kernel emulator with products of warps (`mma.sync`), `cp.async`, and bulk copies that each thread starts."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
from torch_mlir import ir

from test.emulators.block import Race
from test.emulators.kernel import SHIFT
from test.emulators.vector import VectorBlock

SEVERAL, ORDERED = -100_000, -1_000
"""Less a warp's number: who touched a byte, if several of its threads, or any before the warp met."""


class Warps(VectorBlock):
    """With products of warps and `cp.async`, which copies at once; where a warp meets, its accesses are ordered."""

    def _touch(self, space, at, mask, writes):
        if space is not self.machine.spaces[(self.shared >> SHIFT) - 1]:
            return
        threads = np.repeat(np.arange(self.threads)[mask], at.shape[1])
        places, warps = at.reshape(-1), threads // 32
        writer, reader = space.writer[places], space.reader[places]
        if ((space.written[places] == self.phase) & (writer != threads) & (writer != ORDERED - warps)).any():
            raise Race("shared memory that another thread wrote since the last barrier")
        others = (space.read[places] == self.phase) & (reader != threads)
        if writes and (others & (reader != ORDERED - warps)).any():
            raise Race("a write to shared memory that another thread read since the last barrier")
        if writes:
            space.writer[places], space.written[places] = threads, self.phase
            return
        same = (reader == SEVERAL - warps) | (reader == ORDERED - warps) | (reader // 32 == warps)
        mine = np.where(others, np.where(same, SEVERAL - warps, -1), threads)
        space.reader[places], space.read[places] = mine, self.phase
        last = space.reader[places]  # of several threads at once
        within = (last // 32 == warps) | (last == SEVERAL - warps)
        space.reader[places[(last != mine) & within]] = (SEVERAL - warps)[(last != mine) & within]
        space.reader[places[(last != mine) & ~within | (mine == -1)]] = -1

    def _meet(self, mask):
        """Warps' accesses until now come before those that follow."""
        space = self.machine.spaces[(self.shared >> SHIFT) - 1]
        warps = np.unique(np.flatnonzero(mask) // 32)
        for who, when in ((space.writer, space.written), (space.reader, space.read)):
            for warp in warps:
                here = (when == self.phase) & ((who // 32 == warp) | (who == SEVERAL - warp))
                who[here] = ORDERED - warp

    def simple(self, op, operands, mask):
        if op.name in ("nvvm.shfl.sync", "nvvm.match.sync", "nvvm.vote.sync"):
            warps = mask.reshape(-1, 32)
            assert (warps.all(1) | ~warps.any(1)).all(), f"a warp of which not every lane reaches {op.name}"
        if op.name == "nvvm.mma.sync":
            return self.product(operands, re.findall(r"<(\w+)>", str(op.attributes["multiplicandAPtxType"]))[0])
        if op.name == "nvvm.vote.sync" and "ballot" in str(op.attributes["kind"]):
            bits = (operands[1] & mask).reshape(-1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)
            return np.repeat(bits.sum(1).astype(np.uint32).view(np.int32), 32)
        if op.name == "nvvm.match.sync":
            values = operands[1].reshape(-1, 32)
            same = (values[:, :, None] == values[:, None, :]) & mask.reshape(-1, 1, 32)
            bits = (same.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(2)
            return bits.astype(np.uint32).view(np.int32).reshape(-1)
        if op.name == "math.ctpop":
            return np.bitwise_count(operands[0].view(np.uint32)).astype(np.int32)
        if op.name == "nvvm.ldmatrix":
            return self.matrices(op, operands[0], mask)
        if op.name == "nvvm.bar.warp.sync":
            return self._meet(mask)
        if op.name == "nvvm.prefetch":
            return None
        if op.name == "nvvm.shfl.sync" and "idx" in str(op.attributes["kind"]):
            return operands[1][(np.arange(self.threads) & ~31) + (operands[2] & 31)]
        if op.name in ("nvvm.cp.async.commit.group", "nvvm.cp.async.wait.group"):  # copies happen at once
            return None
        if op.name == "llvm.ptrtoint":
            return (operands[0] & ((1 << SHIFT) - 1)).astype(np.int32)
        if op.name == "llvm.extractvalue":
            return operands[0][ir.DenseI64ArrayAttr(op.attributes["position"])[0]]
        if op.name.startswith("nvvm.convert.f32x2.to.") and "relu" in op.attributes and "true" in str(op.attributes["relu"]):
            operands = [np.maximum(operand, 0) for operand in operands]
        return super().simple(op, operands, mask)

    def bulk(self, op, operands, mask):
        if op.name != "nvvm.cp.async.bulk.shared.cluster.global":
            return super().bulk(op, operands, mask)
        for thread in np.flatnonzero(mask):  # every thread starts a copy of its own
            super().bulk(op, operands, np.arange(len(mask)) == thread)
        return None

    def product(self, operands, kind):
        """Of 16 x 16 and 16 x 8 numbers of 16 bits, two to a word; of 16 x 8 and 8 x 8 of tf32, one to a word."""
        parts = operands[:4], operands[4:6]
        if kind == "tf32":
            a, b = ([(w & ~0x1FFF).view(np.float32) for w in part] for part in parts)
            return self.tiles(a, b, operands[6:10], 1)
        dtype = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}[kind]
        a, b = ([np.ascontiguousarray(w).view(dtype).reshape(-1).astype(np.float32) for w in part] for part in parts)
        return self.tiles(a, b, operands[6:10], 2)

    def tiles(self, a, b, start, each):
        """Lanes' operands as matrices, `each` numbers to a word, multiplied and added to lanes' sums."""
        a, b = ([word.reshape(-1, 8, 4, each) for word in words] for words in (a, b))  # warp, row, column, number
        left = np.stack(a, 1).reshape(-1, 2, 2, 8, 4, each).transpose(0, 2, 3, 1, 4, 5).reshape(-1, 16, 8 * each)
        right = np.stack(b, 1).transpose(0, 1, 3, 4, 2).reshape(-1, 8 * each, 8)
        found = (left @ right).reshape(-1, 2, 8, 4, 2)
        return [sums + found[:, number // 2, :, :, number % 2].reshape(-1) for number, sums in enumerate(start)]

    def matrices(self, op, pointer, mask):
        """Four 8 x 8 matrices, of whose rows each lane names one; a lane gets two neighbours of a row of each."""
        assert "row" in str(op.attributes["layout"])
        space, place = self.machine.at(pointer[mask])
        rows = np.zeros(self.threads, np.int64)
        rows[mask] = place
        assert (rows % 16 == 0).all(), "a row of a matrix that is not aligned"
        thread = np.arange(self.threads)
        words = []
        for matrix in range(4):
            at = rows[(thread & ~31) + 8 * matrix + (thread & 31) // 4][:, None] + 4 * (thread & 3)[:, None] + np.arange(4)
            self._touch(space, at[mask], mask, False)
            words.append(np.ascontiguousarray(space.data[at]).view(np.int32)[:, 0])
        return words

    def assembly(self, text, operands, mask):
        if text.startswith(("cp.async.commit", "cp.async.wait")):
            return None
        if not text.startswith("cp.async"):
            return super().assembly(text, operands, mask)
        bytes_ = int(re.search(r"\[\$1\], (\d+)", text)[1])  # type: ignore[index]
        space, source = self.machine.at(operands[1][mask])
        shared = self.machine.spaces[(self.shared >> SHIFT) - 1]
        target = operands[0][mask].astype(np.int64)
        assert (source % bytes_ == 0).all() and (target % bytes_ == 0).all(), "a copy that is not aligned"
        assert (source + bytes_ <= len(space.data)).all()
        at = target[:, None] + np.arange(bytes_)
        self._touch(shared, at, mask, True)
        shared.data[at] = space.data[source[:, None] + np.arange(bytes_)]
        return None
