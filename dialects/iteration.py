"""The iteration space that a group of ops shares: which loops of the ops are one and the same, and can be tiled.

Row-local is the central notion (docs/architecture.md): ops that share a parallel dimension, and read every other operand
either by that dimension or whole, can run for a tile of it without leaving the block. Here it is computed: loops of different
ops are one *dimension* when a value passes between them along it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from .access import WHOLE, Access, Along, access_of, is_tensor, iterator_kinds, reassociation, shape_of
from .attribute_table import HALO, IN_PLACE, NO_FUSION, OPERAND_SUM
from .axes import Axes, Node
from .products import constant_fill, defining_op, is_contraction, is_generic, is_movement
from .unchanged import remembered
from .verify import captures, walk

SMALL_ELEMENTS = 4096  # a value this small is computed again for each tile rather than passed through memory


def is_trivial_reshape(op: ir.Operation) -> bool:
    """A reshape that only adds or drops dimensions of extent 1."""
    if not is_reshape(op):
        return False
    wide = shape_of(op.results[0] if op.name == "tensor.expand_shape" else op.operands[0])
    return all(sum(wide[d] != 1 for d in group) <= 1 for group in reassociation(op))


def is_reshape(op: ir.Operation) -> bool:
    """Any reshape. Between stages all of them are views of the same memory."""
    return op.name in ("tensor.expand_shape", "tensor.collapse_shape")


def is_view(op: ir.Operation) -> bool:
    """A reshape that splits or merges dimensions: between stages it costs nothing (contiguous memory seen differently)."""
    return is_reshape(op) and not is_trivial_reshape(op)


def is_halo(op: ir.Operation) -> bool:
    """Whether an op only pads what convolutions read: each tile then reads the source, and knows where it ends."""
    return op.name == "tensor.pad" and HALO in op.attributes


@remembered
def is_free(op: ir.Operation) -> bool:
    """Whether an op is cheap enough to be repeated in each stage (and for each tile) that uses it.

    Constants, scalars, empty tensors, constant fills, slices, reshapes by ones, and small tensors made from indices and
    constants alone.
    """
    if (op.regions and op.name.startswith("scf.")) or NO_FUSION in op.attributes:
        return False
    if op.results and not any(is_tensor(r) for r in op.results):
        return True
    if is_halo(op) or IN_PLACE in op.attributes:
        return True
    if op.name in ("tensor.empty", "arith.constant", "tensor.extract_slice", "tensor.splat") or is_trivial_reshape(op):
        return len(op.operands) <= 1
    if constant_fill(op) is not None:
        return True
    return _computes_little(op) and all(map(_is_fixed, _tensors_read(op)))


def _computes_little(op: ir.Operation) -> bool:
    """Whether an op is element-wise and small. A copy is not: it is a result, or there to be written over."""
    small = is_generic(op) and math.prod(shape_of(op.results[0])) <= SMALL_ELEMENTS
    return small and not is_movement(op) and "reduction" not in iterator_kinds(op)


def _tensors_read(op: ir.Operation) -> list[ir.Value]:
    """Inputs of a generic, and what its body reads by index."""
    operands = list(op.operands)
    read = [*operands[: len(operands) - len(op.results)], *(v for v in captures(op) if v not in operands)]
    return [v for v in read if is_tensor(v)]


def _is_fixed(value: ir.Value) -> bool:
    """Whether a small tensor is made of indices and constants alone."""
    pending = [value]
    while pending:
        value = pending.pop()
        maker = defining_op(value)
        if maker is None or math.prod(shape_of(value)) > SMALL_ELEMENTS:
            return False
        if maker.name == "tensor.extract_slice" or is_trivial_reshape(maker):
            pending.append(maker.operands[0])
        elif _computes_little(maker):
            pending += _tensors_read(maker)
        elif maker.name not in ("arith.constant", "tensor.splat") and constant_fill(maker) is None:
            return False
    return True


@dataclass(frozen=True)
class Dim:
    """One shared parallel dimension of a group: its extent, and the loop it is in each op (by the op's position)."""

    size: int
    loops: dict[int, int]


@dataclass(frozen=True)
class Space:
    """The shared parallel dimensions of a group of ops, leading dimension of the first result first."""

    ops: list[ir.Operation]
    accesses: list[Access | None]
    dims: list[Dim]

    def along(self, op: int, alongs: Sequence[Along]) -> list[tuple[int | None, Along]]:
        """For each tensor dimension of an operand or result of op number `op`: (shared dimension or None, how it is walked)."""
        table = {d.loops[op]: i for i, d in enumerate(self.dims) if op in d.loops}
        return [(table.get(a.loop) if a.loop is not None else None, a) for a in alongs]

    def result_dims(self, op: int, result: int) -> list[int | None]:
        """Which shared dimension runs along each dimension of a result."""
        access = self.accesses[op]
        if access is None:
            return [None] * len(shape_of(self.ops[op].results[result]))
        return [d for d, _ in self.along(op, access.results[result])]


class _Loops(Axes):
    """Classes of loops, each an op's number and a loop; those with a loop in `whole` cannot be tiled."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: set[Node] = set()


@dataclass(frozen=True)
class _Link:
    """How maker and reader of a value walk its dimensions: pairs of loops that walk one, loops of each that see it whole."""

    together: tuple[tuple[int, int], ...]
    made_whole: tuple[int, ...]
    used_whole: tuple[int, ...]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Along, Along]]) -> _Link:
        together, made_whole, used_whole = [], [], []
        for made, used in pairs:
            if made.plain and used.plain:
                assert made.loop is not None and used.loop is not None
                together.append((made.loop, used.loop))
                continue
            if made.loop is not None:
                made_whole.append(made.loop)
            if used.loop is not None:
                used_whole.append(used.loop)
        return cls(tuple(together), tuple(made_whole), tuple(used_whole))

    def add(self, loops: _Loops, producer: int, consumer: int) -> None:
        """Let loops of two ops of a group, which are known by their numbers, be the same ones."""
        for made, used in self.together:
            loops.unite((producer, made), (consumer, used))
        loops.whole.update([(producer, made) for made in self.made_whole])
        loops.whole.update([(consumer, used) for used in self.used_whole])


def iteration_space(
    ops: Sequence[ir.Operation], yielded: Sequence[ir.Value], light: Callable[[ir.Operation], bool] = is_free
) -> Space:
    """The shared parallel dimensions of `ops` (in order of the program), whose results `yielded` leave the group.

    A dimension counts when every op that is not `light` has exactly one loop in it, that loop is parallel, every value
    passed inside the group is passed along it, and every yielded value has it. Sums that a product makes beside it
    (`kitsune.operand_sum`) need not have the product's columns: tiles of the same rows all make, and store, the same sums.
    """
    sums = sums_beside(ops)
    position = {value: (n, i) for n, op in enumerate(ops) for i, value in enumerate(_results(op))}
    accesses = [access_of(op) for op in ops]
    classes = _Loops()
    for n, (op, access) in enumerate(zip(ops, accesses, strict=True)):
        if access is not None:
            for loop, parallel in enumerate(access.parallel):
                classes.find((n, loop))
                if not parallel:
                    classes.whole.add((n, loop))
        for value, link in _links(op):
            if value in position:
                link.add(classes, position[value][0], n)
    for product, number, sum_ in sums:
        made, used = accesses[product], accesses[sum_]
        assert made is not None and used is not None
        _Link.of(zip(made.operands[number], used.operands[0], strict=True)).add(classes, product, sum_)
    whole = {classes.find(node) for node in classes.whole}
    beside = {sum_ for _, _, sum_ in sums}
    wide = [value for value in yielded if position[hash(value)][0] not in beside] or list(yielded)
    heavy = {n for n, op in enumerate(ops) if not light(op) and n not in beside}
    dims: dict[Node, Dim] = {}
    for root, nodes in classes.classes().items():
        loops: dict[int, int] = dict(nodes)  # type: ignore[arg-type]
        if root in whole or len(loops) != len(nodes) or not heavy <= set(loops):
            continue
        first, loop = next(iter(loops.items()))
        size = accesses[first].sizes[loop]  # type: ignore[union-attr]
        if _everywhere(classes, root, wide, position, accesses):
            dims[root] = Dim(size, loops)
    return Space(list(ops), accesses, _ordered(classes, dims, wide, position, accesses))


def sums_beside(ops: Sequence[ir.Operation]) -> list[tuple[int, int, int]]:
    """The sums among some ops that a product among them makes beside it: numbers of product, of its operand, and of the sum."""
    marked = [(n, op) for n, op in enumerate(ops) if OPERAND_SUM in op.attributes]
    found = []
    for n, op in marked:
        if is_contraction(op):
            alike = [(m, o) for m, o in marked if m != n and o.attributes[OPERAND_SUM] == op.attributes[OPERAND_SUM]]
            found += [(n, k, m) for m, o in alike for k in (0, 1) if op.operands[k] == o.operands[0]]
    return found


@remembered
def _results(op: ir.Operation) -> tuple[int, ...]:
    """Hashes of the values that an op makes."""
    return tuple(map(hash, op.results))


@remembered
def _links(op: ir.Operation) -> list[tuple[int, _Link]]:
    """What an op reads of other ops: hashes of values, and how maker and op walk their dimensions.

    Tensors read inside a body by index (gathers) must be whole, but for rows read by a loop's own position.
    """
    own, found = access_of(op), []
    for k, value in enumerate(op.operands):
        maker = defining_op(value)
        if maker is None or not is_tensor(value):
            continue
        access = access_of(maker)
        made = access.results[ir.OpResult(value).result_number] if access is not None else ()
        used = own.operands[k] if own is not None else ()
        pairs = [(made[d] if made else WHOLE, used[d] if used else WHOLE) for d in range(len(shape_of(value)))]
        if made and used and is_halo(maker):  # a tile takes its part of the padded whole
            pairs = [(one, other) for one, other in pairs if one.plain and other.plain]
        found.append((hash(value), _Link.of(pairs)))
    for inner in walk(op) if len(op.regions) else ():
        for k, value in enumerate(inner.operands):
            maker = defining_op(value)
            access = access_of(maker) if maker is not None and len(maker.results) and is_tensor(value) else None
            if maker is None or access is None:
                continue
            loop = _own_row(inner) if inner.name == "tensor.extract" and not k and own is not None else None
            if loop is not None and own is not None and own.sizes[loop] != shape_of(value)[0]:
                loop = None  # the first of its rows
            alongs = access.results[ir.OpResult(value).result_number]
            rest = Along(loop) if loop is not None else WHOLE
            found.append((hash(value), _Link.of((along, WHOLE if d else rest) for d, along in enumerate(alongs))))
    return found


def _own_row(extract: ir.Operation) -> int | None:
    """The loop of a linalg.generic whose position is the first index of a `tensor.extract` in its body; None for any other."""
    index = extract.operands[1] if len(extract.operands) > 1 else None
    maker = defining_op(index) if index is not None else None
    return ir.IntegerAttr(maker.attributes["dim"]).value if maker is not None and maker.name == "linalg.index" else None


def _everywhere(classes: Axes, root, yielded, position, accesses) -> bool:
    for value in yielded:
        p, r = position[hash(value)]
        access = accesses[p]
        if access is None:
            return False
        if not any(a.plain and classes.find((p, a.loop)) == root for a in access.results[r] if a.loop is not None):
            return False
    return True


def _ordered(classes: Axes, dims: dict, yielded, position, accesses) -> list[Dim]:
    order: list = []
    for value in yielded:
        p, r = position[hash(value)]
        for along in accesses[p].results[r] if accesses[p] is not None else ():
            if along.loop is not None:
                root = classes.find((p, along.loop))
                if root in dims and root not in order:
                    order.append(root)
    return [dims[root] for root in order]


def root_of(value: ir.Value) -> ir.Value:
    """The value that a chain of reshapes shows."""
    maker = defining_op(value)
    while maker is not None and is_reshape(maker):
        value = maker.operands[0]
        maker = defining_op(value)
    return value


def inner_elements(space: Space) -> int:
    """Points of the widest op of the stage that do not belong to a shared dimension (a row's length, for row-local ops)."""
    widest = 1
    for n, op in enumerate(space.ops):
        if op.name == "tensor.extract_slice":
            continue  # where something lies
        access = space.accesses[n]
        tensors = [r for r in op.results if is_tensor(r)]
        if access is not None and tensors:
            shared = {d.loops[n] for d in space.dims if n in d.loops}
            widest = max(widest, math.prod(s for loop, s in enumerate(access.sizes) if loop not in shared))
        # What is always written whole has no loop: what a concatenation joins.
        for r in range(len(op.results) if tensors else 0):
            sizes = zip(shape_of(op.results[r]), space.result_dims(n, r), strict=True)
            widest = max(widest, math.prod(size for size, dim in sizes if dim is None))
    return widest
