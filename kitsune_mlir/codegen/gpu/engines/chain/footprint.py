"""What a chain will take of a block, known before there is a task: registers of computed factors, and shared memory.

The plan (`resident.plan`) divides shared memory to the byte; here is the least that it needs, from the shapes alone.
"""

from collections.abc import Container, Iterator, Mapping

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.engines.chain.core.comparisons import comparisons_of, same_comparison, spreads, words_of
from kitsune_mlir.codegen.gpu.engines.chain.core.limits import LEAST_STAGES, REGISTERS, STAGE_BYTES
from kitsune_mlir.codegen.gpu.engines.chain.core.panels import align
from kitsune_mlir.codegen.gpu.engines.chain.core.records import GROUP_ROWS
from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.dialects.access import is_tensor, iterator_kinds, shape_of, static_ints
from kitsune_mlir.dialects.contraction import matrix_extents
from kitsune_mlir.dialects.iteration import Space, is_free, root_of
from kitsune_mlir.dialects.products import body_of, defining_op, is_contraction, is_generic
from kitsune_mlir.dialects.sizes import HALF_TYPES

__all__ = ["is_load", "kept_reason", "registers_reason", "rows_reason", "shared_reason"]

GENERIC = "linalg.generic"
GROUP_THREADS = 128
STAGING_BYTES = 8192
"""Of a warpgroup, for results that TMA stores: 64 rows of 64 columns."""


def registers_reason(space: Space) -> str | None:
    """Why a layer and the factor that is computed for it do not fit the registers; None if they do."""
    made = {value for value in _inside(space) if not is_free(value.owner)}
    for op in _layers(space):
        if not any(value in made for value in list(op.operands)[:2]):
            continue
        _, columns, depth = matrix_extents(op)
        needed = (2 * align(depth, 8) + 4 * align(columns, 8)) // 8  # of 16 and 32 bits, two rows a thread
        if needed > REGISTERS:
            return f"a layer of {columns} columns and its factor of {depth} take {needed} registers; there are {REGISTERS}"
    return None


def kept_reason(space: Space) -> str | None:
    """Why what waits in registers from one layer to a later one does not fit beside what the layers between need; None if it
    does. The plan counts the same of a task (`core.liveness`)."""
    times, last, _ = _times(space)
    layers, most = _layers(space), 0
    for number, op in enumerate(layers):
        live = {value for value, time in times.items() if 0 <= time < number <= last.get(value, -1)}
        live |= {part for value in list(op.operands)[:2] for part in _parts(value, times) if times.get(part, -1) >= 0}
        columns = matrix_extents(op)[1]
        most = max(most, sum(map(_registers, live)) + align(columns, 8) // 2)
    return None if most <= REGISTERS else f"what is used after later layers takes {most} registers; there are {REGISTERS}"


def _times(space: Space) -> tuple[dict[ir.Value, int], dict[ir.Value, int], list[ir.Value]]:
    """For each tensor that a candidate makes the number of the product after which it can be computed, -1 for none, and that
    of the last product before which, or after which, it is used; and the tensors that are kept as bits after that."""
    layers = {op.results[0]: number for number, op in enumerate(_layers(space))}
    times: dict[ir.Value, int] = {}
    for op in space.ops:
        known = max((times.get(value, -1) for value in op.operands), default=-1)
        times.update((result, layers.get(result, known)) for result in op.results)
    last: dict[ir.Value, int] = {}
    late: dict[ir.Value, tuple[int, list[ir.Operation]]] = {}
    for op in space.ops:
        at = max((times[result] for result in op.results), default=-1)
        for number, value in enumerate(op.operands if op.name != "tensor.concat" else ()):
            tests = (
                comparisons_of(op, number) if is_tensor(value) and times.get(value, -1) >= 0 and op.name == GENERIC else None
            )
            if tests is not None and not is_contraction(op) and _parts(value, times) == [value]:
                before, others = late.get(value, (-1, []))
                late[value] = max(before, at), [*others, *tests]
                continue
            for part in _parts(value, times):
                last[part] = max(last.get(part, -1), at)
    bits = []
    for value, (at, tests) in late.items():
        if at <= max(last.get(value, -1), times[value]):
            continue
        if all(same_comparison(test, tests[0]) for test in tests):
            bits.append(value)
        else:
            last[value] = at
    return times, last, bits


def _parts(value: ir.Value, times: Mapping[ir.Value, int]) -> list[ir.Value]:
    """What a tensor is joined of, or made of where it is used, down to what is no such tensor of the candidate's."""
    maker = defining_op(value)
    if maker is None or value not in times:
        return [value]
    made = [operand for operand in maker.operands if times.get(operand, -1) >= 0]
    if maker.name == "tensor.concat":
        made = list(maker.operands)
    elif maker.name != GENERIC or "reduction" in iterator_kinds(maker) or not spreads(maker, made):
        return [value]
    return [part for operand in made for part in _parts(operand, times)]


def _registers(value: ir.Value) -> int:
    """Registers of a thread that a tensor of a warpgroup's rows takes."""
    type_ = ir.RankedTensorType(value.type)
    if type_.rank != 2:
        return 2
    return align(type_.shape[1], 8) // 8 * (2 if str(type_.element_type) in HALF_TYPES else 4)


def rows_reason(space: Space) -> str | None:
    """Why nobody can wait for other stages: who brings rows from memory does, and no product reads any. None if one does,
    or if factors are made of what is there from the beginning."""
    if next(_sources(space), None) is not None:
        return None
    inside = _inside(space)
    pending, seen = [value for op in _layers(space) for value in list(op.operands)[:2]], set()
    while pending:
        value = pending.pop()
        if value not in inside:
            maker = defining_op(root_of(value))
            if maker is not None and not is_free(maker):
                return "factors of its products are made of what other stages make, and none is read from memory as it is"
        elif value not in seen:
            seen.add(value)
            pending += value.owner.operands
    return None


def shared_reason(space: Space, rows: int) -> str | None:
    """Why tiles of so many rows do not fit shared memory; None if they do."""
    groups = -(-rows // GROUP_ROWS)
    read = sum(2 * GROUP_ROWS * align(shape_of(value)[-1], 16) for value in set(_sources(space))) * groups
    inside = _inside(space)
    outside = {value for op in space.ops for value in op.operands if is_tensor(value) and value not in inside}
    vectors = sum(4 * align(shape_of(value)[0], 8) for value in outside if _is_column_vector(value, space.dims[0].size))
    weights, kept = 0, 0
    for op in _layers(space):
        _, columns, depth = matrix_extents(op)
        size = 2 * align(columns, 8) * align(depth, 16)
        weights += size
        kept += size if 2 * _pitch(op, inside) % 16 else 0  # TMA has no such rows
    least = min(weights, kept + LEAST_STAGES * STAGE_BYTES)
    bits = sum(4 * words_of(value) for value in _times(space)[2]) * GROUP_THREADS * groups
    needed, limit = read + vectors + least + bits + STAGING_BYTES * groups, KernelOptions().shared_bytes
    return None if needed <= limit else f"rows of {read} bytes and {least} bytes of weights do not fit a block's {limit}"


def _pitch(op: ir.Operation, inside: Container[ir.Value]) -> int:
    """Elements from one row of a product's weight to the next, in memory."""
    weight = op.operands[1]
    return shape_of(weight.owner.operands[0] if is_load(weight, inside) else weight)[-1]


def _layers(space: Space) -> list[ir.Operation]:
    return [op for op in space.ops if is_contraction(op)]


def _inside(space: Space) -> set[ir.Value]:
    return {result for op in space.ops for result in op.results}


def _sources(space: Space) -> Iterator[ir.Value]:
    """Tensors in memory whose rows products read, alone or joined with others."""
    inside = _inside(space)
    for op in _layers(space):
        number = space.ops.index(op)
        access = space.accesses[number]
        for operand, value in enumerate(list(op.operands)[:2]):
            if access is None or all(dim != 0 for dim, *_ in space.along(number, access.operands[operand])):
                continue
            maker = defining_op(value)
            joined = maker is not None and value in inside and maker.name == "tensor.concat"
            parts = list(maker.operands) if joined and maker else [value]
            yield from (part for part in parts if part not in inside or is_load(part, inside) or _is_gathered(part))


def is_load(value: ir.Value, inside: Container[ir.Value]) -> bool:
    """Whether a value of a candidate is a box of a tensor in memory, which a task loads by itself.

    Args:
        inside: all values that the candidate makes.
    """
    op = defining_op(value)
    if op is None or op.name != "tensor.extract_slice" or any(stride != 1 for stride in static_ints(op, "static_strides")):
        return False
    return len(op.operands) == 1 and op.operands[0] not in inside


def _is_gathered(value: ir.Value) -> bool:
    maker = defining_op(value)
    return maker is not None and is_generic(maker) and any(op.name == "tensor.extract" for op in body_of(maker))


def _is_column_vector(value: ir.Value, rows: int) -> bool:
    type_ = ir.RankedTensorType(value.type)
    return type_.rank == 1 and type_.shape[0] != rows and isinstance(type_.element_type, ir.FloatType)
