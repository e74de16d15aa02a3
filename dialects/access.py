"""How an operation on tensors touches its operands and results: the facts that stages, tiles and waits are derived from.

Every op that can be tiled is described as a loop nest: its loops (parallel or not, with sizes) and, for each operand and
result, which loop runs along each tensor dimension. Linalg ops give this by their indexing maps; the structural ops of the
tensor dialect (reshapes, slices, concatenation, padding) have one implied loop a dimension that they leave alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch_mlir import ir

from .unchanged import constant, remembered


@dataclass(frozen=True)
class Along:
    """One tensor dimension seen from a loop nest: `loop` walks it as `start + scale * loop + window`, window in [0, extent).

    A plain dimension has scale 1 and extent 1; a convolution's input rows have the stride as scale and the (dilated) kernel
    height as extent. `loop` is None where the dimension is always read or written whole. A slice's loop walks a `part` of a
    dimension only, from `start` on.
    """

    loop: int | None
    scale: int = 1
    extent: int = 1
    start: int = 0
    part: bool = False

    @property
    def plain(self) -> bool:
        """Whether the dimension is indexed by the loop itself, all of it."""
        return self.loop is not None and self.scale == 1 and self.extent == 1 and not self.part


WHOLE = Along(None)
ALONG_ROWS = ("tm_tensor.scan", "tm_tensor.sort")
"""Ops that do each row along their `dimension` by itself, in an order."""


@dataclass(frozen=True)
class Access:
    """The loop nest of one op. `parallel[i]` and `sizes[i]` describe loop i; `operands` and `results` hold an `Along` a dim."""

    parallel: tuple[bool, ...]
    sizes: tuple[int, ...]
    operands: tuple[tuple[Along, ...], ...]
    results: tuple[tuple[Along, ...], ...]


def is_tensor(value: ir.Value) -> bool:
    """Whether a value is a ranked tensor."""
    return isinstance(value.type, ir.RankedTensorType)


def shape_of(value: ir.Value) -> list[int]:
    """The static shape of a tensor or memref value."""
    return list(ir.ShapedType(value.type).shape)


def affine_maps(op: ir.Operation) -> list[ir.AffineMap]:
    """The indexing maps of a linalg op, one an operand."""
    return list(_maps(op.attributes["indexing_maps"]))


@constant
def _maps(maps: ir.Attribute) -> tuple[ir.AffineMap, ...]:
    return tuple(ir.AffineMapAttr(m).value for m in ir.ArrayAttr(maps))


def iterator_kinds(op: ir.Operation) -> list[str]:
    """The iterator types of a linalg.generic: "parallel" or "reduction" a loop."""
    return list(_kinds(op.attributes["iterator_types"]))


@constant
def _kinds(kinds: ir.Attribute) -> tuple[str, ...]:
    return tuple("parallel" if "parallel" in str(a) else "reduction" for a in ir.ArrayAttr(kinds))


def plain_loops(map_: ir.AffineMap) -> list[int | None]:
    """The loop that walks each dimension of an operand; None for one that is indexed by anything but a single loop."""
    return list(_plain_loops(map_))


@constant
def _plain_loops(map_: ir.AffineMap) -> tuple[int | None, ...]:
    return tuple(e.position if isinstance(e, ir.AffineDimExpr) else None for e in map_.results)


def loop_sizes(op: ir.Operation, unknown: int = 1) -> list[int]:
    """Trip counts of a linalg op's loops; `unknown` for a loop that walks no dimension of an operand alone."""
    return list(_sizes(op.attributes["indexing_maps"], _types(op), unknown))


@constant
def _sizes(indexing: ir.Attribute, types: tuple[ir.Type, ...], unknown: int) -> tuple[int, ...]:
    maps = _maps(indexing)
    sizes = [unknown] * maps[0].n_dims
    for type_, map_ in zip(types, maps, strict=True):
        if isinstance(type_, ir.RankedTensorType):
            for extent, loop in zip(type_.shape, plain_loops(map_), strict=True):
                if loop is not None:
                    sizes[loop] = extent
    return tuple(sizes)


def _types(op: ir.Operation) -> tuple[ir.Type, ...]:
    return tuple(operand.type for operand in op.operands)


def terms_of(expr: ir.AffineExpr) -> dict[int, int] | None:
    """A sum of scaled loops as {loop: coefficient}; None for anything else (constants included)."""
    if isinstance(expr, ir.AffineDimExpr):
        return {expr.position: 1}
    if isinstance(expr, ir.AffineMulExpr):
        for a, b in ((expr.lhs, expr.rhs), (expr.rhs, expr.lhs)):
            if isinstance(a, ir.AffineDimExpr) and isinstance(b, ir.AffineConstantExpr):
                return {a.position: b.value}
        return None
    if isinstance(expr, ir.AffineAddExpr):
        left, right = terms_of(expr.lhs), terms_of(expr.rhs)
        if left is None or right is None or set(left) & set(right):
            return None
        return left | right
    return None


def loops_in(expr: ir.AffineExpr) -> set[int]:
    """The loops that an index is made of."""
    if isinstance(expr, ir.AffineDimExpr):
        return {expr.position}
    return loops_in(expr.lhs) | loops_in(expr.rhs) if isinstance(expr, ir.AffineBinaryExpr) else set()


def _linalg_access(op: ir.Operation) -> Access | None:
    return _nest(op.attributes["indexing_maps"], op.attributes["iterator_types"], _types(op), len(op.results))


@constant
def _nest(indexing: ir.Attribute, kinds: ir.Attribute, types: tuple[ir.Type, ...], inits: int) -> Access | None:
    """The loop nest of a linalg op of such operands, the last `inits` of them its results' starts."""
    sizes = _sizes(indexing, types, -1)
    if -1 in sizes:
        return None
    parallel = [k == "parallel" for k in _kinds(kinds)]
    operands: list[tuple[Along, ...]] = []
    for type_, map_ in zip(types, _maps(indexing), strict=True):
        dims: list[Along] = []
        for expr in map_.results if isinstance(type_, ir.RankedTensorType) else []:
            terms = terms_of(expr)
            if terms is None or any(c < 1 for c in terms.values()):
                # A constant index, or a form that is not a window: every loop in it must stay whole.
                for loop in loops_in(expr):
                    parallel[loop] = False
                dims.append(WHOLE)
                continue
            moving = [loop for loop in terms if parallel[loop]]
            if not moving:
                dims.append(Along(next(iter(terms))) if len(terms) == 1 else WHOLE)
                continue
            # The one that moves furthest: the others then are what lies between two of its steps, or little more.
            loop = max(moving, key=terms.__getitem__)
            for other in moving:
                parallel[other] = other == loop
            extent = 1 + sum(c * (sizes[other] - 1) for other, c in terms.items() if other != loop)
            dims.append(Along(loop, terms[loop], extent))
        operands.append(tuple(dims))
    return Access(tuple(parallel), sizes, tuple(operands), tuple(operands[len(operands) - inits :]) if inits else ())


def reassociation(op: ir.Operation) -> list[list[int]]:
    """The dimension groups of a tensor.expand_shape or tensor.collapse_shape."""
    return [[ir.IntegerAttr(i).value for i in ir.ArrayAttr(g)] for g in ir.ArrayAttr(op.attributes["reassociation"])]


def _reshape_access(op: ir.Operation) -> Access:
    """Groups with at most one dimension that is not 1 pass their loop through; real splits and merges are whole."""
    source, result = op.operands[0], op.results[0]
    expanded, collapsed = (result, source) if op.name == "tensor.expand_shape" else (source, result)
    wide, narrow = shape_of(expanded), shape_of(collapsed)
    wide_along, narrow_along = [WHOLE] * len(wide), [WHOLE] * len(narrow)
    sizes: list[int] = []
    for dim, group in enumerate(reassociation(op)):
        big = [g for g in group if wide[g] != 1]
        if len(big) <= 1:
            at = big[0] if big else group[0]
            wide_along[at] = narrow_along[dim] = Along(len(sizes))
            sizes.append(narrow[dim])
    operands = [tuple(wide_along if v == expanded else narrow_along) for v in (source,)]
    operands += [() for _ in list(op.operands)[1:]]
    results = tuple(wide_along if result == expanded else narrow_along)
    return Access((True,) * len(sizes), tuple(sizes), tuple(operands), (results,))


def _kept_dims(op: ir.Operation, kept: list[bool]) -> Access:
    """One loop for each kept dimension; the tensors all have the result's rank, the others are whole."""
    shape = shape_of(op.results[0])
    loops = [d for d, k in enumerate(kept) if k]
    along = tuple(Along(loops.index(d)) if k else WHOLE for d, k in enumerate(kept))
    operands = tuple(along if is_tensor(v) and len(shape_of(v)) == len(shape) else () for v in op.operands)
    return Access((True,) * len(loops), tuple(shape[d] for d in loops), operands, (along,))


def static_ints(op: ir.Operation, name: str) -> list[int]:
    """A DenseI64Array attribute such as `static_sizes` as a list."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Of the dimensions of a box those that a tensor of it has, which may lack some extents of 1: the first that can be."""
    kept: list[int] = []
    for dim, size in enumerate(sizes):
        if len(kept) < len(shape) and shape[len(kept)] == size:
            kept.append(dim)
    return kept


def dropped_dims(op: ir.Operation) -> tuple[int, ...]:
    """The dimensions of extent 1 that a tensor.extract_slice or a memref.subview of static sizes leaves out of its result.

    Where it could be one or another, those that come first stay (MLIR's `computeRankReductionMask`).
    """
    sizes = static_ints(op, "static_sizes")
    kept = kept_dims(sizes, shape_of(op.results[0]))
    return tuple(dim for dim in range(len(sizes)) if dim not in kept)


def _slice_access(op: ir.Operation) -> Access | None:
    """extract_slice: loops run along what neighbours in the source are in the result."""
    if len(op.operands) > 1:
        return None
    source, dropped = shape_of(op.operands[0]), dropped_dims(op)
    starts, sizes, strides = (static_ints(op, f"static_{name}") for name in ("offsets", "sizes", "strides"))
    maker = op.operands[0].owner
    loaded = isinstance(maker, ir.Block) or maker.name not in ("arith.constant", "tensor.splat")
    parts = loaded and all(stride == 1 for stride in strides)  # else all of it is there, and the slice is cut of that
    loops: list[int] = []
    along_source, along_result = [WHOLE] * len(source), []
    for d, extent in enumerate(source):
        if strides[d] == 1 and d not in dropped and (parts or sizes[d] == extent):
            along_source[d] = Along(len(loops), start=starts[d], part=sizes[d] < extent)
            along_result.append(Along(len(loops)))
            loops.append(sizes[d])
        elif d not in dropped:
            along_result.append(WHOLE)
    return Access((True,) * len(loops), tuple(loops), (tuple(along_source),), (tuple(along_result),))


def _row_access(op: ir.Operation) -> Access:
    """`tm_tensor.scan`, `tm_tensor.sort`: rows along a dimension, each whole; what lacks that dimension has the others."""
    shape, dim = shape_of(op.results[0]), ir.IntegerAttr(op.attributes["dimension"]).value

    def along(value: ir.Value) -> tuple[Along, ...]:
        loops = range(len(shape))
        return tuple(Along(loop) for loop in loops if len(shape_of(value)) == len(shape) or loop != dim)

    parallel = tuple(loop != dim for loop in range(len(shape)))
    return Access(parallel, tuple(shape), tuple(map(along, op.operands)), tuple(map(along, op.results)))


@remembered
def access_of(op: ir.Operation) -> Access | None:
    """The loop nest of `op`, or None where nothing is known of it (it then reads and writes its tensors whole)."""
    name = op.name
    if name == "linalg.generic":
        return _linalg_access(op)
    if name in ("tensor.expand_shape", "tensor.collapse_shape"):
        return _reshape_access(op)
    if name == "tensor.empty":
        return _kept_dims(op, [True] * len(shape_of(op.results[0])))
    if name == "tensor.concat":
        dim = ir.IntegerAttr(op.attributes["dim"]).value
        return _kept_dims(op, [d != dim for d in range(len(shape_of(op.results[0])))])
    if name == "tensor.pad" and len(op.operands) == 1:
        low, high = static_ints(op, "static_low"), static_ints(op, "static_high")
        return _kept_dims(op, [a == 0 and b == 0 for a, b in zip(low, high, strict=True)])
    if name == "tensor.extract_slice":
        return _slice_access(op)
    if name in ALONG_ROWS:
        return _row_access(op)
    return None


def constant_of(value: ir.Value) -> int | None:
    """The number of an integer or index constant, else None."""
    op = value.owner
    if isinstance(op, ir.Block) or op.name != "arith.constant" or not isinstance(op.attributes["value"], ir.IntegerAttr):
        return None
    return ir.IntegerAttr(op.attributes["value"]).value
