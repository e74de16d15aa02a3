"""From tensors to memrefs: what a task body reads and writes becomes loads, stores and temporaries in a scratch area.

Every element of a task's results is written once, with its final value. Ragged tiles overlap (docs/tile-program.md): another
task may already be reading the rows that this one computes again, so no sum may be built up in place in a result.
"""

from __future__ import annotations

from torch_mlir import ir, passmanager
from torch_mlir.dialects import arith, bufferization, linalg, memref

from kitsune_mlir.codegen.host.sorting import merge_sorts
from kitsune_mlir.dialects.deep import Steps, evaluate
from kitsune_mlir.dialects.sizes import tensor_bytes
from kitsune_mlir.dialects.verify import operations_named

__all__ = ["assign_scratch", "bufferize", "free_temporaries", "prepare_stores", "run_passes"]

PREPARE = (
    "func.func(tm-tensor-bufferize)",
    "func.func(linalg-generalize-named-ops)",
    "canonicalize",
    "cse",
)
BUFFERIZE = (
    "eliminate-empty-tensors",
    "empty-tensor-to-alloc-tensor",
    # Tensors made in a loop and yielded by it are kept alive by the deallocation pipeline, see `assign_scratch`.
    "one-shot-bufferize{allow-return-allocs-from-loops=true}",
    "canonicalize",
    "cse",
    "func.func(buffer-hoisting,buffer-loop-hoisting)",
    "func.func(refback-munge-memref-copy)",  # memref.copy would call a function that does not exist
    "func.func(linalg-generalize-named-ops)",
    "func.func(tm-tensor-to-loops)",
    # Arithmetic on 16-bit floats is done in f32, whatever the processor has: the same everywhere, and no calls to a run-time
    # library that is not there.
    "math-extend-to-supported-types{target-type=f32}",
    "arith-emulate-unsupported-floats{source-types=bf16,f16 target-type=f32}",
    "canonicalize",
    "cse",
)
ALIGNMENT = 64  # bytes: a cache line, and the widest vector


def run_passes(root: ir.Operation, passes: tuple[str, ...]) -> None:
    """Run upstream passes on a `builtin.module` operation."""
    passmanager.PassManager.parse(f"builtin.module({','.join(passes)})").run(root)


def bufferize(module: ir.Operation) -> None:
    """Turn the bodies of a module (tensors between memref arguments) into code on memrefs only.

    Raises:
        ir.MLIRError: an operation has no bufferization.
    """
    run_passes(module, PREPARE)
    for op in operations_named(module, "tensor.concat"):
        _drop_empty_parts(op)
    for op in operations_named(module, "bufferization.to_buffer"):
        _read_at_use(op)
    for op in operations_named(module, "bufferization.materialize_in_destination", "bufferization.to_tensor"):
        if op.name == "bufferization.materialize_in_destination":
            prepare_stores(op)
        else:
            _restrict(op)
    merge_sorts(module)
    run_passes(module, BUFFERIZE)


def _drop_empty_parts(concat: ir.Operation) -> None:
    """Leave parts without elements out of a concatenation: upstream would make a slice that begins after the end.

    Parts that only a `tensor.cast` makes dynamic are used as they were before it.
    """
    parts = []
    for part in concat.operands:
        while not isinstance(part.owner, ir.Block) and part.owner.operation.name == "tensor.cast":
            part = part.owner.operation.operands[0]
        if 0 not in part.type.shape:
            parts.append(part)
    if not parts or list(parts) == list(concat.operands):
        return
    if len(parts) == 1 and parts[0].type == concat.results[0].type:
        whole = parts[0]
    else:
        with ir.InsertionPoint(concat), concat.location:
            attributes = {"dim": concat.attributes["dim"]}
            whole = ir.Operation.create("tensor.concat", [concat.results[0].type], parts, attributes).results[0]
    concat.results[0].replace_all_uses_with(whole)
    concat.erase()


def _read_at_use(op: ir.Operation) -> None:
    """Put a `to_buffer` that `tm-tensor-bufferize` made right before each op that uses the memref.

    One-shot bufferization keeps a tensor's contents as far as the `to_buffer` only; a write in place after it would change what
    the later op reads.
    """
    for use in list(op.results[0].uses):
        user = use.owner.operation
        with ir.InsertionPoint(user):
            user.operands[use.operand_number] = op.clone().operation.results[0]
    op.erase()


def _restrict(op: ir.Operation) -> None:
    """Promise that a tensor made by `tm-tensor-bufferize` is the only one of its memref, as one-shot bufferization demands.

    It is: that pass makes a buffer of its own for each result.
    """
    owner = op.operands[0].owner
    if "restrict" not in op.attributes and not isinstance(owner, ir.Block) and owner.operation.name == "memref.alloc":
        op.attributes["restrict"] = ir.UnitAttr.get()
        op.attributes["writable"] = ir.UnitAttr.get()


def prepare_stores(store: ir.Operation) -> None:
    """Make the op that yields the final values of a stored tile write into the destination, where that is safe.

    An all-parallel `linalg.generic` that reads none of its initial values writes each element once: its `outs` becomes the
    destination. Anything else is followed by a copy.
    """
    source, destination = store.operands
    if not isinstance(source.type, ir.RankedTensorType) or not isinstance(destination.type, ir.MemRefType):
        return
    with store.location:
        producer = source.owner
        if _writes_once(source, producer) and _move_before(destination, producer.operation):
            with ir.InsertionPoint(producer.operation):
                target = bufferization.to_tensor(source.type, destination, restrict=True, writable=True)
            op = producer.operation
            op.operands[len(op.operands) - 1] = target
            return
        with ir.InsertionPoint(store):
            target = bufferization.to_tensor(source.type, destination, restrict=True, writable=True)
            store.operands[0] = _copy(source, target)


def _writes_once(value: ir.Value, producer) -> bool:
    if isinstance(producer, ir.Block) or producer.operation.name != "linalg.generic" or len(producer.operation.results) != 1:
        return False
    op = producer.operation
    if sum(1 for _ in value.uses) != 1 or any("parallel" not in str(kind) for kind in op.attributes["iterator_types"]):
        return False
    if not list(op.attributes["indexing_maps"])[-1].value.is_permutation:
        return False
    initial = op.regions[0].blocks[0].arguments[len(op.operands) - 1]
    owner = op.operands[len(op.operands) - 1].owner
    return not any(True for _ in initial.uses) and not isinstance(owner, ir.Block) and owner.operation.name == "tensor.empty"


def _move_before(value: ir.Value, op: ir.Operation) -> bool:
    """Move the definition of `value` (and what it needs) before `op` if that is pure index arithmetic in the same block."""
    return evaluate(_moving_before(value, op))


def _moving_before(value: ir.Value, op: ir.Operation) -> Steps[bool]:
    owner = value.owner
    if isinstance(owner, ir.Block):
        return True
    owner = owner.operation
    if owner.parent != op.parent:
        return False
    if owner.is_before_in_block(op):
        return True
    if owner.name != "memref.subview" and not owner.name.startswith("arith."):
        return False
    for operand in owner.operands:
        if not (yield _moving_before(operand, op)):
            return False
    owner.move_before(op)
    return True


def _copy(source: ir.Value, target: ir.Value) -> ir.Value:
    rank = source.type.rank
    identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(rank))
    kinds = ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank)
    op = linalg.GenericOp([source.type], [source], [target], ir.ArrayAttr.get([identity, identity]), kinds)
    element = source.type.element_type
    block = ir.Block.create_at_start(op.operation.regions[0], [element, element])
    with ir.InsertionPoint(block):
        linalg.YieldOp([block.arguments[0]])
    return op.operation.results[0]


def free_temporaries(module: ir.Operation) -> None:
    """Insert deallocations of the temporaries that `assign_scratch` left (those made inside loops)."""
    if operations_named(module, "memref.alloc"):
        run_passes(module, ("buffer-deallocation-pipeline", "convert-bufferization-to-memref", "canonicalize", "cse"))


def assign_scratch(operation: ir.Operation) -> int:
    """Give the temporaries of a body fixed places in a scratch area; returns its size in bytes.

    Temporaries at the top of the body share memory when their lives do not overlap. If there are any, the function gets one
    more argument, `memref<SIZE x i8>`. Temporaries made inside loops stay `memref.alloc` (their lives may cross iterations)
    and are freed by upstream's deallocation pass.
    """
    entry = operation.regions[0].blocks[0]
    order = {op.operation: i for i, op in enumerate(entry.operations)}
    lives = []
    for op in entry.operations:
        op = op.operation
        if op.name == "memref.alloc" and op.results[0].type.has_static_shape:
            lives.append((*_life(op.results[0], operation, order), op))
    if not lives:
        return 0
    places, size = _pack([(first, last, _bytes(op)) for first, last, op in lives])
    with operation.location:
        argument = entry.add_argument(ir.MemRefType.get([size], ir.IntegerType.get_signless(8)), operation.location)
        types = [a.type for a in entry.arguments]
        operation.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, []))
        if "arg_attrs" in operation.attributes:
            attrs = [*operation.attributes["arg_attrs"], ir.DictAttr.get({"llvm.noalias": ir.UnitAttr.get()})]
            operation.attributes["arg_attrs"] = ir.ArrayAttr.get(attrs)
        for (_, _, op), place in zip(lives, places, strict=True):
            with ir.InsertionPoint(op):
                offset = arith.constant(ir.IndexType.get(), place)
                view = memref.view(op.results[0].type, argument, offset, [])
                op.results[0].replace_all_uses_with(view)
            for use in [u.owner for u in view.uses if u.owner.operation.name == "memref.dealloc"]:
                use.operation.erase()
            op.erase()
    return size


def _bytes(op: ir.Operation) -> int:
    return -(-tensor_bytes(op.results[0].type) // ALIGNMENT) * ALIGNMENT or ALIGNMENT


def _life(value: ir.Value, function: ir.Operation, order: dict[ir.Operation, int]) -> tuple[int, int]:
    """Positions in the entry block of the first and the last op that uses `value` or an alias of it."""
    first, last = len(order), 0
    work, seen = [value], set()
    while work:
        current = work.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in current.uses:
            user = use.owner.operation
            # Any op that yields memrefs may hand the buffer on: a loop that carries it, a select of two buffers.
            work.extend(r for r in user.results if isinstance(r.type, ir.MemRefType))
            for region in user.regions:
                for block in region.blocks:
                    work.extend(a for a in block.arguments if isinstance(a.type, ir.MemRefType))
            if user.name in ("scf.yield", "scf.condition"):
                work.extend(r for r in user.parent.results if isinstance(r.type, ir.MemRefType))
            top = user
            while top.parent != function:
                top = top.parent.operation
            first, last = min(first, order[top]), max(last, order[top])
    return first, last


def _pack(lives: list[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Places for (first, last, bytes) intervals, large ones first, each at the lowest offset that is free all its life."""
    places = [0] * len(lives)
    placed: list[int] = []
    size = 0
    for i in sorted(range(len(lives)), key=lambda i: -lives[i][2]):
        first, last, need = lives[i]
        offset = 0
        for j in sorted(placed, key=lambda j: places[j]):
            if lives[j][1] < first or lives[j][0] > last:
                continue
            if places[j] - offset >= need:
                break
            offset = max(offset, places[j] + lives[j][2])
        places[i] = offset
        placed.append(i)
        size = max(size, offset + need)
    return places, size
