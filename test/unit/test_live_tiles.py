"""Programs for up to N rows, called for n: valid rows are right, whatever the others hold; tiles of the others are left out."""

import json
import random

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from kitsune_mlir.cache.compiled import kept_or_compiled
from kitsune_mlir.frontend import traced_model
from kitsune_mlir.frontend.aten import traced_table
from kitsune_mlir.frontend.scatter_rows import counted, scatter_rows
from kitsune_mlir.frontend.valid_rows import valid_rows, without_valid_rows
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import Options
from kitsune_mlir.pipeline import compile_imported
from kitsune_mlir.runtime.host_code import CutTask
from kitsune_mlir.runtime.host_executor import _Trials
from kitsune_mlir.runtime.host_runner import HostRunner
from test.rotation import turn

N = 200
R = torch.randn


def count_of(n):
    return torch.tensor(n, dtype=torch.int64)


WEIGHTS = [R(32, 48) / 6, R(48, 40) / 6, R(40, 24) / 6]


def compiled(function, *args):
    """A function of weights and arguments, for those."""
    graph = make_fx(lambda w1, w2, w3, *given: function((w1, w2, w3), *given), traced_table(late=False), "fake")(
        *WEIGHTS, *args
    )
    output = next(iter(graph.graph.find_nodes(op="output")))
    output.args = (tuple(output.args[0]) if isinstance(output.args[0], list | tuple) else (output.args[0],),)
    options = Options(cache=False)
    return kept_or_compiled(lambda: traced_model(graph), find_target("host"), options, compile_imported)


def cut_of(program):
    return HostRunner.read_code(program.artifacts).cut


def check(function, args, poisoned, sizes, rows=N, valid=None):
    """Compares the valid rows of every output, in calls whose inputs `poisoned` hold NaN behind the valid rows."""
    program = compiled(function, *args, count_of(rows))
    for n in sizes:
        given = [arg.clone() if k in poisoned else arg for k, arg in enumerate(args)]
        wide = [arg.double() if arg.is_floating_point() else arg for arg in given]
        want = function([w.double() for w in WEIGHTS], *wide, count_of(n))
        for k in poisoned:
            given[k][n:] = float("nan")
        got = program(*WEIGHTS, *given, count_of(n))
        for number, (g, w) in enumerate(zip(got, want, strict=True)):
            dim = valid[number] if valid else 0
            end = w.shape[dim] * n // rows if dim is not None else w.shape[0]
            dim = dim or 0
            torch.testing.assert_close(g.narrow(dim, 0, end).double(), w.narrow(dim, 0, end), atol=1e-4, rtol=1e-4)
    return program


SIZES = (1, 7, 63, 64, 65, 129, N - 1, N, *random.Random(turn()).sample(range(1, N), 3))


def layers(w, x, count):
    return (valid_rows(torch.tanh(F.gelu(x @ w[0]) @ w[1]) @ w[2], count, N),)


def test_layers():
    program = check(layers, [R(N, 32)], [0], SIZES)
    cut = cut_of(program)
    assert cut and all(task.left_out({task.counts[0]: 1}) == task.extent - 1 for task in cut)
    assert all(task.left_out({task.counts[0]: N}) == 0 for task in cut)


def test_counts_beyond_the_rows_are_all_of_them_or_none():
    task = CutTask(33, 3, (1,), ((0, 64, 128),))
    assert [task.left_out({1: n}) for n in (-5, 0, 1, 64, 65, 128, 129, 10**12)] == [3, 3, 2, 2, 1, 1, 0, 0]


def test_rows_of_several_elements_each():
    """Samples of five tokens, merged for the products, softmax over each sample's."""

    def function(w, x, count):
        h = torch.relu(x.reshape(-1, 32) @ w[0]).view(N, 5, 48)
        attended = torch.softmax(h @ h.transpose(1, 2), -1) @ h
        return valid_rows(attended, count, N), valid_rows((attended @ w[1]).reshape(-1, 40), count, N)

    assert cut_of(check(function, [R(N, 5, 32)], [0], (1, 3, 64, 150, N)))


def test_a_result_that_is_wanted_whole():
    """Nothing is left out of what it is made of; what only the other one needs is."""

    def function(w, x, count):
        h = torch.tanh(x @ w[0])
        return h, valid_rows((h @ w[1]).softmax(-1), count, N)

    program = compiled(function, R(N, 32), count_of(N))
    x = R(N, 32)
    got, want = program(*WEIGHTS, x, count_of(3)), function(WEIGHTS, x, count_of(3))
    torch.testing.assert_close(got[0], want[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got[1][:3], want[1][:3], atol=1e-4, rtol=1e-4)


def test_sums_over_rows_need_all_of_them():
    def function(w, x, count):
        h = torch.tanh(x @ w[0])
        return (valid_rows(h - h.mean(0), count, N),)

    program = compiled(function, R(N, 32), count_of(N))
    x = R(N, 32)
    torch.testing.assert_close(
        program(*WEIGHTS, x, count_of(5))[0][:5], function(WEIGHTS, x, count_of(5))[0][:5], atol=1e-4, rtol=1e-4
    )


def test_rows_that_others_read_by_index():
    def function(w, x, index, count):
        h = torch.tanh(x @ w[0])
        return (valid_rows(h[index] @ w[1], count, N),)

    index = torch.randint(0, N, (N,))
    check(function, [R(N, 32), index], [], (1, 64, 100, N))


def test_two_counts():
    def function(w, x, y, one, other):
        return valid_rows(torch.exp(x @ w[0]) @ w[1], one, N), valid_rows(torch.tanh(y @ w[0]), other, 77)

    program = compiled(function, R(N, 32), R(77, 32), count_of(N), count_of(77))
    for n, m in ((1, 77), (N, 1), (70, 65), (N, 77)):
        x, y = R(N, 32), R(77, 32)
        want = function(WEIGHTS, x, y, count_of(n), count_of(m))
        x[n:], y[m:] = float("nan"), float("nan")
        got = program(*WEIGHTS, x, y, count_of(n), count_of(m))
        torch.testing.assert_close(got[0][:n], want[0][:n], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(got[1][:m], want[1][:m], atol=1e-4, rtol=1e-4)
    assert len({count for task in cut_of(program) for count in task.counts}) == 2


@pytest.mark.parametrize(
    ("reduce", "dtype"), [("sum", torch.float32), ("prod", torch.float32), ("amax", torch.float32), ("sum", torch.bfloat16)]
)
def test_rows_that_are_added_end_at_their_count(reduce, dtype):
    """What is behind the count is not even made: it is NaN, and its places are none."""

    def function(w, x, where, edges):
        rows = torch.arange(N) < edges
        neutral = torch.full((), -9.0 if reduce == "amax" else float(reduce == "prod"), dtype=dtype)
        sent = torch.where(rows[:, None], torch.tanh(x @ w[0].to(x.dtype)).to(dtype), neutral)
        start = torch.full((9, 48), float(reduce == "prod"), dtype=dtype)
        with counted(edges, N):
            return (scatter_rows(start, where.clamp(0, 8), sent, reduce),)

    program = compiled(function, R(N, 32), torch.randint(9, (N,)), count_of(N))
    cut = cut_of(program)
    assert cut and all(task.left_out({task.counts[0]: N}) == 0 for task in cut)
    for n in (0, *SIZES, N + 5, -1):
        x, where = R(N, 32), torch.randint(9, (N,))
        want = function([w.double() for w in WEIGHTS], x.double(), where, count_of(n))[0]
        x[max(n, 0) :] = float("nan")
        where[max(n, 0) :] = 1 << 40
        got = program(*WEIGHTS, x, where, count_of(n))[0]
        tight = 1e-4 if dtype == torch.float32 else 6e-2
        torch.testing.assert_close(got.double(), want.double(), atol=tight, rtol=tight)


def test_sums_of_other_rows_than_are_counted_read_all():
    """As many rows as are counted it has to be."""

    def function(w, x, where, count):
        with counted(count, N):
            return (scatter_rows(torch.zeros(9, 32), where[:50], x[:50], "sum"),)

    program = compiled(function, R(N, 32), torch.randint(9, (N,)), count_of(N))
    x, where = R(N, 32), torch.randint(9, (N,))
    got, want = program(*WEIGHTS, x, where, count_of(3)), function(WEIGHTS, x, where, count_of(3))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, atol=1e-4, rtol=1e-4)
    assert not cut_of(program)


def test_results_in_another_order():
    """Rows that are not outermost in memory are all made; where they are, the order of the others does not matter."""

    def function(w, x, count):
        h = torch.tanh(x @ w[0]).view(N, 6, 8)
        return valid_rows(h, count, N).permute(0, 2, 1), valid_rows(h * 2, count, N).permute(1, 0, 2)

    check(function, [R(N, 32)], [0], (1, 65, N), valid=[0, 1])


@pytest.mark.parametrize("shape", [(1, N, 32), (N, 1, 32), (N, 32)])
def test_dimensions_of_one(shape):
    def function(w, x, count):
        return (valid_rows(torch.tanh(x @ w[0]) + 1, count, N),)

    dim = shape.index(N)
    program = compiled(function, R(shape), count_of(N))
    x = R(shape)
    got, want = program(*WEIGHTS, x, count_of(9))[0], function(WEIGHTS, x, count_of(9))[0]
    torch.testing.assert_close(got.narrow(dim, 0, 9), want.narrow(dim, 0, 9), atol=1e-4, rtol=1e-4)
    assert cut_of(program)


def test_in_pytorch_it_changes_nothing():
    graph = make_fx(lambda x, count: layers(WEIGHTS, x, count))(R(N, 32), count_of(3))
    x = R(N, 32)
    want = layers(WEIGHTS, x, count_of(3))
    torch.testing.assert_close(graph(x, count_of(3)), want)
    assert without_valid_rows(graph.graph) and not without_valid_rows(graph.graph)
    graph.recompile()
    torch.testing.assert_close(graph(x, count_of(3)), want)


@pytest.mark.rotated(4)
@pytest.mark.parametrize(
    "change",
    [
        {"word": 5},
        {"extent": 3},
        {"counts": (0,)},
        {"counts": (99,)},
        {"counts": ()},
        {"thresholds": ((0,),)},
        {"thresholds": ()},
        {"thresholds": (("a",) * 200,)},
    ],
)
def test_figures_of_a_package_that_are_none(change):
    program = compiled(layers, R(N, 32), count_of(N))
    facts = json.loads(program.artifacts["host.json"])
    assert HostRunner.read_code(program.artifacts).cut
    facts["cut"][0].update(change)
    with pytest.raises(ValueError, match="cut"):
        HostRunner.read_code({**program.artifacts, "host.json": json.dumps(facts).encode()})


def test_calls_that_were_tried_at_the_same_time():
    """More trials than are asked for, which threads may make, settle it as well."""
    trials = _Trials(2)
    for _ in range(7):
        trials.judge(1.0, together=False)
    assert trials.over and trials.together
