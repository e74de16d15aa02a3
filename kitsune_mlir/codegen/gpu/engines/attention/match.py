"""Reading the body of a task as one tile of attention: which tensors are q, k, v and the result, and along what each lies.

Every dimension of a window belongs to a *side*: a row dimension of the tile ("row0", "row1", ... in the order of the result),
the keys ("key"), the elements of q's and k's heads ("width") or of v's and the result's ("head"), or to none ("").
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from torch_mlir import ir

from kitsune_mlir.codegen.gpu.interface.window import Window
from kitsune_mlir.dialects.access import shape_of, static_ints
from kitsune_mlir.dialects.attention import Attention, Operand, read_attention
from kitsune_mlir.dialects.factors import Factor
from kitsune_mlir.dialects.match_failure import MatchFailure
from kitsune_mlir.dialects.products import defining_op, is_contraction
from kitsune_mlir.dialects.scalar_tree import Tree, nodes_of
from kitsune_mlir.dialects.softmax_tree import Dropout
from kitsune_mlir.dialects.tile_records import Load, Offset, Store, TaskView

__all__ = ["Masked", "Part", "Pattern", "load_for", "masks_of", "match", "record_window", "window_of"]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A stretch of keys with their values.

    Attributes:
        key, value: where they are.
        size: number of keys.
    """

    key: Window
    value: Window
    size: int

    @property
    def constant(self) -> bool:
        """Whether keys and values are inputs of the program."""
        return self.key.constant and self.value.constant


@dataclasses.dataclass(frozen=True, eq=False)
class Masked:
    """A tensor that masks or biases scores; `sides` of its wide dimensions in order."""

    window: Window
    sides: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Pattern:
    """A tile that was understood.

    Attributes:
        attention: what is computed.
        rows: extents of the tile's row dimensions ("row0", ...), outermost first.
        query, result: where they are.
        parts: the keys and values, in order.
        sides: the side of each factor.
        loads: windows of what the steps' trees read, by the tensor and where its dimensions lie.
        logarithm: where the logarithm of each row's sum of exponentials goes, if it is a result.
    """

    attention: Attention
    rows: tuple[int, ...]
    query: Window
    result: Window
    parts: tuple[Part, ...]
    sides: dict[Factor, str]
    loads: dict[tuple, Masked]
    logarithm: Window | None = None

    @property
    def row_count(self) -> int:
        """Rows of the tile."""
        return math.prod(self.rows)

    @property
    def keys(self) -> int:
        """Keys of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def width(self) -> int:
        """Elements of a head of q and k."""
        return self.attention.width[0].size

    @property
    def head(self) -> int:
        """Elements of a head of v and the result."""
        return self.attention.head[0].size


def match(task: TaskView) -> Pattern:
    """Read a task.

    Raises:
        MatchFailure: its body is none, or holds more than that.
    """
    products = [op for op in task.work() if is_contraction(op)]
    if len(products) != 2:
        raise MatchFailure(f"{len(products)} products; attention has two")
    attention = read_attention(products[1])
    stores = {store.tensor: store for store in task.stores}
    logarithm = next((operand for operand in attention.logarithms if operand.value in stores), None)
    known = [attention.result.value, *([] if logarithm is None else [logarithm.value])]
    if len(task.stores) != len(known) or set(stores) != set(known):
        raise MatchFailure("the task stores something else than the attention's results")
    for name, factors in (("keys", attention.column), ("width", attention.width), ("head", attention.head)):
        if len(factors) != 1:
            raise MatchFailure(f"{len(factors)} dimensions of the {name}; one is done")
    sides: dict[Factor, str] = {attention.column[0]: "key", attention.width[0]: "width", attention.head[0]: "head"}
    for number, factor in enumerate(attention.outer):
        sides[factor] = f"row{number}"
    for operand in (*attention.keys, *attention.values):
        for factor in (factor for dim in operand.dims for factor in dim):
            if factor in attention.outer:
                raise MatchFailure("a tile has rows of several heads or batches")
            sides.setdefault(factor, "key")  # a part of a concatenation has a dimension of its own
    parts = []
    if len(attention.keys) != len(attention.values):
        raise MatchFailure("keys and values are concatenated differently")
    for key, value in zip(attention.keys, attention.values, strict=True):
        sizes = {_extent(operand, sides, "key") for operand in (key, value)}
        if len(sizes) != 1:
            raise MatchFailure("keys and values are concatenated differently")
        parts.append(Part(window_of(task, key, sides), window_of(task, value, sides), sizes.pop()))
    loads = masks_of(task, [step.tree for step in attention.steps], attention.dropout, sides)
    # How many keys there are is asked before the tile's waits, after which only there is what an earlier stage makes.
    steps = [
        step.as_mask if any(not loads[node].window.constant for node, _ in step.loads) else step for step in attention.steps
    ]
    attention = dataclasses.replace(attention, steps=tuple(steps))
    return Pattern(
        attention,
        tuple(factor.size for factor in attention.outer),
        window_of(task, attention.query, sides),
        record_window(stores[attention.result.value], attention.result, sides),
        tuple(parts),
        sides,
        loads,
        None if logarithm is None else record_window(stores[logarithm.value], logarithm, sides),
    )


def masks_of(task: TaskView, trees: Sequence[Tree], dropout: Dropout | None, sides: dict[Factor, str]) -> dict[tuple, Masked]:
    """Windows of what trees of masks, and of dropout, read, by the tensor and where its dimensions lie."""
    loads = {}
    every = [*trees, *([] if dropout is None else [dropout.tree])]
    for node in (node for tree in every for node in nodes_of(tree) if node[0] == "load"):
        mine = tuple(sides[factor] for dim in node[2] for factor in dim)
        if any(len(dim) > 1 for dim in node[2]) or any(side in ("width", "head") for side in mine):
            raise MatchFailure("a mask that is reshaped inside of the tile")
        loads[node] = Masked(window_of(task, Operand(node[1], node[2]), sides), mine)
    return loads


def _extent(operand: Operand, sides: dict[Factor, str], side: str) -> int:
    return math.prod(factor.size for dim in operand.dims for factor in dim if sides[factor] == side)


def window_of(task: TaskView, operand: Operand, sides: dict[Factor, str]) -> Window:
    load = load_for(task, operand.value)
    if load is None:
        raise MatchFailure("an operand is not in memory")
    return record_window(load, operand, sides)


def load_for(task: TaskView, value: ir.Value) -> Load | None:
    """The load that a tensor is, or is a constant slice of."""
    maker = defining_op(value)
    load = task.load_of(value)
    return _sliced(task, maker) if load is None and maker is not None and maker.name == "tensor.extract_slice" else load


def _sliced(task: TaskView, op: ir.Operation) -> Load | None:
    """A constant slice of a load, as a load of that part."""
    load = task.load_of(op.operands[0])
    if load is None or len(op.operands) > 1 or shape_of(load.tensor) != list(load.sizes):
        return None
    starts, sizes, strides = (static_ints(op, f"static_{what}") for what in ("offsets", "sizes", "strides"))
    moved: list[Offset] = []
    for start, more in zip(load.offsets, starts, strict=True):
        if more and not isinstance(start, int):
            return None
        moved.append(start + more if isinstance(start, int) else start)
    if any(stride != 1 for stride in strides):
        return None
    return dataclasses.replace(load, tensor=op.results[0], offsets=tuple(moved), sizes=tuple(sizes))


def record_window(record: Load | Store, operand: Operand, sides: dict[Factor, str]) -> Window:
    """The window of a record; dimensions of which it has one element at a known place are part of the buffer's offset."""
    if any(len(dim) > 1 for dim in operand.dims) or [n for n in record.sizes if n != 1] != [
        n for n in shape_of(operand.value) if n != 1
    ]:
        raise MatchFailure("an operand is reshaped inside of the tile")
    window = Window.of(record, [sides[dim[0]] for dim in operand.dims if dim])
    start, dims = window.buffer.offset, []
    for dim in window.dims:
        if dim.size == 1 and isinstance(dim.start, int):
            start += dim.start * dim.stride * window.bytes
        else:
            dims.append(dim)
    return Window(dataclasses.replace(window.buffer, offset=start), tuple(dims))
