"""Structured control flow, special registers, shuffles and barriers of a block, as functions on `Value`.

Bodies are Python callables: they run once, at compile time, with the insertion point inside the loop or branch.
Values carried through a loop come in as arguments and go out as the returned sequence. Python's own loops unroll.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import llvm, math, nvvm, scf

from kitsune_mlir.codegen.gpu.emit.value import (
    TypeLike,
    Value,
    as_type,
    as_value,
    bitcast,
    cast,
    constant,
    element_bits,
    i32,
    is_float,
    wrap,
)

__all__ = [
    "ballot",
    "block_id",
    "cluster_rank",
    "count_bits",
    "for_",
    "global_timer",
    "grid_size",
    "if_",
    "if_all",
    "lane_id",
    "same_lanes",
    "set_max_registers",
    "shuffle",
    "shuffle_xor",
    "sm_count",
    "sm_id",
    "sync_block",
    "sync_warp",
    "thread_id",
    "uniform",
    "warp_id",
    "while_",
]

Yielded = Sequence[Value] | Value | None


def _sequence(values: Yielded) -> list[Value]:
    if values is None:
        return []
    return [values] if isinstance(values, Value) else list(values)


def if_(
    condition: Value,
    then: Callable[[], Any],
    otherwise: Callable[[], Any] | None = None,
    types: Sequence[TypeLike] = (),
) -> list[Value]:
    """Branch on an i1. With `types`, both sides return values of these types, and the chosen ones are the result.

    Without `types` what the sides return is ignored.

    Raises:
        ValueError: `types` without a second side.
    """
    if types and otherwise is None:
        raise ValueError("an if_ with results needs both sides")
    operation = scf.IfOp(condition.ir, [as_type(type) for type in types], has_else=otherwise is not None)

    def side(block: ir.Block, emit: Callable[[], Any]) -> None:
        with ir.InsertionPoint(block):
            values = emit()
            scf.YieldOp([value.ir for value in _sequence(values)] if types else [])

    side(operation.then_block, then)
    if otherwise is not None:
        side(operation.else_block, otherwise)
    return [wrap(result) for result in operation.results]


def if_all(conditions: Sequence[Value | None], then: Callable[[], Any]) -> None:
    """Emit `then` under all conditions that there are; without any, as it is."""
    wanted = [condition for condition in conditions if condition is not None]
    if wanted:
        if_(functools.reduce(operator.and_, wanted), then)
    else:
        then()


def for_(
    start: Value | int,
    stop: Value | int,
    step: Value | int,
    body: Callable[..., Yielded],
    carried: Sequence[Value] = (),
) -> list[Value]:
    """Loop `for i in range(start, stop, step)` with signed comparison; `body(i, *carried)` returns the next carried
    values.

    The index has the type of the first bound that is a `Value`, else i32. Returns the carried values after the loop.
    """
    typed = [bound.type for bound in (start, stop, step) if isinstance(bound, Value)]
    type = typed[0] if typed else as_type("i32")
    first, last, stride = (as_value(bound, type).ir for bound in (start, stop, step))
    operation = scf.ForOp(first, last, stride, [value.ir for value in carried])
    with ir.InsertionPoint(operation.body):
        index = wrap(operation.induction_variable)
        next_values = _sequence(body(index, *[wrap(value) for value in operation.inner_iter_args]))
        scf.YieldOp([value.ir for value in next_values])
    return [wrap(result) for result in operation.results_]


def while_(initial: Sequence[Value], condition: Callable[..., Value], body: Callable[..., Yielded]) -> list[Value]:
    """Loop `while condition(*carried): carried = body(*carried)`; returns the carried values for which it stopped."""
    types = [value.type for value in initial]
    operation = scf.WhileOp(types, [value.ir for value in initial])
    locations = [ir.Location.current] * len(types)
    before = operation.regions[0].blocks.append(*types, arg_locs=locations)
    after = operation.regions[1].blocks.append(*types, arg_locs=locations)
    with ir.InsertionPoint(before):
        arguments = [wrap(argument) for argument in before.arguments]
        scf.ConditionOp(condition(*arguments).ir, [argument.ir for argument in arguments])
    with ir.InsertionPoint(after):
        scf.YieldOp([value.ir for value in _sequence(body(*[wrap(argument) for argument in after.arguments]))])
    return [wrap(result) for result in operation.results]


# --- where a thread is
# ---------------------------------------------------------------------------------------------------


def _register(name: str) -> Value:
    return wrap(getattr(nvvm, f"read_ptx_sreg_{name}")(results=[as_type("i32")]))


def thread_id() -> Value:
    """Index of the thread in its block, i32; blocks are one-dimensional."""
    return _register("tid_x")


def block_id() -> Value:
    """Index of the block in the grid, i32."""
    return _register("ctaid_x")


def grid_size() -> Value:
    """Number of blocks of the grid, i32."""
    return _register("nctaid_x")


def cluster_rank() -> Value:
    """Index of the block in its cluster, i32."""
    return _register("cluster_ctarank")


def sm_id() -> Value:
    """Number of the multiprocessor that runs the block, i32."""
    return _register("smid")


def sm_count() -> Value:
    """One more than the largest number that `sm_id` can give, i32."""
    return _register("nsmid")


def lane_id(thread: Value | None = None) -> Value:
    """Index of the thread in its warp (0 to 31), i32."""
    return (thread_id() if thread is None else thread) & 31


def warp_id(thread: Value, warps_per_group: int = 1) -> Value:
    """Index of the thread's warp, or of its group of `warps_per_group` warps (4: its warpgroup), uniform over the warp."""
    return uniform(thread // (32 * warps_per_group))


def uniform(value: Value) -> Value:
    """`value` of lane 0. The compiler then knows that a branch on it does not diverge.

    Setmaxnreg and wgmma want that.
    """
    return shuffle(value, 0)


def global_timer() -> Value:
    """Nanoseconds of the device's clock, i64."""
    return wrap(nvvm.read_ptx_sreg_globaltimer(results=[as_type("i64")]))


# --- lanes of a warp
# -----------------------------------------------------------------------------------------------------


def _shuffle(value: Value, lane: Value | int, kind: str) -> Value:
    type = value.type
    bits = element_bits(type) * (type.shape[0] if isinstance(type, ir.VectorType) else 1)
    if bits == 64:
        halves = bitcast(value, "vector<2xi32>")
        parts = [wrap(llvm.extractelement(halves.ir, constant(index, "i32").ir)) for index in range(2)]
        joined = wrap(llvm.mlir_undef(as_type("vector<2xi32>")))
        for index, part in enumerate(parts):
            moved = _shuffle(part, lane, kind)
            joined = wrap(llvm.insertelement(joined.ir, moved.ir, constant(index, "i32").ir))
        return bitcast(joined, type)
    if bits < 32:
        bits_type = f"i{bits}"
        narrow = value if not is_float(type) else bitcast(value, bits_type)
        return bitcast(cast(_shuffle(cast(narrow, "i32", signed=False), lane, kind), bits_type), type)
    if bits > 32:
        raise TypeError(f"cannot shuffle {type}: 64 bits at most")
    word = value if str(type) in ("i32", "f32") else bitcast(value, "i32")
    mask, clamp = constant(-1, "i32"), constant(31, "i32")
    attribute = ir.Attribute.parse(f"#nvvm<shfl_kind {kind}>")
    moved = nvvm.shfl_sync(mask.ir, word.ir, i32(lane).ir, clamp.ir, attribute, results=[word.type])
    return bitcast(wrap(moved), type)


def shuffle(value: Value, lane: Value | int) -> Value:
    """`value` (up to 64 bits) of lane `lane`; all 32 lanes take part."""
    return _shuffle(value, lane, "idx")


def shuffle_xor(value: Value, mask: int) -> Value:
    """`value` (up to 64 bits) of the lane whose index differs in the bits of `mask`; all 32 lanes take part."""
    return _shuffle(value, mask, "bfly")


def ballot(condition: Value) -> Value:
    """i32 whose bit n is the condition of lane n; all 32 lanes take part."""
    kind = ir.Attribute.parse("#nvvm<vote_sync_kind ballot>")
    return wrap(nvvm.vote_sync(constant(-1, "i32").ir, condition.ir, kind, results=[as_type("i32")]))


def same_lanes(value: Value) -> Value:
    """i32 whose bit n is whether lane n has the same `value` (i32) as the calling one; all 32 lanes take part."""
    kind = ir.Attribute.parse("#nvvm<match_sync_kind any>")
    return wrap(nvvm.match_sync(constant(-1, "i32").ir, value.ir, kind, results=[as_type("i32")]))


def count_bits(value: Value) -> Value:
    """How many bits of an integer are set."""
    return wrap(math.ctpop(value.ir))


# --- the block
# -----------------------------------------------------------------------------------------------------------


def sync_block() -> None:
    """Barrier 0 over all threads of the block."""
    nvvm.barrier()


def sync_warp() -> None:
    """Reconverge a warp and order its accesses to memory."""
    nvvm.bar_warp_sync(constant(-1, "i32").ir)


def set_max_registers(count: int, grow: bool) -> None:
    """Change the register budget of each thread of the warpgroup to `count` (24 to 256, a multiple of 8).

    All four warps execute it; `grow` says whether `count` is above the budget before. The kernel needs a fixed number
    of threads.

    Raises:
        ValueError: a budget that the hardware does not have.
    """
    if not (24 <= count <= 256 and count % 8 == 0):
        raise ValueError(f"a register budget is a multiple of 8 from 24 to 256, not {count}")
    nvvm.setmaxregister(count, ir.Attribute.parse(f"#nvvm<action {'increase' if grow else 'decrease'}>"))
