"""torch.compile(backend="kitsune"): weights that change, sizes and numbers that change, inputs that are written to.

Everything is compared with eager on fresh inputs.
"""

import copy
import gc
import threading

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.graph_options import options_of_backend
from test.unit.test_dynamo_graphs import whole

R = torch.randn


def test_weights_are_kept_in_step(reports):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    compiled = torch.compile(model, backend="kitsune")
    x = R(2, 3, 12, 12)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
            for tensor in (*model.parameters(), *model.buffers()):
                if tensor.is_floating_point():
                    tensor.mul_(1.25)
        model[0].weight.data = R(8, 3, 3, 3)  # another memory for the same parameter
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
        model[0].weight = nn.Parameter(R(8, 3, 3, 3))
        torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    (program,) = reports[0].programs
    assert any(weight.recipe for weight in program.signature.weights), "the norm is folded into the convolution"
    assert len(program.summary["stages"]) <= 2


def test_layers_of_one_class_share_a_program_and_not_their_weights(reports):
    layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
    layer = torch.compile(lambda layer, x: torch.relu(layer(x)), backend="kitsune")
    with torch.no_grad():
        for _ in range(2):
            x = y = R(3, 5)
            for each in layers:
                x, y = layer(each, x), torch.relu(each(y))
            torch.testing.assert_close(x, y)
    assert len(reports) == 1


def test_threads_call_with_their_own_weights(reports):
    step = torch.compile(lambda layer, x: torch.relu(layer(x)), backend="kitsune")
    layers, x, wrong = [nn.Linear(33, 33) for _ in range(4)], R(5, 33), []
    with torch.no_grad():
        for layer in layers:
            step(layer, x)
        want = [torch.relu(layer(x)) for layer in layers]

    def call(n):
        with torch.no_grad():
            wrong.extend(n for _ in range(200) if not torch.allclose(step(layers[n], x), want[n], atol=1e-5))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(reports) == 1


def test_weights_are_let_go(reports):
    step = torch.compile(lambda layer, x: layer(x), backend="kitsune")
    with torch.no_grad():
        first, second, x = nn.Linear(5, 5), nn.Linear(5, 5), R(3, 5)
        step(first, x)
        gone, moved = StorageWeakRef(first.weight.untyped_storage()), StorageWeakRef(second.weight.untyped_storage())
        torch.testing.assert_close(step(second, x), second(x))
        del first
        second.weight.data = R(5, 5)
        for layer in (nn.Linear(5, 5), second):
            torch.testing.assert_close(step(layer, x), layer(x))
    gc.collect()
    assert gone.expired() and moved.expired()


def test_weights_are_swapped(reports):
    model, x = nn.Linear(4, 4), R(2, 4)
    step = torch.compile(model, backend="kitsune")
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(step(x), model(x))
            torch.utils.swap_tensors(model.weight, nn.Parameter(R(4, 4)))
    assert whole(reports)


@pytest.mark.rotated(1)
@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_change(dynamic, reports):
    model = nn.Sequential(nn.Linear(4, 7), nn.Softmax(-1))
    compiled = torch.compile(model, backend="kitsune", dynamic=dynamic)
    with torch.no_grad():
        for rows in (3, 1, 129, 7, 3):
            x = R(rows, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert whole(reports) and len(reports) <= 5


def test_sizes_that_change_in_training(reports):
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh())
    compiled = torch.compile(model, backend="kitsune")
    for rows in (3, 5, 129):
        x = R(rows, 4, requires_grad=True)
        (got,) = torch.autograd.grad(compiled(x).sum(), x)
        (want,) = torch.autograd.grad(model(x).sum(), x)
        torch.testing.assert_close(got, want)
    assert whole(reports)


@pytest.mark.parametrize(
    "function, values", [(lambda x, a: x * a + 1, (1.5, 2.5, 3.5, 1.5)), (lambda x, a: x[:a] + a, (2, 5, 3, 2))]
)
def test_numbers_that_change(function, values, reports):
    compiled = torch.compile(function, backend="kitsune")
    with torch.no_grad():
        for value in values:
            x = R(9, 4)
            torch.testing.assert_close(compiled(x, value), function(x, value))
    assert all(report.programs for report in reports)


def test_more_sizes_than_are_compiled_for_run_in_pytorch(reports, monkeypatch):
    from kitsune_mlir.dynamo import shapes

    monkeypatch.setattr(shapes, "MOST_PROGRAMS", 2)
    options = {"pad_rows": False}
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend="kitsune", dynamic=True, options=options)
    with torch.no_grad():
        for rows in range(2, 9):
            x = R(rows, 4)
            torch.testing.assert_close(compiled(x), torch.relu(x) + 1)
    assert len(reports) == 2


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 8, 4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x, place):
        self.rows.index_copy_(1, place, self.layer(x))
        return self.rows.sum(1)


def test_a_cache_is_written_in_place(reports):
    model = Cache()
    beside, compiled = copy.deepcopy(model), torch.compile(model, backend="kitsune")
    with torch.no_grad():
        for place in range(3):
            x, at = R(2, 1, 4), torch.tensor([place])
            torch.testing.assert_close(compiled(x, at), beside(x, at))
            torch.testing.assert_close(model.rows, beside.rows)
    (program,) = reports[0].programs
    assert [output.in_place for output in program.signature.outputs if output.mutates] == [True]


WRITES = {
    "a slice": (lambda cache, x: cache[:, 2:3].copy_(x), True),
    "a slice of a slice": (lambda cache, x: cache[1:, :, 1:3].copy_(x[:1, :, 1:3]), True),
    "one": (lambda cache, x: cache[:, 3].copy_(x[:, 0]), True),
    "with steps": (lambda cache, x: cache[:, ::4].copy_(x), True),
    "a number": (lambda cache, x: cache[:, 1:4].fill_(2), None),
    "other type": (lambda cache, x: cache[:, 2:3].copy_(x.double()), True),
    "read before": (lambda cache, x: cache[:, 2:3].copy_(x + cache[:, 4:5]), None),
    "two": (lambda cache, x: (cache[:, 2:3].copy_(x), cache[:, 5:6].copy_(x * 2)), None),
    "all": (lambda cache, x: cache.copy_(x.expand(cache.shape)), None),
}


@pytest.mark.rotated(4)
@pytest.mark.parametrize("name", WRITES)
def test_slices_of_inputs_are_written_where_they_lie(name, reports):
    write, in_place = WRITES[name]

    def function(cache, x):
        write(cache, torch.tanh(x))
        return cache.sum(1)

    compiled = torch.compile(function, backend="kitsune")
    with torch.no_grad():
        for _ in range(2):
            own, x = R(2, 8, 4), R(2, 1, 4)
            theirs = own.clone()
            torch.testing.assert_close(compiled(own, x), function(theirs, x))
            torch.testing.assert_close(own, theirs)
    (program,) = reports[0].programs
    rows = [output.in_place for output in program.signature.outputs if output.mutates]
    assert in_place is None or rows == [in_place]


@pytest.mark.parametrize("dynamic", [None, True])
def test_tangents_are_taken_along(dynamic):
    """Forward-mode derivatives of a compiled function are eager's."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    step, x, tangent = torch.compile(model, backend="kitsune", dynamic=dynamic), R(5, 4), R(5, 4)
    with torch.no_grad():
        step(x)
        found = []
        for function in (step, model):
            with forward_ad.dual_level():
                found.append(forward_ad.unpack_dual(function(forward_ad.make_dual(x, tangent))))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("guard", [False, True])
def test_nested_tensors(guard, reports):
    """A nested tensor's sizes have a symbol that is no number."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    step = torch.compile(model, backend="kitsune", options={"guard": guard, "cache": False})
    with torch.no_grad():
        for lengths in ((2, 5, 1), (3, 1), (2, 5, 1)):
            x = torch.nested.nested_tensor([R(n, 4) for n in lengths], layout=torch.jagged)
            got, want = step(x), model(x)
            torch.testing.assert_close(got.values(), want.values())
            assert torch.equal(got.offsets(), x.offsets()) and got.shape == want.shape
    assert reports and all(report.programs for report in reports)


def test_weights_in_other_strides():
    """Not all versions of Dynamo look at strides of parameters, which results may have from them."""
    model, seen = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), []

    def backend(gm, inputs):
        run = compiled_graph(gm, inputs, *options_of_backend(None, None))
        return lambda *args: seen.append((run, args)) or run(*args)

    with torch.no_grad():
        torch.compile(model, backend=backend, dynamic=False)(R(2, 3, 8, 8))
        run, args = seen[0]
        moved = [nn.Parameter(a.to(memory_format=torch.channels_last)) if a.dim() == 4 and a.shape[0] == 4 else a for a in args]
        want = copy.deepcopy(model).to(memory_format=torch.channels_last)(args[-1])
        for given in (moved, args, moved):
            (got,) = run(*given)
            torch.testing.assert_close(got, want)
            assert got.stride() == (want.stride() if given is moved else want.contiguous().stride())


def test_other_devices():
    step, x = torch.compile(lambda x: x * 2 + 1, backend="kitsune"), R(3)
    torch.testing.assert_close(step(x), x * 2 + 1)
    assert step(x.to("meta")).device.type == "meta"
