"""The emulator with what threads do to memory together: sums, the larger and the smaller, compare-and-swap."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np

from test.emulators.kernel import RED_ZONE
from test.emulators.vector import VectorBlock

_TYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    **{
        f"{sign}{bits}": np.dtype(f"{kind}{bits // 8}")
        for sign, kind in (("s", "i"), ("u", "u"), ("b", "i"))
        for bits in (16, 32, 64)
    },
}
_RED = re.compile(r"red\.relaxed\.gpu\.global\.(add|max|min)(\.noftz)?(\.v\d)?\.(b?[fsu]\d+)(x2)? ")
_CAS = re.compile(r"atom\.relaxed\.gpu\.global\.cas\.(b\d+) ")
_COMBINE = {"add": np.add, "max": np.maximum, "min": np.minimum}


class AtomicBlock(VectorBlock):
    """A block whose threads change words of global memory one after the other."""

    def assembly(self, text, operands, mask):
        if (found := _CAS.match(text)) is not None:
            dtype, out = _TYPES[found[1]], np.zeros_like(operands[1])
            for thread in map(int, np.flatnonzero(mask)):
                with self.machine.lock:
                    (word,) = self._words(operands[0], thread, dtype, 1)
                    out[thread] = word[0]
                    if word[0] == operands[1][thread]:
                        word[0] = operands[2][thread]
            return out
        if (found := _RED.match(text)) is not None and "release" not in text:
            dtype = np.dtype(_TYPES[found[4]])
            values = np.stack(operands[1:], 1).copy().view(dtype).reshape(self.threads, -1)
            for thread in map(int, np.flatnonzero(mask)):
                with self.machine.lock, np.errstate(all="ignore"):
                    (run,) = self._words(operands[0], thread, dtype, values.shape[1])
                    run[:] = _COMBINE[found[1]](run, values[thread])
            return None
        return super().assembly(text, operands, mask)

    def _words(self, pointer, thread: int, dtype, count: int):
        """The run of words that a thread's pointer names: aligned, and inside of its buffer."""
        space, (byte,) = self.machine.at(pointer[thread : thread + 1])
        size = np.dtype(dtype).itemsize * count
        assert byte % size == 0, f"{size} bytes at {byte} are not aligned"
        assert 0 <= byte and byte + size <= len(space.data) - RED_ZONE, "outside of its buffer"
        yield space.data[byte : byte + size].view(dtype)
