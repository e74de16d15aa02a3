"""Writes to slices of arguments, `cache[:, :, 5:6] = k`, as rows put into the argument.

Without its aliases such a write is a new tensor, made of what stays and what comes; nobody could see that most of it is the
argument as it was. As `scatter_rows` it names the rows that are written, and no others are touched (`kitsune-write-in-place`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument

from kitsune_mlir.frontend import scatter_rows  # noqa: F401  (importing it defines the operator)
from kitsune_mlir.frontend.aten import AtenProgram, TracedProgram
from kitsune_mlir.frontend.dead_code import drop_dead
from kitsune_mlir.frontend.prepare import call_with_value

__all__ = ["put_slices", "put_traced_slices"]

aten = torch.ops.aten
LEAST_BYTES, FEW_ROWS, MOST_ROWS = 16, 1 << 12, 1 << 16
"""Rows shorter than so many bytes are put there one by one if there are few of them; so many rows at most."""


@dataclasses.dataclass(frozen=True)
class _Part:
    """Of a dimension: numbers `start`, `start + step`, ..., so many of them; `dropped` is one that a view has no more."""

    start: int
    count: int
    step: int = 1
    dropped: bool = False


def put_slices(program: TracedProgram) -> None:
    """Rewrites a program as `torch.export.export` returns it, in place."""
    for node in [node for node in program.graph.nodes if node.op == "call_function"]:
        functional = _functional(node)
        view = node.args[0] if functional is not None else None
        if not isinstance(view, fx.Node):
            continue
        base, parts = _region(view)
        if base.op == "placeholder" and base is not view and parts is not None:
            rows = _rows(base.meta["val"], parts)
            if rows is not None:
                _rewrite(program, node, functional, view, base, *rows)


def _functional(node: fx.Node) -> Any:
    """The operator that gives what an element-wise one writes to its first operand, which it returns; None for others."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or not target._schema.name.endswith("_"):
        return None
    packet = getattr(aten, target._schema.name.removeprefix("aten::").removesuffix("_"), None)
    same = getattr(packet, target._overloadname, None) if packet is not None else None
    pointwise = torch.Tag.pointwise in target.tags or target is aten.copy_.default
    return same if pointwise and same is not None and len(same._schema.returns) == 1 else None


def _region(view: fx.Node) -> tuple[fx.Node, list[_Part] | None]:
    """What a chain of slices and selects begins with, and what it is of that; None where there is something else in between."""
    chain: list[fx.Node] = []
    while view.target in (aten.slice.Tensor, aten.select.int) and isinstance(view.args[0], fx.Node):
        chain.insert(0, view)
        view = view.args[0]
    value = view.meta.get("val")
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return view, None
    parts: list[_Part] | None = [_Part(0, size) for size in value.shape]
    for node in chain:
        parts = _narrowed(parts, node.target is aten.select.int, node.args[1:]) if parts is not None else None
    return view, parts


def _narrowed(parts: list[_Part], select: bool, given: Sequence[Any]) -> list[_Part] | None:
    """What a slice (dim, start, end, step) or a select (dim, index) is of what `parts` are of."""
    dim, *where = given or [0]
    if not all(isinstance(n, int) or n is None for n in (dim, *where)):
        return None
    kept = [d for d, part in enumerate(parts) if not part.dropped]
    at, (begin, end, step) = kept[dim], (*where, *(None, None, 1)[len(where) :])
    part = parts[at]
    if select:
        new = _Part(part.start + begin % part.count * part.step, 1, 1, True)
    else:
        numbers = range(part.count)[slice(begin, end, step)]
        new = _Part(part.start + numbers.start * part.step, len(numbers), part.step * numbers.step)
    return [new if d == at else other for d, other in enumerate(parts)]


def _rows(base: Tensor, parts: list[_Part]) -> tuple[Tensor, int] | None:
    """The rows that a part of a tensor consists of, by number, and how long they are; None where it is better not cut so."""
    shape = list(base.shape)
    last = max((d for d, part in enumerate(parts) if part.count < shape[d]), default=None)
    if last is None or base.dtype.is_complex or not all(part.count for part in parts):
        return None
    part, inner = parts[last], math.prod(shape[last + 1 :])
    each = math.gcd(part.start, part.count, shape[last]) if part.step == 1 else 1
    width = each * inner
    count = math.prod(p.count for p in parts[: last + 1]) // each
    if count > MOST_ROWS or (width * base.element_size() < LEAST_BYTES and count > FEW_ROWS):
        return None
    number = torch.zeros((), dtype=torch.int64)
    for dim, p in enumerate(parts[: last + 1]):
        cut = each if dim == last else 1
        along = torch.arange(p.count // cut) * p.step + p.start // cut
        number = number.unsqueeze(-1) * (shape[dim] // cut) + along
    return number.reshape(-1).to(torch.int32).to(base.device), width


def _rewrite(
    program: TracedProgram, node: fx.Node, functional: Any, view: fx.Node, base: fx.Node, rows: Tensor, width: int
) -> None:
    """What an operator would write to a view, put into rows of what the view is of."""
    index, seen = _add_constant(program, f"rows_of_{node.name}", rows, base), view.meta["val"]
    with program.graph.inserting_before(node):
        call = functools.partial(call_with_value, stack_trace=str(node.meta.get("stack_trace") or ""))
        if node.target is aten.copy_.default:
            value = call(aten.expand.default, node.args[1], list(seen.shape))
        else:
            value = call(functional, view, *node.args[1:], **dict[str, Any](node.kwargs))
        if value.meta["val"].dtype != seen.dtype:
            value = call(aten.to.dtype, value, seen.dtype)
        call(aten.copy_.default, base, _put(call, base, index, value, width))
    node.replace_all_uses_with(view)
    program.graph.erase_node(node)


def _put(call: Any, base: fx.Node, index: fx.Node, value: fx.Node, width: int) -> fx.Node:
    """A tensor with rows of `width` elements put into it, as nodes that `call` makes."""
    rows = [call(aten.reshape.default, base, [-1, width]), index, call(aten.reshape.default, value, [-1, width])]
    put = call(torch.ops.kitsune.scatter_rows.default, *rows, "set")
    return call(aten.reshape.default, put, list(base.meta["val"].shape))


def put_traced_slices(program: AtenProgram) -> None:
    """The same for a graph of AOTAutograd, where such a write is a new tensor with a slice of another; in place."""
    inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    output = next(iter(program.graph.find_nodes(op="output")))
    for spec, node in zip(program.graph_signature.output_specs, list(output.args[0]), strict=True):
        if spec.kind is not OutputKind.USER_INPUT_MUTATION or node.target not in _SCATTERED:
            continue
        base, parts, source = _scattered(node)
        rows = _rows(base.meta["val"], parts) if base is inputs[str(spec.target)] and parts is not None else None
        if rows is None or not base.meta["val"].is_contiguous():
            continue
        index = _add_constant(program, f"rows_of_{node.name}", rows[0], base)
        with program.graph.inserting_before(node):
            call = functools.partial(call_with_value, stack_trace=str(node.meta.get("stack_trace") or ""))
            shape = [part.count for part in parts or () if not part.dropped]
            if source.target is aten.copy.default:
                source = source.args[1]
            value = call(aten.expand.default, source, shape)
            if value.meta["val"].dtype != base.meta["val"].dtype:
                value = call(torch.ops.prims.convert_element_type.default, value, base.meta["val"].dtype)
            put = _put(call, base, index, value, rows[1])
        node.replace_all_uses_with(put)
        program.graph.erase_node(node)
        spec.arg = TensorArgument(put.name)
    drop_dead(program.graph)


_SCATTERED = (aten.slice_scatter.default, aten.select_scatter.default)


def _scattered(node: fx.Node) -> tuple[fx.Node, list[_Part] | None, Any]:
    """What slices within slices are put into, what of it they are, and what is put there."""
    while True:
        base, parts = _region(node.args[0])  # type: ignore[arg-type]
        if parts is not None:
            parts = _narrowed(parts, node.target is aten.select_scatter.default, node.args[2:])
        source: Any = node.args[1]
        if not isinstance(source, fx.Node) or source.target not in _SCATTERED or parts is None:
            return base, parts, source
        if _region(source.args[0]) != (base, parts):  # type: ignore[arg-type]
            return base, parts, source
        node = source


def _add_constant(program: TracedProgram, name: str, value: Tensor, like: fx.Node) -> fx.Node:
    """A new constant of the program, last of its placeholders before the user's inputs."""
    while name in program.constants:
        name += "_"
    specs = program.graph_signature.input_specs
    place = next((i for i, s in enumerate(specs) if s.kind is InputKind.USER_INPUT), len(specs))
    placeholders = program.graph.find_nodes(op="placeholder")
    before = placeholders[place] if place < len(placeholders) else next(n for n in program.graph.nodes if n.op != "placeholder")
    with program.graph.inserting_before(before):
        node = program.graph.placeholder(f"c_{name}")
    node.meta["val"] = like.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
    specs.insert(place, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(name=node.name), name, None))
    program.constants[name] = value
    return node
