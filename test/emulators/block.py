"""Runs a lowered task body on the processor as a block of threads would, and finds races.

All threads go in lockstep: a value is an array with one element a thread, and a mask says which threads are active.
Lockstep hides missing barriers from the numbers, so every access is checked against those of other threads since the
last barrier.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from torch_mlir import ir

from test.emulators.arithmetic import DTYPES
from test.emulators.decoded import Code, Operation, decoded


class Race(AssertionError):
    """Two threads touch one place, one of them writing, without a barrier between."""


class Space:
    """A piece of memory of `size` bytes, with who touched each byte since which barrier (if it is `checked`)."""

    def __init__(self, size: int, checked: bool = True):
        self.checked = checked
        self.data = np.full(-(-size // 16) * 16, 0xFF, np.uint8)  # NaN, so that what is read before it is written shows
        if checked:
            self.written, self.writer = np.full(len(self.data), -1), np.zeros(len(self.data), int)
            self.read, self.reader = np.full(len(self.data), -1), np.zeros(len(self.data), int)


@dataclasses.dataclass
class Ref:
    """A memref: `offset` and `strides` in elements of `dtype`."""

    space: Space
    dtype: type
    offset: object
    shape: list[int]
    strides: list[int]

    def flat(self, indices):
        at = self.offset
        for index, stride in zip(indices, self.strides, strict=True):
            at = at + index * stride
        return at


def contiguous(shape):
    return [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]


class Block:
    """A block of `threads` threads. Attribute `barriers` counts the block barriers it has passed."""

    def __init__(self, threads: int):
        self.threads = threads
        self.phase = 0
        self.barriers = 0
        self.everybody = np.ones(threads, bool)
        self.known: dict[ir.Operation, Code] = {}

    def run(self, function: ir.Operation, arguments: list) -> None:
        """Run a function. Arguments: `Ref`s, integers (the same for all threads), or arrays (one element a thread)."""
        block = self.code(function)
        self.env: dict[object, object] = {}
        for value, given in zip(block.arguments, arguments, strict=True):
            if isinstance(given, int):
                given = np.full(self.threads, given, np.int64)
            self.env[value] = given
        with np.errstate(all="ignore"):
            self.block(block, self.everybody)
        self.phase += 1  # the executor's barrier at the end of a tile

    def code(self, function: ir.Operation) -> Code:
        """A function's body, read once for all blocks that share what is `known`."""
        if function not in self.known:
            self.known[function] = decoded(function.regions[0].blocks[0])
        return self.known[function]

    # --- control flow

    def block(self, block: Code, mask: np.ndarray):
        """Run a block for the threads of `mask`; the operands of its terminator."""
        env = self.env
        for op in block.operations:
            if op.quick is not None:
                env[op.results[0]] = op.quick(self.threads, *[env[o] for o in op.operands])
            else:
                self.op(op, mask)
        return [env[o] for o in block.ends]

    def op(self, op: Operation, mask: np.ndarray) -> None:
        if op.name == "scf.for":
            self.loop(op, mask)
        elif op.name == "scf.while":
            self.while_loop(op, mask)
        elif op.name == "scf.if":
            self.branch(op, mask)
        elif op.name == "nvvm.barrier":
            assert mask.all(), "a block barrier that not every thread reaches"
            self.phase += 1
            self.barriers += 1
        else:
            found = self.simple(op, [self.env[o] for o in op.operands], mask)
            for number, result in enumerate(op.results):
                self.env[result] = found[number] if len(op.results) > 1 else found

    def loop(self, op, mask):
        index, stop, step, *carried = (self.env[o] for o in op.operands)
        body = op.regions[0].blocks[0]
        carried = list(carried)
        while True:
            active = mask & (index < stop)
            if not active.any():
                break
            self.env[body.arguments[0]] = index
            for argument, value in zip(body.arguments[1:], carried, strict=True):
                self.env[argument] = value
            carried = [_merge(active, new, old) for new, old in zip(self.block(body, active), carried, strict=True)]
            index = np.where(active, index + step, index).astype(index.dtype)
        for result, value in zip(op.results, carried, strict=True):
            self.env[result] = value

    def while_loop(self, op, mask):
        before, after = (region.blocks[0] for region in op.regions)
        carried = [self.env[o] for o in op.operands]
        results, active = None, mask
        while True:
            for argument, value in zip(before.arguments, carried, strict=True):
                self.env[argument] = value
            condition, *passed = self.block(before, active)
            results = passed if results is None else [_merge(active, n, o) for n, o in zip(passed, results, strict=True)]
            active = active & condition
            if not active.any():
                break
            for argument, value in zip(after.arguments, passed, strict=True):
                self.env[argument] = value
            carried = [_merge(active, n, o) for n, o in zip(self.block(after, active), carried, strict=True)]
        for result, value in zip(op.results, results, strict=True):
            self.env[result] = value

    def branch(self, op, mask):
        condition = self.env[op.operands[0]]
        sides = []
        for region, active in zip(op.regions, (mask & condition, mask & ~condition), strict=True):
            blocks = list(region.blocks)
            sides.append(self.block(blocks[0], active) if blocks and active.any() else None)
        for number, result in enumerate(op.results):
            values = [side[number] if side else None for side in sides]
            if values[0] is None or values[1] is None:
                self.env[result] = values[0] if values[1] is None else values[1]
            else:
                self.env[result] = _merge(condition, values[0], values[1])

    # --- operations

    def simple(self, op, operands, mask):
        name = op.name
        if name == "arith.bitcast" or name == "llvm.bitcast":
            return _bitcast(operands[0], str(op.results[0].type))
        if name == "llvm.extractelement":
            return operands[0][:, int(operands[1][0])]
        if name == "llvm.insertelement":
            joined = operands[0].copy()
            joined[:, int(operands[2][0])] = operands[1]
            return joined
        if name == "llvm.mlir.undef" and str(op.results[0].type) == "vector<2xi32>":
            return np.zeros((self.threads, 2), np.int32)
        if name == "arith.select":  # of what is no number: memrefs, pointers
            return np.where(*operands) if isinstance(operands[1], np.ndarray) else operands[1]
        if name in ("math.isnan", "math.isinf", "math.isfinite"):
            return getattr(np, name[5:])(operands[0])
        if name == "math.absi":
            return np.abs(operands[0])
        if name == "math.fma":
            return (operands[0].astype(np.float64) * operands[1] + operands[2]).astype(op.dtype)
        if name == "nvvm.fma":
            assert "sat_mode<sat>" in str(op.attributes["sat"])
            exact = operands[0].astype(np.float64) * operands[1] + operands[2]
            return np.where(np.isnan(exact), 0, np.clip(exact, 0, 1)).astype(op.dtype)  # PTX ISA: NaN becomes +0
        if name.startswith("memref."):
            return self.memory(op, operands, mask)
        if name == "nvvm.shfl.sync":
            assert mask.reshape(-1, 32).all(1).sum() * 32 == mask.sum(), "a shuffle that not every lane reaches"
            assert "bfly" in str(op.attributes["kind"])
            return operands[1][np.arange(self.threads) ^ operands[2]]
        if name == "nvvm.griddepcontrol":  # one kernel runs after the other
            return None
        raise NotImplementedError(f"{name}: {op}")

    def memory(self, op, operands, mask):
        name = op.name
        if name == "memref.load":
            ref, *indices = operands
            return self.access(ref, indices, mask)
        if name == "memref.store":
            value, ref, *indices = operands
            self.access(ref, indices, mask, value)
            return None
        if name == "memref.atomic_rmw":
            value, ref, *indices = operands
            at = np.broadcast_to(ref.flat(indices), mask.shape)[mask]
            assert ir.IntegerAttr(op.attributes["kind"]).value in (0, 1), "only additions"
            np.add.at(ref.space.data.view(ref.dtype), at, np.broadcast_to(value, mask.shape)[mask])
            return value
        if name in ("memref.memory_space_cast", "memref.cast"):
            return operands[0]
        if name == "memref.view":
            type = ir.MemRefType(op.results[0].type)
            dtype = DTYPES[str(type.element_type)]
            start = int(operands[1][0]) // np.dtype(dtype).itemsize
            return Ref(operands[0].space, dtype, start, list(type.shape), contiguous(type.shape))
        if name == "memref.subview":
            return self.subview(op, operands)
        if name in ("memref.expand_shape", "memref.collapse_shape"):
            strides, _ = ir.MemRefType(op.results[0].type).get_strides_and_offset()
            return dataclasses.replace(operands[0], shape=list(ir.MemRefType(op.results[0].type).shape), strides=strides)
        raise NotImplementedError(f"{name}: {op}")

    def subview(self, op, operands):
        ref, *dynamic = operands
        dynamic = iter(dynamic)
        marker = ir.ShapedType.get_dynamic_size()
        offsets, _, strides = (
            [next(dynamic) if n == marker else n for n in ir.DenseI64ArrayAttr(op.attributes[f"static_{what}"])]
            for what in ("offsets", "sizes", "strides")
        )
        at = ref.flat(offsets)
        kept = [s * by for s, by in zip(ref.strides, strides, strict=True)]
        shape = list(ir.MemRefType(op.results[0].type).shape)
        if len(shape) != len(kept):  # drops extents of one
            wanted, _ = ir.MemRefType(op.results[0].type).get_strides_and_offset()
            kept = list(wanted)
        return dataclasses.replace(ref, offset=at, shape=shape, strides=kept)

    def access(self, ref, indices, mask, value=None):
        """Load, or store `value`, for the active threads, and look for races."""
        for index, extent in zip(indices, ref.shape, strict=True):
            inside = (np.broadcast_to(index, mask.shape)[mask] >= 0) & (np.broadcast_to(index, mask.shape)[mask] < extent)
            assert inside.all(), f"index outside of its memref of {ref.shape}"
        at = np.broadcast_to(ref.flat(indices), mask.shape)
        data, threads = ref.space.data.view(ref.dtype), np.arange(self.threads)[mask]
        if not ref.space.checked:
            return self.move(data, at, mask, value)
        place = at[mask] * np.dtype(ref.dtype).itemsize
        space = ref.space
        foreign = (space.written[place] == self.phase) & (space.writer[place] != threads)
        if foreign.any():
            raise Race(f"{'write' if value is not None else 'read'} of what another thread wrote")
        if value is None:
            again = (space.read[place] == self.phase) & (space.reader[place] != threads)
            space.reader[place] = threads
            many = again | (space.reader[place] != threads)
            space.reader[place[many]] = -2
            space.read[place] = self.phase
            return self.move(data, at, mask)
        if ((space.read[place] == self.phase) & (space.reader[place] != threads)).any():
            raise Race("write of what another thread read")
        space.writer[place] = threads
        if (space.writer[place] != threads).any():
            raise Race("two threads write one place")
        space.written[place] = self.phase
        return self.move(data, at, mask, value)

    def move(self, data, at, mask, value=None):
        """Load from `data[at]`, or store `value` there, for the active threads."""
        if value is None:
            out = np.zeros(self.threads, data.dtype)
            out[mask] = data[at[mask]]
            return out
        data[at[mask]] = np.broadcast_to(value, mask.shape)[mask]
        return None


def _bitcast(value, type: str):
    """The bits of 64-bit values as pairs of words (how shuffles move them), and back; else of one type as another."""
    if type == "vector<2xi32>":
        return value.view(np.int32).reshape(-1, 2)
    if value.ndim == 2:
        return np.ascontiguousarray(value).view(DTYPES[type]).reshape(-1)
    return value.view(DTYPES[type])


def _merge(mask, new, old):
    return np.where(mask, new, old).astype(np.asarray(old).dtype) if isinstance(old, np.ndarray) else new
