"""Programs with gradients: as eager's, before and after they were in a file, and errors for what they cannot do."""

import copy
import json
import zipfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, FrontendError, PackageError, UnsupportedError
from kitsune_mlir.runtime.plain import record
from kitsune_mlir.sized.stored import StoredSizes, check_sizes

R = torch.randn


class Net(nn.Module):
    """A result, a truth value of it, None, one that lies otherwise; statistics of a norm, a frozen weight."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.first.bias.requires_grad_(False)

    def forward(self, x, scale=2.0):
        y = self.last(torch.relu(self.norm(self.first(x))))
        return {"y": y, "large": y > 0, "none": None, "turned": (y * scale).t()}


def trained(program, model, *args):
    """One backward of each, of a sum of what they give: outputs and gradients are alike; the arguments' are returned."""
    ours = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    theirs = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    got, want = program(*ours), model(*theirs)
    total = [0.0, 0.0]
    for g, w in zip(tree_leaves(got), tree_leaves(want), strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w
            continue
        assert g.dtype == w.dtype and g.stride() == w.stride() and g.requires_grad == w.requires_grad
        torch.testing.assert_close(g, w, atol=1e-4, rtol=1e-4)
        if w.requires_grad:
            total = [total[0] + (g * g).sum(), total[1] + (w * w).sum()]
    for each in total:
        each.backward()
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, torch.Tensor) and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)


def same_weights(weights, model):
    for name, tensor in model.state_dict(keep_vars=True).items():
        torch.testing.assert_close(weights[name].detach(), tensor.detach(), atol=1e-4, rtol=1e-4)
        if tensor.grad is not None:
            torch.testing.assert_close(weights[name].grad, tensor.grad, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("gradients") / "net.kit"
    model = Net()
    program = kitsune_mlir.compile(model, (R(5, 6, requires_grad=True),), gradients=True)
    program.save(path, ir=False)
    return model, program, path


def test_gradients_and_buffers_of_the_model(net):
    model, program, _ = net
    beside = copy.deepcopy(model)
    for _ in range(2):
        trained(program, beside, R(5, 6, requires_grad=True))
    same_weights(dict(model.state_dict(keep_vars=True)), beside)
    assert model.first.bias.grad is None and len(program.parameters()) == 5
    assert [words for words, _ in program.compiled.programs()] == ["forward", "backward"]
    model.zero_grad()


def test_training_what_was_loaded(net):
    _, _, path = net
    loaded, beside = kitsune_mlir.load(path), Net()
    beside.load_state_dict({name: tensor.detach() for name, tensor in loaded.weights.items()})
    ours = torch.optim.Adam(loaded.parameters(), 0.05)
    theirs = torch.optim.Adam([p for p in beside.parameters() if p.requires_grad], 0.05)
    for _ in range(3):
        trained(loaded, beside, R(5, 6))
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    same_weights(loaded.weights, beside)
    with torch.no_grad():
        assert not loaded(R(5, 6))["y"].requires_grad
    with pytest.raises(ArgumentError, match="input 'x' has 6 elements in dimension 0, compiled for 5"):
        loaded(R(6, 6))


def test_changed_weights_are_noticed(net):
    _, _, path = net
    loaded = kitsune_mlir.load(path)
    loss = loaded(R(5, 6))["y"].sum()
    with torch.no_grad():
        loaded.weights["last.weight"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_was_frozen_has_no_silent_gradient(net):
    model, program, _ = net
    other = program.with_weights({"first.bias": nn.Parameter(model.first.bias.detach().clone())})
    with pytest.raises(ArgumentError, match=r"weight 'first\.bias' needs gradients, which it did not"):
        other(R(5, 6))
    assert not program(R(5, 6))["large"].requires_grad  # itself as before


def test_twice_is_an_error(net):
    _, program, _ = net
    (grad,) = torch.autograd.grad(program(R(5, 6))["y"].sum(), program.weights["last.weight"], create_graph=True)
    with pytest.raises(UnsupportedError, match="no gradients of gradients"):
        (grad.sum() + program(R(5, 6))["y"].sum()).backward()


class Patches(nn.Module):
    """Places of an image, each by itself."""

    def __init__(self):
        super().__init__()
        self.conv, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 2)

    def forward(self, image):
        return self.inner(self.conv(image).flatten(2).transpose(1, 2))


def test_layouts_of_inputs():
    model = Patches()
    image = R(2, 3, 4, 5).contiguous(memory_format=torch.channels_last).requires_grad_()
    program, beside = kitsune_mlir.compile(model, (image,), gradients=True), copy.deepcopy(model)
    trained(program, beside, image)
    trained(program, beside, R(2, 3, 4, 5, requires_grad=True))
    same_weights(dict(model.state_dict(keep_vars=True)), beside)


@pytest.mark.parametrize(
    "entry, value",
    [("trained", [99]), ("outputs", 2), ("kept", 3), ("plain", [[7, None]]), ("run", 5)]
    + [("tangents", [{"number": 9, "size": [5, 3], "stride": [3, 1]}]), ("tangents", [])],
)
def test_a_damaged_file(net, entry, value):
    _, _, path = net
    with zipfile.ZipFile(path) as file:
        sizes = json.loads(file.read("manifest.json"))["sizes"]
    check_sizes(record(StoredSizes, sizes, "it"))
    sizes["backward"][entry] = value
    with pytest.raises(ValueError, match=r"\w"):
        check_sizes(record(StoredSizes, sizes, "it"))


def test_errors(net, tmp_path):
    with pytest.raises(ArgumentError, match="no parameter and no example argument needs gradients"):
        kitsune_mlir.compile(nn.ReLU(), (R(3),), gradients=True)
    with pytest.raises(FrontendError, match="output 1 is an input, or a view of one"):
        kitsune_mlir.compile(Views(), (R(4, 4),), gradients=True)


class Noisy(nn.Module):
    """Random numbers of several kinds."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        y = F.dropout(self.inner(x), 0.3)
        return y + torch.rand_like(y) + torch.randn(4) * torch.bernoulli(torch.full((4,), 0.5))


def test_random_numbers_are_those_of_eager(tmp_path):
    model, x = Noisy(), R(3, 4)
    program = kitsune_mlir.compile(model, (x,), gradients=True)
    program.save(tmp_path / "noisy.kit", ir=False)
    for one in (program, kitsune_mlir.load(tmp_path / "noisy.kit")):
        grads = []
        for function, weight in ((one, one.weights["inner.weight"]), (model, model.inner.weight)):
            torch.manual_seed(5)
            y = function(x)
            grads.append((y.detach(), *torch.autograd.grad(y.square().sum(), weight)))
        for got, want in zip(*grads, strict=True):
            torch.testing.assert_close(got, want)


def test_what_a_file_cannot_hold(tmp_path):
    program = kitsune_mlir.compile(nn.Sequential(nn.Linear(4, 4), nn.RReLU()), (R(3, 4),), gradients=True)
    with pytest.raises(PackageError, match="a package cannot hold"):
        program.save(tmp_path / "rrelu.kit")


class Views(nn.Module):
    """An output that is a view of the input."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x), x.t()
