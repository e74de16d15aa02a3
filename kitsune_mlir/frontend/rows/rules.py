"""What operators do to rows: those that work element by element, along a dimension, or on each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.frontend.rows.axes import Axis, Unclear, axis_of, names_in
from kitsune_mlir.frontend.rows.node import WITHIN_SAMPLES, Axes, Node, broadcast
from kitsune_mlir.frontend.source import target_name

__all__ = ["REDUCTIONS", "plain_rule"]

aten, prims = torch.ops.aten, torch.ops.prims

Rule = Callable[[Node], Any]

REDUCTIONS = {
    aten.sum.default: 0, aten.sum.dim_IntList: 0, aten.mean.default: 0, aten.mean.dim: 0,
    aten.prod.default: 1, aten.prod.dim_int: 1, aten.amax.default: "lowest", aten.amin.default: "highest",
    aten.max.default: "lowest", aten.min.default: "highest", aten.max.dim: "lowest", aten.min.dim: "highest",
    aten.argmax.default: "lowest", aten.argmin.default: "highest",
    aten.any.default: 0, aten.any.dim: 0, aten.any.dims: 0, aten.all.default: 1, aten.all.dim: 1, aten.all.dims: 1,
}  # fmt: skip
"""Operators that reduce dimensions, and the value that counts for nothing there."""

_OTHER_REDUCTIONS = {
    aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.logsumexp.default, aten.median.dim,
    aten.linalg_vector_norm.default, aten.kthvalue.default, aten.mode.default, aten.nansum.default,
}  # fmt: skip
_ALONG = {
    aten.cumsum.default, aten.cumprod.default, aten.cummax.default, aten.cummin.default, aten.logcumsumexp.default,
}  # fmt: skip
_WHOLE_LINES = {
    aten.sort.default, aten.sort.stable, aten.argsort.default, aten.flip.default, aten.roll.default,
    aten._softmax.default, aten._log_softmax.default, aten.softmax.int, aten.topk.default,
}  # fmt: skip
_ELEMENTWISE = {
    aten._to_copy.default, aten.copy.default, aten.copy_.default, aten.alias.default, aten.clone.default,
    aten.lift_fresh_copy.default, aten.fill.Scalar, aten.fill.Tensor, aten.full_like.default, aten.zeros_like.default,
    aten.ones_like.default, aten.empty_like.default, aten.detach.default, aten.bernoulli.default,
    prims.convert_element_type.default,
}  # fmt: skip
_MADE = {
    aten.full.default, aten.zeros.default, aten.ones.default, aten.empty.memory_format, aten.empty_strided.default,
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.scalar_tensor.default, aten.eye.default, aten.eye.m, aten.arange.start_step,
    aten.arange.start, aten.arange.default,
}  # fmt: skip
_OF_SAMPLES = {
    **dict.fromkeys(
        (
            aten.max_pool1d.default, aten.max_pool2d.default,
            aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default,
            aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default, aten._adaptive_avg_pool2d.default,
            aten._adaptive_avg_pool3d.default, aten.adaptive_avg_pool1d.default, aten.adaptive_max_pool2d.default,
            aten.upsample_nearest2d.vec, aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default,
            aten.upsample_bilinear2d.vec, aten.upsample_bicubic2d.default, aten.upsample_nearest1d.default,
            aten.upsample_linear1d.default, aten.reflection_pad1d.default, aten.reflection_pad2d.default,
            aten.replication_pad1d.default, aten.replication_pad2d.default, aten.native_group_norm.default,
            aten.pixel_shuffle.default, aten._native_batch_norm_legit_no_training.default, aten.im2col.default,
            aten.col2im.default, aten.upsample_nearest2d_backward.default, aten.upsample_bilinear2d_backward.default,
        ),
        (0,),
    ),
    aten.grid_sampler_2d.default: (0, 1),
    aten.avg_pool2d_backward.default: (0, 1),
    aten._adaptive_avg_pool2d_backward.default: (0, 1),
    aten.max_pool2d_with_indices_backward.default: (0, 1, 7),
}  # fmt: skip
"""Operators on each sample of these operands, whose first dimension it is; all else is the same for every sample."""


def plain_rule(node: fx.Node) -> Rule:
    """The rule for an operator that no table has."""
    target = node.target
    tags = getattr(target, "tags", ())
    if target_name(node) == "getitem":
        return _getitem
    if torch.Tag.nondeterministic_seeded in tags:
        return _random
    if target in _ELEMENTWISE or torch.Tag.pointwise in tags:
        return _elementwise
    if target in REDUCTIONS or target in _OTHER_REDUCTIONS:
        return _reduction
    if target in _ALONG or target in _WHOLE_LINES:
        return _along
    if target in _MADE:
        return _made
    return _samples if target in _OF_SAMPLES else _unknown


def _getitem(at: Node) -> Axes:
    return at.operand()[at.node.args[1]]  # type: ignore[index]


def _unknown(at: Node) -> Axes:
    names = names_in(size for axes in _all(at) for axis in axes for size in axis.factors)
    found = at.results
    if names or names_in(size for sizes in (found if isinstance(found, list) else [found]) for size in sizes):
        raise Unclear("what it does to rows is not known")
    return _fresh(at)


def _random(at: Node) -> Axes:
    found = _fresh(at)
    around = [*(found if isinstance(at.results, list) else [found]), *_all(at)]
    if names_in(size for axes in around for axis in axes for size in axis.factors):
        raise Unclear("which random numbers a row gets depends on how many rows there are")
    return found


def _all(at: Node) -> list[Axes]:
    return [axes for value in at.node.all_input_nodes for axes in _each(at.axes(value))]


def _each(axes: Any) -> list[Axes]:
    return [axes] if all(isinstance(axis, Axis) for axis in axes) else list(axes)


def _fresh(at: Node) -> Any:
    found = at.results
    return [tuple(map(axis_of, sizes)) for sizes in found] if isinstance(found, list) else tuple(map(axis_of, found))


def numbers_in(at: Node, values: Iterable[Any]) -> None:
    """Notes symbols whose values an operator computes with."""
    found = [value for value in values if isinstance(value, fx.Node) and not isinstance(value.meta["val"], torch.Tensor)]
    names = names_in(at.number(value) for value in found)
    at.crosses(names, "it computes with the number of rows", "counts")


def _elementwise(at: Node) -> Any:
    leaves = tree_leaves((at.node.args, at.node.kwargs))
    numbers_in(at, leaves)
    found = broadcast(*(at.axes(v) for v in leaves if isinstance(v, fx.Node) and isinstance(v.meta["val"], torch.Tensor)))
    return [found] * len(at.results) if isinstance(at.results, list) else found


def _made(at: Node) -> Axes:
    numbers_in(at, [at[name] for name in ("start", "step", "fill_value", "s")])
    at.says_sizes("end", "n", "m", "stride")
    return _fresh(at)


def reduced(at: Node, axes: Axes, dims: Sequence[int], keep: bool) -> Axes:
    """What is left of dimensions."""
    return tuple(Axis() if n in dims else axis for n, axis in enumerate(axes) if keep or n not in dims)


def dims_of(at: Node) -> list[int]:
    """Which dimensions a reduction takes."""
    rank = len(at.operand())
    given = at["dim"]
    if given is None or given == []:
        return list(range(rank))
    return [dim % max(rank, 1) for dim in (given if isinstance(given, list | tuple) else [given])]


def _reduction(at: Node) -> Any:
    axes, dims, target = at.operand(), dims_of(at), at.node.target
    names = frozenset[str]().union(*(axes[n].symbols for n in dims if axes))
    if names and target in _OTHER_REDUCTIONS:
        raise Unclear("it reduces over rows")
    finds = target in (aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim)
    if finds and not all(axes[n].is_prefix for n in dims) or (finds and len(dims) > 1 and names):
        raise Unclear("where a row is found depends on how many there are")
    at.crosses(names, "it reduces over rows", "counts")
    left = reduced(at, axes, dims, bool(at["keepdim"]))
    return [left] * len(at.results) if isinstance(at.results, list) else left


def _along(at: Node) -> Any:
    axes, target = at.operand(), at.node.target
    given = at["dim"] if "dim" in at.given else at["dims"]
    dims = [d % max(len(axes), 1) for d in (given if isinstance(given, list | tuple) else [-1 if given is None else given])]
    if target is aten.roll.default and not at["dims"]:
        dims = list(range(len(axes)))
    lines = [axes[dim] for dim in dims if axes]
    names = frozenset[str]().union(*(axis.symbols for axis in lines))
    if names:
        if target in _WHOLE_LINES or not all(axis.is_prefix for axis in lines):
            raise Unclear("where a row goes, or what it becomes, depends on all rows")
        at.crosses(names, "each row depends on those before it", "reads")
    if isinstance(at.results, list):
        return [
            tuple(a if n not in dims else axis_of(s) for n, (a, s) in enumerate(zip(axes, z, strict=True))) for z in at.results
        ]
    return axes


def _samples(at: Node) -> Any:
    of_samples = _OF_SAMPLES[at.node.target]  # type: ignore[index]
    first = [at.operand(n) for n in of_samples]
    rows = first[0][:1]
    if any(axes[:1] != rows for axes in first):
        raise Unclear("its operands have other samples")
    sampled = [at.node.args[n] for n in of_samples]
    others = [axes for v in at.node.all_input_nodes if v not in sampled for axes in _each(at.axes(v))]
    inner = names_in(size for axes in (*(axes[1:] for axes in first), *others) for axis in axes for size in axis.factors)
    sizes = at.results if isinstance(at.results, list) else [at.results]
    at.crosses(inner | names_in(size for one in sizes for size in one[1:]), WITHIN_SAMPLES, "never")
    found = [(*rows, *map(axis_of, one[1:])) if names_in(one) else tuple(map(axis_of, one)) for one in sizes]
    return found if isinstance(at.results, list) else found[0]
