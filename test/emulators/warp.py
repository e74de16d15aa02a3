"""The kernel emulator with products of warps (`mma.sync`), `cp.async`, and bulk copies that each thread starts."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
from torch_mlir import ir

from test.emulators.kernel import SHIFT
from test.emulators.vector import VectorBlock


class Warps(VectorBlock):
    """With products of warps and `cp.async`, which copies at once."""

    def simple(self, op, operands, mask):
        if op.name == "nvvm.mma.sync":
            return self.product(operands, re.findall(r"<(\w+)>", str(op.attributes["multiplicandAPtxType"]))[0])
        if op.name == "nvvm.vote.sync" and "ballot" in str(op.attributes["kind"]):
            bits = (operands[1] & mask).reshape(-1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)
            return np.repeat(bits.sum(1).astype(np.uint32).view(np.int32), 32)
        if op.name == "nvvm.ldmatrix":
            return self.matrices(op, operands[0], mask)
        if op.name in ("nvvm.prefetch", "nvvm.bar.warp.sync"):
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
