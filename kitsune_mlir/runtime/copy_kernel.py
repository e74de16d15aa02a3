"""One launch that copies several tensors into larger ones: each by itself costs a launch, which takes longer than the copy.

The kernel is text that the driver assembles when a device is first asked: programs that were loaded without the compiler
have it, too.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Sequence

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.driver import Device, Function, driver, loaded_apart
from kitsune_mlir.runtime.launch import Config, library

__all__ = ["ALIGNED", "MOST_BYTES", "MOST_COPIES", "Copies", "Copy", "table_of"]

Copy = tuple[int, int, int, int, int]
"""Address of what is copied, and where to; bytes of a piece, how many there are, and bytes from one to the next there."""

ALIGNED = 16
"""What addresses are multiples of where `Copies` of one set of addresses serve another one."""
MOST_COPIES = 8
"""Of a launch."""
MOST_BYTES = 1 << 31
"""Of a copy it is less: its units are counted in 32 bits."""
THREADS = 256
MOST_BLOCKS = 1056
"""Each thread of which copies a unit, or several where there are more."""
_ROW = struct.Struct("QQIIIIII")  # source, target, units of a piece, of all, between pieces, first block, blocks, log of a unit

# The program's kernel may start meanwhile, and waits for the end of this one (`kernel/launches.py`).
# Block b finds its row, and thread t copies unit (b - first) * 256 + t, and every (blocks * 256)th after it.
_TEXT = """.version 8.0
.target sm_90
.address_size 64
.visible .entry kitsune_copies(.param .align 8 .b8 rows[320])
.maxntid 256, 1, 1
{
.reg .pred %p<8>;
.reg .b32 %r<24>;
.reg .b64 %d<16>;
.reg .b16 %h<2>;
griddepcontrol.launch_dependents;
mov.u32 %r0, %ctaid.x;
mov.b64 %d0, rows;
mov.u32 %r23, 1;
FIND:
setp.ge.u32 %p0, %r23, 8;
@%p0 bra FOUND;
ld.param.u32 %r1, [%d0+68];
setp.lt.u32 %p1, %r0, %r1;
@%p1 bra FOUND;
add.s64 %d0, %d0, 40;
add.u32 %r23, %r23, 1;
bra FIND;
FOUND:
ld.param.u64 %d1, [%d0];
ld.param.u64 %d2, [%d0+8];
ld.param.u32 %r2, [%d0+16];
ld.param.u32 %r3, [%d0+20];
ld.param.u32 %r4, [%d0+24];
ld.param.u32 %r5, [%d0+28];
ld.param.u32 %r6, [%d0+32];
ld.param.u32 %r7, [%d0+36];
cvta.to.global.u64 %d1, %d1;
cvta.to.global.u64 %d2, %d2;
sub.u32 %r8, %r0, %r5;
mov.u32 %r9, %tid.x;
mad.lo.u32 %r10, %r8, 256, %r9;
shl.b32 %r11, %r6, 8;
setp.eq.u32 %p2, %r7, 4;
setp.eq.u32 %p3, %r7, 2;
NEXT:
setp.ge.u32 %p4, %r10, %r3;
@%p4 bra DONE;
div.u32 %r12, %r10, %r2;
mul.lo.u32 %r13, %r12, %r2;
sub.u32 %r13, %r10, %r13;
mul.wide.u32 %d3, %r12, %r4;
cvt.u64.u32 %d4, %r13;
add.u64 %d3, %d3, %d4;
shl.b64 %d3, %d3, %r7;
add.u64 %d3, %d2, %d3;
cvt.u64.u32 %d5, %r10;
shl.b64 %d5, %d5, %r7;
add.u64 %d5, %d1, %d5;
@%p2 bra LONG;
@%p3 bra WORD;
ld.global.u8 %h0, [%d5];
st.global.u8 [%d3], %h0;
bra STEP;
WORD:
ld.global.u32 %r14, [%d5];
st.global.u32 [%d3], %r14;
bra STEP;
LONG:
ld.global.v4.u32 {%r15, %r16, %r17, %r18}, [%d5];
st.global.v4.u32 [%d3], {%r15, %r16, %r17, %r18};
STEP:
add.u32 %r10, %r10, %r11;
bra NEXT;
DONE:
ret;
}
"""


def table_of(copies: Sequence[Copy]) -> tuple[bytes, int]:
    """The kernel's argument, and how many blocks it takes."""
    rows, first = [], 0
    for source, target, piece, count, pitch in copies:
        together = source | target | piece | (pitch if count > 1 else 0)
        log = 4 if together % 16 == 0 else 2 if together % 4 == 0 else 0
        units = piece * count >> log
        blocks = max(1, min(MOST_BLOCKS, -(-units // THREADS)))
        rows.append(_ROW.pack(source, target, piece >> log, units, pitch >> log, first, blocks, log))
        first += blocks
    rows += [_ROW.pack(0, 0, 1, 0, 0, first, 0, 0)] * (MOST_COPIES - len(rows))
    return b"".join(rows), first


class Copies:
    """Copies that are made together on a stream, from other addresses each time.

    Args:
        copies: up to `MOST_COPIES`, each of one byte at least and less than `MOST_BYTES`; memory of the device.
        device: its index.
        stream: the stream's handle.

    Attributes:
        launch: addresses of configuration, function and arguments.

    Raises:
        TargetError: the device does not take the kernel.
    """

    def __init__(self, copies: Sequence[Copy], device: int, stream: int):
        self._device, self._function = _kernel(device)
        rows, blocks = table_of(copies)
        words = self._words = (ctypes.c_uint64 * (len(rows) // 8)).from_buffer_copy(rows)
        self._places = range(0, len(copies) * _ROW.size // 8, _ROW.size // 8)
        self._table = (ctypes.c_uint64 * 1)(ctypes.addressof(words))
        self._config = Config(blocks, THREADS, 0, stream, cooperative=False)
        self.launch = self._config.address, int(self._function.handle), ctypes.addressof(self._table)
        self._given = *self.launch, None
        self._launch, self._lock = library().launch, threading.Lock()

    def place(self, number: int) -> int:
        """The address of the word that says where a copy's source is, for code that makes the launch itself."""
        return ctypes.addressof(self._words) + 8 * self._places[number]

    def __call__(self, sources: Sequence[int]) -> None:
        """Copy, without waiting for anything; works while the stream is being captured.

        Args:
            sources: addresses, multiples of `ALIGNED` if those that these copies were made for are; else the same.

        Raises:
            KitsuneError: the driver rejects the launch.
        """
        with self._lock:  # the driver has copied the table when it returns
            for place, source in zip(self._places, sources, strict=True):
                self._words[place] = source
            status = self._launch(*self._given)
            if status:  # this thread may have no context yet
                with self._device.current():
                    status = self._launch(*self._given)
        if status:
            raise KitsuneError(
                f"launching the kernel that copies {len(sources)} inputs failed: {driver().CUresult(status).name}"
            )


@functools.cache
def _kernel(device: int) -> tuple[Device, Function]:
    opened = Device.open(device)
    return opened, loaded_apart(opened, _TEXT.encode() + b"\0", "kitsune_copies", THREADS)
