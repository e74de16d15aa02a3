"""PyTorch's decomposition of a program with what is the same for every program found out once."""

from __future__ import annotations

import threading

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from kitsune_mlir.frontend.decompositions import decomposition_table
from kitsune_mlir.frontend.torch_decompositions import run_decompositions, traced

aten = torch.ops.aten


def exported(function, *args):
    module = torch.nn.Module()
    module.forward = function  # type: ignore[method-assign]
    return torch.export.export(module, args, strict=False)


def targets(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def composed(x, w):
    out = torch.nn.functional.linear(x, w)
    out[1:].add_(torch.nn.functional.pad(out, (0, 1))[1:, :5])  # in place, through a view
    return torch.linalg.vector_norm(torch.softmax(out, -1)), out.to(torch.bfloat16).sum(0)


def test_the_program_is_the_one_that_torch_makes_and_kernels_are_put_back():
    args = torch.randn(7, 3), torch.randn(5, 3)
    ops = [aten.linear.default, aten.matmul.default, aten.pad.default, aten.conv2d.default]
    before = [dict(op.py_kernels) for op in ops]
    for _ in range(2):  # the second time, from what is kept
        ours = run_decompositions(exported(composed, *args), decomposition_table())
        assert [dict(op.py_kernels) for op in ops] == before
    torchs = exported(composed, *args).run_decompositions(dict(decomposition_table()))
    assert targets(ours) == targets(torchs)
    assert str(ours.graph_signature) == str(torchs.graph_signature)
    for found, wanted in zip(ours.module()(*args), composed(*args), strict=True):
        torch.testing.assert_close(found, wanted)


def test_threads_do_not_put_back_what_others_have_changed():
    ops = [aten.linear.default, aten.matmul.default, aten.pad.default]
    before = [dict(op.py_kernels) for op in ops]
    mode, table, found = FakeTensorMode(), decomposition_table(), []
    with mode:
        args = torch.empty(7, 3), torch.empty(5, 3)

    def trace() -> None:
        for _ in range(4):
            found.append(len(traced(aten.linear.default, args, table, mode).graph.nodes))

    threads = [threading.Thread(target=trace) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 12
    assert [dict(op.py_kernels) for op in ops] == before


def twice(x):
    return torch.ops.kitsune_test_later.twice(x)


def test_an_operator_that_is_registered_later_is_found():
    x, table = torch.randn(3), decomposition_table()
    run_decompositions(exported(lambda x: torch.relu(x), x), table)
    with torch.library._scoped_library("kitsune_test_later", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        found = targets(run_decompositions(exported(twice, x), table))
        assert found == targets(exported(twice, x).run_decompositions(dict(table)))
