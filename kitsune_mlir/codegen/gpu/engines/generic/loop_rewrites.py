"""Rewrites of the loops that upstream makes from linalg: parallel loops outermost, fused, with accumulators in registers."""

from __future__ import annotations

from collections.abc import Sequence

from torch_mlir import ir
from torch_mlir.dialects import arith, memref, scf

from kitsune_mlir.codegen.gpu.engines.generic.effects import Access, Memory, accesses, is_pure
from kitsune_mlir.dialects.access import constant_of
from kitsune_mlir.dialects.verify import walk

__all__ = [
    "forward_stores",
    "fuse",
    "interchange",
    "isolate",
    "parallelize",
    "promote",
    "segments",
    "trip_counts",
]


# --- linalg: parallel loops first


def interchange(function: ir.Operation) -> None:
    """Permute the loops of every linalg.generic so that the parallel ones come first (in their order), then the others."""
    for op in walk(function):
        if op.name != "linalg.generic":
            continue
        kinds = [str(kind) for kind in ir.ArrayAttr(op.attributes["iterator_types"])]
        order = sorted(range(len(kinds)), key=lambda loop: "parallel" not in kinds[loop])
        if order == list(range(len(kinds))):
            continue
        place = {old: new for new, old in enumerate(order)}
        replaced = ir.AffineMap.get(len(kinds), 0, [ir.AffineDimExpr.get(place[old]) for old in range(len(kinds))])
        maps = []
        for attribute in ir.ArrayAttr(op.attributes["indexing_maps"]):
            old_map = ir.AffineMapAttr(attribute).value
            results = [ir.AffineExpr.compose(expression, replaced) for expression in old_map.results]
            maps.append(ir.AffineMapAttr.get(ir.AffineMap.get(len(kinds), 0, results)))
        op.attributes["indexing_maps"] = ir.ArrayAttr.get(maps)
        op.attributes["iterator_types"] = ir.ArrayAttr.get(
            [ir.ArrayAttr(op.attributes["iterator_types"])[old] for old in order]
        )
        for inner in walk(op):
            if inner.name == "linalg.index":
                dim = ir.IntegerAttr(inner.attributes["dim"])
                inner.attributes["dim"] = ir.IntegerAttr.get(dim.type, place[dim.value])


# --- scf.parallel


def segments(op: ir.Operation) -> list[list[ir.Value]]:
    """[lower, upper, step, init] of an scf.parallel."""
    sizes = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    operands, parts = list(op.operands), []
    for size in sizes:
        parts.append(operands[:size])
        operands = operands[size:]
    return parts


def trip_counts(op: ir.Operation) -> list[int | None]:
    """Iterations along each dimension of an scf.parallel or scf.for; None where the bounds are not constant."""
    lower, upper, step = segments(op)[:3] if op.name == "scf.parallel" else [[o] for o in list(op.operands)[:3]]
    counts: list[int | None] = []
    for bounds in zip(lower, upper, step, strict=True):
        known = [number for bound in bounds if (number := constant_of(bound)) is not None]
        counts.append(max(0, -(-(known[1] - known[0]) // known[2])) if len(known) == 3 else None)
    return counts


def _body(op: ir.Operation) -> ir.Block:
    return op.regions[0].blocks[0]


def _fusible(first: ir.Operation, second: ir.Operation, memory: Memory) -> bool:
    """Whether iteration i of `second` may run right after iteration i of `first`."""
    if segments(first)[:3] != segments(second)[:3] or first.results or second.results:
        return False
    ivs = dict(zip(_body(second).arguments, _body(first).arguments, strict=True))
    own = list(_body(first).arguments)
    needed = [iv for iv, count in zip(own, trip_counts(first), strict=True) if count != 1]
    outside = accesses(first)
    for b in accesses(second):
        for a in outside:
            if not memory.conflict(a, b):
                continue
            if "unknown" in (a.kind, b.kind) or a.memref != b.memref:
                return False
            mapped = [ivs.get(index, index) for index in b.indices]
            # The same element in the same iteration, and no element in two iterations.
            if list(a.indices) != mapped or any(iv not in a.indices for iv in needed):
                return False
            if any(not _is_fixed(index, own, first) for index in a.indices):
                return False
    return True


def _is_fixed(index: ir.Value, ivs: Sequence[ir.Value], loop: ir.Operation) -> bool:
    """Whether an index is one of the loop's own variables or computed outside of it."""
    return index in ivs or not _inside(index, loop)


def _inside(value: ir.Value, op: ir.Operation) -> bool:
    """Whether `value` is defined in a region of `op`."""
    owner = value.owner
    holder = owner.owner if isinstance(owner, ir.Block) else owner.parent
    while holder is not None:
        if holder.operation == op:
            return True
        holder = holder.operation.parent
    return False


def hoist_views(block: ir.Block) -> None:
    """Move allocations, views and arithmetic up to where their operands are known, so that loops become neighbours."""
    moved: set[ir.Operation] = set()
    anchor = None
    for op in list(block.operations):
        op = op.operation
        early = (is_pure(op) or op.name == "memref.alloc") and not op.regions
        if early and all(_is_early(o, block, moved) for o in op.operands):
            moved.add(op)
            if anchor is not None:
                op.move_before(anchor)
        elif anchor is None:
            anchor = op


def _is_early(value: ir.Value, block: ir.Block, moved: set[ir.Operation]) -> bool:
    owner = value.owner
    return isinstance(owner, ir.Block) or owner.operation.block != block or owner.operation in moved


def fuse(block: ir.Block, memory: Memory) -> None:
    """Join neighbouring parallel loops of a block whose iterations only depend on each other one to one."""
    hoist_views(block)
    previous = None
    for op in list(block.operations):
        op = op.operation
        if op.name != "scf.parallel":
            previous = None
            continue
        if previous is not None and _fusible(previous, op, memory):
            for old, new in zip(_body(op).arguments, _body(previous).arguments, strict=True):
                old.replace_all_uses_with(new)
            end = list(_body(previous).operations)[-1]
            for inner in list(_body(op).operations)[:-1]:
                inner.operation.move_before(end)
            op.erase()
        else:
            previous = op


# --- sequential loops whose iterations are independent


def parallelize(block: ir.Block, memory: Memory) -> None:
    """Turn nests of `scf.for` in a block into parallel loops where iterations cannot meet.

    A loop variable is independent if any two accesses that conflict have it, itself, at the same place of their indices (a
    batched sort), or if all that is written is written by atomics (a scatter-add).
    """
    for op in list(block.operations):
        op = op.operation
        if op.name == "scf.for" and not op.results:
            _parallelize_nest(op, memory)


def _parallelize_nest(outer: ir.Operation, memory: Memory) -> None:
    nest = [outer]
    while (inner := _only_loop(nest[-1], memory)) is not None:
        nest.append(inner)
    found = accesses(outer)
    if any(access.kind == "unknown" for access in found):
        return
    conflicts = [(a, b) for n, a in enumerate(found) for b in found[n:] if memory.conflict(a, b)]
    free = [loop for loop in nest if all(_separated(_body(loop).arguments[0], a, b) for a, b in conflicts)]
    if not free or any(access.kind == "atomic" and access.op.results and _used(access.op) for access in found):
        return
    bounds = [list(loop.operands)[:3] for loop in free]
    if any(_inside(bound, outer) for loop in nest for bound in list(loop.operands)[:3]):
        return
    with ir.InsertionPoint(outer), outer.location:
        lower, upper, step = (list(part) for part in zip(*bounds, strict=True))
        parallel = make_parallel(lower, upper, step)
        rest = [loop for loop in nest if loop not in free]
        block = _body(parallel)
        replaced = dict(zip([_body(loop).arguments[0] for loop in free], block.arguments, strict=True))
        point = ir.InsertionPoint.at_block_begin(block)
        for loop in rest:
            with point:
                copy = scf.ForOp(*list(loop.operands)[:3])
            with ir.InsertionPoint(copy.body):
                end = scf.YieldOp([])
            replaced[_body(loop).arguments[0]] = copy.induction_variable
            point = ir.InsertionPoint(end)
        last = point.ref_operation if rest else list(block.operations)[-1]
    for loop in nest:  # what stands beside the inner loop only computes and loads: it moves into the innermost body
        for inner in list(_body(loop).operations)[:-1]:
            if inner.operation not in nest:
                inner.operation.move_before(last)
    for old, new in replaced.items():
        old.replace_all_uses_with(new)
    outer.erase()


def isolate(block: ir.Block) -> None:
    """Put each sequential loop of a block that writes, and holds no parallel loop, into a parallel loop of one iteration.

    One thread runs it either way; as an iteration, its reductions can be shared by the lanes of a warp. Stores right before
    it (the sum's zero) go along.
    """
    operations = [op.operation for op in block.operations]
    for number, op in enumerate(operations):
        if op.name != "scf.for" or op.results or any(inner.name == "scf.parallel" for inner in walk(op)):
            continue
        if not any(access.writes for access in accesses(op)):
            continue
        with ir.InsertionPoint(op), op.location:
            zero, one = (arith.constant(ir.IndexType.get(), value) for value in (0, 1))
            parallel = make_parallel([zero], [one], [one])
        first = number
        while first and operations[first - 1].name == "memref.store":
            first -= 1
        for inner in operations[first : number + 1]:
            inner.move_before(list(_body(parallel).operations)[-1].operation)


def _used(op: ir.Operation) -> bool:
    return any(True for result in op.results for _ in result.uses)


def _only_loop(loop: ir.Operation, memory: Memory) -> ir.Operation | None:
    """The scf.for that is all that a loop does, beside computing and loading; else None."""
    inner = [op.operation for op in _body(loop).operations][:-1]
    loops = [op for op in inner if op.name == "scf.for"]
    if len(loops) != 1 or loops[0].results or inner[-1] != loops[0]:
        return None
    for op in inner[:-1]:
        # These are run again in every inner iteration: harmless unless the inner loop changes what a load reads.
        if op.name == "memref.load" and not any(memory.conflict(a, b) for a in accesses(op) for b in accesses(loops[0])):
            continue
        if not is_pure(op):
            return None
    return loops[0]


def _separated(iv: ir.Value, a: Access, b: Access) -> bool:
    """Whether `a` and `b` touch different elements in iterations with different `iv`."""
    if a.memref != b.memref:
        return False
    return any(iv == i == j for i, j in zip(a.indices, b.indices, strict=True))


def make_parallel(lower: Sequence[ir.Value], upper: Sequence[ir.Value], step: Sequence[ir.Value]) -> ir.Operation:
    """An scf.parallel without results and with an empty body, at the current insertion point."""
    count = len(lower)
    op = ir.Operation.create(
        "scf.parallel",
        operands=[*lower, *upper, *step],
        attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([count, count, count, 0])},
        regions=1,
    )
    block = op.regions[0].blocks.append(*[ir.IndexType.get()] * count, arg_locs=[ir.Location.current] * count)
    with ir.InsertionPoint(block):
        ir.Operation.create("scf.reduce", regions=0)
    return op


# --- accumulators


def promote(function: ir.Operation, memory: Memory) -> None:
    """Keep in a register what an `scf.for` loads and stores at one fixed place in every iteration (the sum of a product)."""
    for loop in reversed([op for op in walk(function) if op.name == "scf.for"]):
        while (found := _accumulator(loop, memory)) is not None:
            loop = _promote(loop, *found)


def _accumulator(loop: ir.Operation, memory: Memory) -> tuple[Access, Access] | None:
    """A load and a later store of the loop's own block at one place, fixed over the loop, that nothing else meets."""
    inside = accesses(loop)
    block = _body(loop)
    for store in inside:
        if store.kind != "write" or store.op.block != block or any(_inside(i, loop) for i in (store.memref, *store.indices)):
            continue
        meeting = [a for a in inside if a is not store and memory.conflict(a, store)]
        if len(meeting) != 1 or meeting[0].kind != "read" or meeting[0].op.block != block:
            continue
        load = meeting[0]
        if load.memref == store.memref and load.indices == store.indices and load.op.is_before_in_block(store.op):
            return load, store
    return None


def _promote(loop: ir.Operation, load: Access, store: Access) -> ir.Operation:
    with ir.InsertionPoint(loop), loop.location:
        start = memref.load(load.memref, list(load.indices))
        lower, upper, step, *carried = loop.operands
        new = scf.ForOp(lower, upper, step, [*carried, start])
        block, old_block = new.body, _body(loop)
        for old, argument in zip(old_block.arguments, block.arguments, strict=False):
            old.replace_all_uses_with(argument)
        load.op.results[0].replace_all_uses_with(block.arguments[len(block.arguments) - 1])
        value = store.op.operands[0]
        end = list(old_block.operations)[-1]
        with ir.InsertionPoint(block):
            finish = scf.YieldOp([*end.operands, value])
        for op in list(old_block.operations)[:-1]:
            if op.operation in (load.op, store.op):
                op.operation.erase()
            else:
                op.operation.move_before(finish.operation)
        for old, result in zip(loop.results, new.results_, strict=False):
            old.replace_all_uses_with(result)
        memref.store(new.results_[len(new.results_) - 1], load.memref, list(load.indices))
    loop.erase()
    return new.operation


def forward_stores(function: ir.Operation, memory: Memory) -> None:
    """Give loads the value stored before at the same place of the same block; drop stores that are stored over."""
    blocks = [b for op in (function, *walk(function)) for region in op.regions for b in region.blocks]
    for block in blocks:
        known: list[tuple[Access, bool]] = []  # stores whose value is known, and whether somebody read memory since
        for op in [op.operation for op in block.operations]:
            found = accesses(op)
            if op.name == "memref.load":
                load = found[0]
                match = next((s for s, _ in known if s.memref == load.memref and s.indices == load.indices), None)
                if match is not None:
                    op.results[0].replace_all_uses_with(match.op.operands[0])
                    op.erase()
                    continue
            if op.name == "memref.store":
                new = found[0]
                for store, read in known:
                    if not read and store.memref == new.memref and store.indices == new.indices:
                        store.op.erase()
                known = [(s, r) for s, r in known if not memory.conflict(s, new)] + [(new, False)]
                continue
            for access in found:
                if access.writes:
                    known = [(s, r) for s, r in known if not memory.conflict(s, access)]
                if access.reads:
                    known = [(s, r or memory.meet(s.memref, access.memref)) for s, r in known]
    _drop_unread(function)


def _drop_unread(function: ir.Operation) -> None:
    """Remove allocations that are only written."""
    for alloc in [op for op in walk(function) if op.name == "memref.alloc"]:
        users = [use.owner.operation for use in alloc.results[0].uses]
        if all(u.name == "memref.store" and u.operands[1] == alloc.results[0] for u in users):
            for user in users:
                user.erase()
            alloc.erase()
