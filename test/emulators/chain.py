"""The emulator of whole blocks for kernels whose warpgroups have roles: each party of threads runs the kernel by itself.

A party is a set of warps that stay together; it runs in a Python thread of its own, with a mask of its threads. mbarriers and
named barriers are real ones between the parties. wgmma, TMA of matrices, stmatrix and cp.async happen at once.
"""

from __future__ import annotations

import re
import threading

import ml_dtypes
import numpy as np
from torch_mlir import ir

from kitsune_mlir.runtime.manifest import Manifest
from test.emulators.arithmetic import DTYPES
from test.emulators.block import Space
from test.emulators.bulk import copy_tile, tile_bytes
from test.emulators.kernel import RED_ZONE, SHIFT, Machine
from test.emulators.vector import VectorBlock

SECONDS = 60.0
BF16 = ml_dtypes.bfloat16


class Shared:
    """What the parties of a block have in common."""

    def __init__(self, parties: int, maps: dict[int, tuple[dict, int]]):
        self.maps, self.parties = maps, parties
        self.lock = threading.Condition()
        self.mbarriers: dict[int, dict[str, int]] = {}
        self.named: dict[int, list[int]] = {}
        self.block = threading.Barrier(parties)

    def until(self, test) -> None:
        assert self.lock.wait_for(test, SECONDS), "a party waits for ever"

    def settle(self, state: dict[str, int]) -> None:
        """Complete a phase whose arrivals and bytes have come."""
        if state["came"] == state["arrivals"] and state["bytes"] == 0:
            state["came"], state["phases"] = 0, state["phases"] + 1
            self.lock.notify_all()


class Party(VectorBlock):
    """Some warps of a block."""

    def __init__(self, shared: Shared, members: np.ndarray, *args):
        super().__init__(*args)
        self.common, self.everybody = shared, members

    def op(self, op, mask):
        if op.name == "nvvm.barrier" and not len(op.operands):
            self.common.block.wait(SECONDS)
        elif op.name in ("nvvm.barrier", "nvvm.barrier.arrive"):
            named = dict(enumerate(op.operands))
            first, second = (int(self.env[named[n]][mask][0]) for n in range(2))
            number, count = (first, second) if op.name == "nvvm.barrier" else sorted((first, second))
            self.meet(number, count, int(mask.sum()), op.name == "nvvm.barrier")
        elif len(op.results) == 1 and op.name == "arith.addf" and isinstance(op.results[0].type, ir.VectorType):
            a, b = (self.env[o].astype(np.float32) for o in op.operands)
            self.env[op.results[0]] = (a + b).astype(BF16)
        else:
            super().op(op, mask)

    def meet(self, number: int, count: int, threads: int, stay: bool) -> None:
        with self.common.lock:
            state = self.common.named.setdefault(number, [0, 0])
            generation = state[1]
            state[0] += threads
            assert state[0] <= count, f"named barrier {number}: too many threads"
            if state[0] == count:
                state[0], state[1] = 0, generation + 1
                self.common.lock.notify_all()
            elif stay:
                self.common.until(lambda: state[1] != generation)

    def _touch(self, space, at, mask, writes):
        """Races are not looked for: the parties have no common phases."""

    def simple(self, op, operands, mask):
        name = op.name
        if name in ("nvvm.setmaxregister", "nvvm.prefetch", "nvvm.bar.warp.sync", "nvvm.cp.async.bulk.commit.group"):
            return None
        if name in ("nvvm.cp.async.commit.group", "nvvm.cp.async.wait.group"):  # copies happen at once
            return None
        if name == "nvvm.shfl.sync":
            lane = np.arange(self.threads)
            kind = str(op.attributes["kind"])
            source = lane ^ operands[2] if "bfly" in kind else (lane & ~31) + (operands[2] & 31)
            return operands[1][source]
        if name.startswith("nvvm.mbarrier."):
            return self.mbarrier(name, operands, mask)
        if name == "nvvm.cp.async.bulk.tensor.shared.cluster.global":
            return self.tensor(op, operands, mask, True)
        if name == "nvvm.cp.async.bulk.tensor.global.shared.cta":
            return self.tensor(op, operands, mask, False)
        if name == "nvvm.stmatrix":
            return self.stmatrix(operands, mask)
        if name == "llvm.ptrtoint":
            return (operands[0] & ((1 << SHIFT) - 1)).astype(DTYPES[str(op.results[0].type)])
        if name == "arith.select" and str(op.results[0].type).startswith("!llvm.ptr"):
            return np.where(*operands)
        if name == "llvm.extractvalue":
            return operands[0][ir.DenseI64ArrayAttr(op.attributes["position"])[0]]
        if name == "llvm.mlir.undef" and not isinstance(op.results[0].type, ir.VectorType):
            return np.zeros(self.threads, DTYPES[str(op.results[0].type)])
        if name.startswith("nvvm.convert.f32x2.to.") and "relu" in op.attributes and "true" in str(op.attributes["relu"]):
            operands = [np.maximum(operand, 0) for operand in operands]
        return super().simple(op, operands, mask)

    def mbarrier(self, name, operands, mask):
        common = self.common
        with common.lock:
            place = self._one(operands[0], mask)
            if name == "nvvm.mbarrier.init":
                common.mbarriers[place] = {"arrivals": self._one(operands[1], mask), "came": 0, "bytes": 0, "phases": 0}
                return None
            state = common.mbarriers[place]
            if name == "nvvm.mbarrier.try_wait.parity":
                parity = self._one(operands[1], mask)
                common.until(lambda: state["phases"] % 2 != parity)
                return None
            state["came"] += int(mask.sum())
            if name == "nvvm.mbarrier.arrive.expect_tx":
                state["bytes"] += self._one(operands[1], mask)
            common.settle(state)
        return None

    def tensor(self, op, operands, mask, inward):
        assert mask.sum() == 1
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        one = [int(operand[mask][0]) for operand in operands]
        target, descriptor = (one[0], one[1]) if inward else (one[1], one[0])
        rank = segments[2]
        places = one[2 : 2 + rank][::-1]
        map_, base = self.common.maps[descriptor]
        copy_tile(self.machine, map_, base, target, places, inward)
        if inward:
            with self.common.lock:
                state = self.common.mbarriers[one[2 + rank]]
                state["bytes"] -= tile_bytes(map_)
                self.common.settle(state)
        return None

    def stmatrix(self, operands, mask):
        pointer, words = operands[0], operands[1:]
        space, _ = self.machine.at(pointer[mask])
        for thread in np.flatnonzero(mask):
            lane, warp = thread & 31, thread & ~31
            for matrix, word in enumerate(words):
                row = warp + 8 * matrix + lane // 4
                place = (int(pointer[row]) & ((1 << SHIFT) - 1)) + 4 * (lane & 3)
                space.data[place : place + 4] = np.array([word[thread]], np.int32).view(np.uint8)

    def assembly(self, text, operands, mask):
        if "wgmma.mma_async" in text:
            return self.wgmma(text, operands, mask)
        if text.startswith("wgmma.wait_group") or "// pinned" in text:
            return operands[0] if len(operands) == 1 else list(operands)
        if text.startswith(("mov.b32",)):
            return operands[0]
        if text.startswith(("cp.async.commit", "cp.async.wait")):
            return None
        if text.startswith("cp.async"):
            bytes_ = int(re.search(r"\[\$1\], (\d+)", text)[1])
            shared = self.machine.spaces[(self.shared >> SHIFT) - 1]
            space, source = self.machine.at(operands[1][mask])
            for n, thread in enumerate(np.flatnonzero(mask)):
                place = int(operands[0][thread])
                read = bytes_ if len(operands) < 3 else int(operands[2][thread])
                shared.data[place : place + read] = space.data[source[n] : source[n] + read]
                shared.data[place + read : place + bytes_] = 0
            return None
        if text.startswith("red.relaxed.gpu.global.add.noftz"):
            with self.machine.lock:
                for thread in np.flatnonzero(mask):  # some add to scratch, others to a result
                    space, place = self.machine.at(operands[0][thread : thread + 1])
                    words = np.array([word[thread] for word in operands[1:]], np.int32).view(BF16)
                    there = space.data[place[0] : place[0] + words.nbytes].view(BF16)
                    there[:] = (there.astype(np.float32) + words.astype(np.float32)).astype(BF16)
            return None
        return super().assembly(text, operands, mask)

    def wgmma(self, text, operands, mask):
        n, kind = int(re.search(r"m64n(\d+)k16", text)[1]), BF16
        count = n // 2
        sums = [operand.astype(np.float64) for operand in operands[:count]]
        steps = re.findall(r"wgmma\.mma_async\.sync\.aligned\.\S+ \{[^}]*\}, (\{[^}]*\}|da), db, (\w+), ([^;]*);", text)
        moves = {r: [int(x) for x in re.findall(rf"add\.s32 low, low, (-?\d+); mov\.b64 {r},", text)] for r in ("da", "db")}
        threads = np.flatnonzero(mask)
        assert len(threads) == 128
        warp, lane = (np.arange(128) // 32), np.arange(128) & 31
        total = np.zeros((64, n))
        fresh = False
        for index, (a, predicate, flags) in enumerate(steps):
            fresh = fresh or predicate == "first"
            transposed = flags.split(", ")[-1] == "1"
            b = self.matrix(int(operands[-1][threads[0]]), moves["db"][index], n, transposed)
            if a == "da":
                factor = self.matrix(int(operands[count][threads[0]]), moves["da"][index], 64, False)
            else:
                numbers = [int(x) - 2 * count for x in re.findall(r"\$(\d+)", a)]
                factor = np.zeros((64, 16))
                for word, number in enumerate(numbers):
                    pair = np.ascontiguousarray(operands[count + number][threads]).view(kind).reshape(-1, 2)
                    rows, cols = 16 * warp + lane // 4 + 8 * (word & 1), 2 * (lane & 3) + 8 * (word >> 1)
                    for part in range(2):
                        factor[rows, cols + part] = pair[:, part].astype(np.float64)
            total += factor @ b.T
        out = []
        for number in range(count):
            block, half, part = number // 4, number // 2 & 1, number & 1
            value = np.zeros(self.threads) if fresh else sums[number].copy()
            value[threads] += total[16 * warp + lane // 4 + 8 * half, 8 * block + 2 * (lane & 3) + part]
            out.append(value.astype(np.float32))
        return out

    def matrix(self, descriptor: int, move: int, rows: int, transposed: bool) -> np.ndarray:
        """rows x 16 elements as wgmma reads them: address bits 4 to 6 are permuted by the bits above them."""
        swizzle = {1: 128, 2: 64, 3: 32}[descriptor >> 62 & 3]
        stride, leading = ((descriptor >> 32) & 0x3FFF) << 4, ((descriptor >> 16) & 0x3FFF) << 4
        start = ((descriptor + move) & 0x3FFF) << 4
        shared = self.machine.spaces[(self.shared >> SHIFT) - 1].data.view(BF16)
        row, col = np.meshgrid(np.arange(rows), np.arange(16), indexing="ij")
        if transposed:
            panel = swizzle // 2
            place = row // panel * leading + col // 8 * stride + col % 8 * swizzle + row % panel * 2
        else:
            place = row // 8 * stride + row % 8 * swizzle + col * 2
        at = start + place
        at = at ^ ((at >> 7 & (swizzle // 16 - 1)) << 4)
        return shared[at // 2].astype(np.float64)


def run_chain(module: ir.Operation, manifest: Manifest, inputs: list[np.ndarray], results: list[np.ndarray]) -> None:
    """Run a kernel of roles on one block; fills `results`."""
    machine = Machine()
    groups: dict[str, list[tuple[Space, int]]] = {"input": [], "result": [], "arena": []}
    sizes = [("input", a.nbytes) for a in inputs] + [("result", a.nbytes) for a in results] + [("arena", manifest.arena_bytes)]
    for kind, size in sizes:
        space = Space(size + 2 * RED_ZONE, checked=False)
        groups[kind].append((space, machine.add(space)))
    for (space, _), array in zip(groups["input"], inputs, strict=True):
        space.data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    workspace = Space(manifest.workspace_bytes(1) + RED_ZONE, checked=False)
    workspace.data[:] = 0
    work, maps, pointers = machine.add(workspace), {}, []
    for parameter in manifest.parameters:
        if parameter.kind == "tensor_map":
            pointers.append(machine.add(Space(128)))
            maps[pointers[-1]] = (parameter.map, groups[parameter.of][parameter.index][1] + parameter.offset)
        else:
            pointers.append(work if parameter.kind == "workspace" else groups[parameter.kind][parameter.index][1])
    parties = [range(128, 256), range(256, 384), *(range(32 * w, 32 * w + 32) for w in range(4))]
    shared, failures, bodies = Shared(len(parties), maps), [], []
    for threads in parties:
        members = np.zeros(manifest.threads, bool)
        members[list(threads)] = True
        bodies.append(Party(shared, members, machine, module, manifest.threads, 0, 1, manifest.shared_bytes + RED_ZONE))
    bodies[0].code(bodies[0].functions[manifest.kernel])
    for body in bodies:
        body.shared, body.known = bodies[0].shared, bodies[0].known

    def go(body: Party) -> None:
        try:
            with module.context, ir.Location.unknown():
                body.run(body.functions[manifest.kernel], [body.words(p, np.int64) for p in pointers])
        except BaseException as error:
            failures.append(error)
            shared.block.abort()

    runners = [threading.Thread(target=go, args=(body,)) for body in bodies]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    if failures:
        raise failures[0]
    for (space, _), array in zip(groups["result"], results, strict=True):
        array.reshape(-1).view(np.uint8)[:] = space.data[: array.nbytes]
