"""Control flow of exported programs, `torch.cond`, `map` and `scan`, written out: a program has tasks, and no branches.

- `cond`: both branches are computed, and their results selected (if-conversion, as in Allen et al., "Conversion of control
  dependence to data dependence"). Branches are pure; one that reads or writes by index is left, since it might be out of range
  exactly where the branch is not taken.
- `map`: the body is batched by `torch.vmap`.
- `scan`: the body once for each step, up to `MOST_STEPS`.
- what is run with or without gradients, or without autocast, is what it is.

`while_loop` has no number of rounds that is known, and is left for `prepare.lift_attributes` to name.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from kitsune_mlir.errors import FrontendError
from kitsune_mlir.frontend.prepare import call_with_value
from kitsune_mlir.frontend.source import origin_of_node

__all__ = ["MOST_STEPS", "write_out_control"]

MOST_STEPS = 256
"""Steps of a `scan` that are written out."""

aten = torch.ops.aten


def write_out_control(program: ExportedProgram) -> None:
    """Replace `cond`, `map` and `scan` in a program, and in what is inside of them.

    Raises:
        FrontendError: a branch reads or writes by index, a scan has more than `MOST_STEPS` steps, or branches differ in what is
            no tensor; names the operator and its source line.
    """
    module = program.graph_module
    writers = {
        "cond": _cond,
        "map_impl": _map,
        "scan": _scan,
        "wrap_with_set_grad_enabled": lambda module, node: _inlined(module, _body(module, node.args[1]), node.args[2:]),
        "wrap_with_autocast": lambda module, node: _inlined(module, _body(module, node.args[4]), node.args[5:]),
    }
    changed = False
    while found := [node for node in module.graph.nodes if _name(node) in writers and not _casts(node)]:
        for node in found:
            with module.graph.inserting_before(node):
                results = writers[_name(node)](module, node)
            _replace(program, node, results)
        changed = True
    if changed:
        module.graph.eliminate_dead_code()
        module.delete_all_unused_submodules()
        module.recompile()


def _name(node: fx.Node) -> str:
    return node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""


def _casts(node: fx.Node) -> bool:
    """Whether operands of what a node holds are cast to types that depend on the operator."""
    return _name(node) == "wrap_with_autocast" and bool(node.args[2])


def _cond(module: fx.GraphModule, node: fx.Node) -> list[Any]:
    predicate, *branches = node.args[:3]
    operands = node.args[3] if len(node.args) > 3 else ()
    bodies = [_body(module, branch) for branch in branches]
    if not isinstance(predicate, fx.Node):
        return _inlined(module, bodies[0 if predicate else 1], operands)
    for body in bodies:
        for one in _calls(body):
            if isinstance(one.target, torch._ops.OpOverload) and _by_index(one.target):
                raise _error(
                    node,
                    f"a branch of 'cond' calls '{one.target}': both branches are computed, and an index might be out of range"
                    " where its branch is not taken",
                )
    trace = node.meta.get("stack_trace") or ""
    scalar = call_with_value(aten.reshape.default, predicate, [], stack_trace=trace)
    results = []
    for first, second in zip(*(_inlined(module, body, operands) for body in bodies), strict=True):
        if not (isinstance(first, fx.Node) and isinstance(second, fx.Node)):
            if first is not second:
                raise _error(node, f"a result of 'cond' is no tensor: {first!r} or {second!r}")
            results.append(first)
        else:
            results.append(
                call_with_value(aten.where.self, scalar, first, second, stack_trace=node.meta.get("stack_trace") or "")
            )
    return results


def _by_index(target: torch._ops.OpOverload) -> bool:
    return any(argument.name in ("index", "indices") for argument in target._schema.arguments)


def _calls(module: fx.GraphModule) -> list[fx.Node]:
    """The calls of a graph and of those inside of it."""
    inside = [m for m in module.modules() if isinstance(m, fx.GraphModule)]
    return [node for m in inside for node in m.graph.nodes if node.op == "call_function"]


def _map(module: fx.GraphModule, node: fx.Node) -> list[Any]:
    body, mapped, rest = _body(module, node.args[0]), list(node.args[1]), list(node.args[2])  # type: ignore[arg-type]
    values = [n.meta["val"] if isinstance(n, fx.Node) else n for n in (*mapped, *rest)]
    batched = torch.vmap(body, in_dims=tuple(0 if n < len(mapped) else None for n in range(len(values))))
    with values[0].fake_mode:
        graph_module = make_fx(batched)(*values)
    return _inlined(module, graph_module, (*mapped, *rest))


def _scan(module: fx.GraphModule, node: fx.Node) -> list[Any]:
    body, carried, scanned = _body(module, node.args[0]), list(node.args[1]), list(node.args[2])  # type: ignore[arg-type]
    rest = list(node.args[3]) if len(node.args) > 3 else []  # type: ignore[arg-type]
    steps = scanned[0].meta["val"].shape[0]
    if not isinstance(steps, int) or steps > MOST_STEPS:
        raise _error(node, f"'scan' has {steps} steps, and up to {MOST_STEPS} are written out")
    count, outputs = len(carried), list[list[Any]]()
    for step in range(steps):
        rows = [call_with_value(aten.select.int, each, 0, step) for each in scanned]
        found = _inlined(module, body, (*carried, *rows, *rest))
        carried, made = found[:count], found[count:]
        outputs.append(made)
    return [*carried, *(_stacked(list(each)) for each in zip(*outputs, strict=True))]


def _stacked(rows: Sequence[fx.Node]) -> fx.Node:
    joined = [call_with_value(aten.unsqueeze.default, row, 0) for row in rows]
    node = joined[0].graph.call_function(aten.cat.default, (joined,))
    value = joined[0].meta["val"]
    with value.fake_mode:
        node.meta["val"] = torch.cat([each.meta["val"] for each in joined])
    return node


def _body(module: fx.GraphModule, holder: Any) -> fx.GraphModule:
    body = module.get_submodule(str(holder.target))
    assert isinstance(body, fx.GraphModule)
    return body


def _inlined(module: fx.GraphModule, body: fx.GraphModule, operands: Any) -> list[Any]:
    """Copy a body's nodes to the insertion point of a module's graph; what it returns."""
    given = iter(operands)
    known: dict[fx.Node, Any] = {}
    for node in body.graph.nodes:
        if node.op == "placeholder":
            known[node] = next(given)
        elif node.op == "get_attr":
            known[node] = _attribute(module, body, node)
        elif node.op == "output":
            return [known[n] if isinstance(n, fx.Node) else n for n in tree_leaves(node.args[0], is_leaf=lambda n: n is None)]
        else:
            known[node] = module.graph.node_copy(node, lambda n: known[n])
    return []


def _attribute(module: fx.GraphModule, body: fx.GraphModule, node: fx.Node) -> fx.Node:
    """A tensor or a submodule that a body holds, held by the module."""
    value: Any = body
    for part in str(node.target).split("."):
        value = getattr(value, part)
    number = 0
    while hasattr(module, f"inlined_{number}"):
        number += 1
    if isinstance(value, torch.Tensor):
        module.register_buffer(f"inlined_{number}", value)
    else:
        setattr(module, f"inlined_{number}", value)
    copied = module.graph.get_attr(f"inlined_{number}")
    copied.meta = dict(node.meta)
    return copied


def _replace(program: ExportedProgram, node: fx.Node, results: Sequence[Any]) -> None:
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise _error(node, f"'{_name(node)}' is used whole by '{user.name}'")
        result = results[user.args[1]]  # type: ignore[index]
        user.replace_all_uses_with(result)
        program.graph_signature.replace_all_uses(user.name, result.name)
        program.graph_module.graph.erase_node(user)
    program.graph_module.graph.erase_node(node)


def _error(node: fx.Node, message: str) -> FrontendError:
    return FrontendError(message, operator=_name(node), location=origin_of_node(node))
