"""What a backward graph makes again instead of reading: attention's scores, which are larger than all that they are made of,
views, and what was joined from tensors that it is given anyway.

`min_cut_rematerialization_partition` weighs bytes against products, and saves a matrix of all scores. Compiled, they
never are in memory: the backward graph must then hold the attention itself, which is found there and made again by its engine
(`passes/fuse_attention.py`), as whole training steps have it.

A layer's input is read by its weight's gradient, as a view of all rows. Where the view is saved, what else is made of the input
is, too: which numbers of a ReLU are positive (nerf: 9 bytes of 32 that forward saves). Saved is the tensor, of which both are
made again. Nor is a concatenation saved of which a part is there: a weight's gradient reads the parts, and forward need not
write it (nerf's layers were three chains for that). Nor a loss's tangent in f32, of results and targets in 16 bits (a mesh
network's: 61 of 267 MB): `min_cut_rematerialization_partition` saves what is made of values that are read in other places
long before, as if these took registers all the while.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

import kitsune_mlir.frontend.attention_dropout  # noqa: F401 (defines the operator)
from kitsune_mlir.dynamo.torch_api import cheap_made_again, min_cut_rematerialization_partition

__all__ = ["partitioned", "recompute_scores"]

aten = torch.ops.aten
PRODUCTS = (aten.bmm.default, aten.mm.default)
EXPONENTIALS = (aten.exp.default, aten._softmax.default)
TIMES_LARGER = 4
"""Than both factors together a product is at least, where its result is made again."""
LEAST = 1 << 20
"""Elements of such a result."""
GATHERS = (aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.embedding.default)


def partitioned(joint: fx.GraphModule, inputs: Sequence[Any], **given: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward of a joint graph, as AOTAutograd's `partition_fn` gives them."""
    from kitsune_mlir.dynamo.kept_bases import keep_bases  # what it needs takes a while to import, and kept graphs do not

    recompute_scores(joint.graph)
    recompute_joined(joint.graph)
    with cheap_made_again():
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **given)
    keep_bases(forward, backward, given["num_fwd_outputs"])
    return forward, backward


def recompute_scores(graph: fx.Graph) -> int:
    """Mark attention's scores, what they are made of by maps, and what becomes of them, as made again; how many there are.

    Scores are a product's result that is much larger than its factors, with an exponential of it, and which ends, by maps
    and sums of rows, in another product.
    """
    backward = _backward(graph)
    found = 0
    for node in graph.nodes:
        if node.target is torch.ops.kitsune.attention_keep.default:  # made of a seed, where it is read
            node.meta["recompute"], node.meta["ac_graph_id"] = CheckpointPolicy.MUST_RECOMPUTE, 0
        if node in backward or node.target not in PRODUCTS or not _is_wide(node):
            continue
        after = _until_product(node, backward)
        if after is not None:
            found += 1
            for one in (node, *after, *_maps_before(node)):
                one.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                one.meta["ac_graph_id"] = 0
    return found


def recompute_joined(graph: fx.Graph) -> int:
    """Mark concatenations as made again of which a part is an input, or is read by the backward for something else; how many.

    Parts that were gathered are not gathered again, so a concatenation with such a part is saved. What a checkpoint has decided
    stays.
    """
    backward, found = _backward(graph), 0
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        parts = [_source(part) for part in node.all_input_nodes]
        if node in backward or "recompute" in node.meta or any(part.target in GATHERS for part in parts):
            continue
        if any(part.op == "placeholder" or _is_read_otherwise(part, node, backward) for part in parts):
            node.meta["recompute"], node.meta["ac_graph_id"] = CheckpointPolicy.MUST_RECOMPUTE, 0
            found += 1
    return found


def _backward(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that depend on tangents."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if (node.op == "placeholder" and "tangents" in node.name) or found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def _source(node: fx.Node) -> fx.Node:
    """What a node is a view of."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        node = node.all_input_nodes[0]
    return node


def _is_read_otherwise(node: fx.Node, joined: fx.Node, backward: set[fx.Node]) -> bool:
    """Whether the backward reads a node, or what maps make of it, but for what is `joined`."""
    seen, pending = {joined}, [node]
    while pending:
        for user in pending.pop().users:
            if user in backward:
                return True
            if user not in seen and user.op == "call_function" and _is_map(user):
                seen.add(user)
                pending.append(user)
    return False


def _elements(node: fx.Node) -> int:
    value = node.meta.get("val")
    shape = getattr(value, "shape", ())
    return math.prod(size if isinstance(size, int) else 0 for size in shape)


def _is_wide(node: fx.Node) -> bool:
    size = _elements(node)
    return size >= LEAST and size >= TIMES_LARGER * sum(map(_elements, node.all_input_nodes))


def _until_product(scores: fx.Node, backward: set[fx.Node]) -> list[fx.Node] | None:
    """What is made of scores until products take it, and these; None where none does, or something else becomes of them."""
    size, found, pending, ended = _elements(scores), dict[fx.Node, None](), [scores], False
    while pending:
        node = pending.pop()
        for user in node.users:
            if user.op == "output":
                return None
            if user in backward or user in found:
                continue
            found[user] = None
            if user.target in PRODUCTS:
                ended = True
                found.update(dict.fromkeys(_maps_after(user, backward)))
            elif _elements(user) not in (0, size) and size % max(1, _elements(user)):
                return None
            else:
                pending.append(user)
    return list(found) if ended and any(one.target in EXPONENTIALS for one in found) else None


def _maps_before(node: fx.Node) -> list[fx.Node]:
    """Maps and views of what a product's factors are made of, back to what is no larger work than these."""
    found: dict[fx.Node, None] = {}
    pending = list(node.all_input_nodes)
    while pending:
        one = pending.pop()
        if one in found or one.op != "call_function" or not _is_map(one):
            continue
        found[one] = None
        pending += one.all_input_nodes
    return list(found)


def _maps_after(node: fx.Node, backward: set[fx.Node]) -> list[fx.Node]:
    """Maps and views of a product's result: its gradient reads it, too, and would have it without the product."""
    found: dict[fx.Node, None] = {}
    pending = [node]
    while pending:
        for user in pending.pop().users:
            if user not in backward and user not in found and user.op == "call_function" and _is_map(user):
                found[user] = None
                pending.append(user)
    return list(found)


def _is_map(node: fx.Node) -> bool:
    """Whether a node moves or scales the elements of one tensor."""
    tensors = [other for other in node.all_input_nodes if _elements(other) > 1]
    target = node.target
    if len(tensors) != 1 or not isinstance(target, torch._ops.OpOverload):
        return False
    return target.is_view or torch.Tag.pointwise in target.tags or target in (aten.clone.default, aten._unsafe_view.default)
