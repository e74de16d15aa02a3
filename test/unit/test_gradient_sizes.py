"""Programs with gradients for sizes that change: as eager's for each size, before and after they were in a file."""

import copy
import json
import zipfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.runtime.plain import record
from kitsune_mlir.sized.stored import StoredDraw, StoredSizes, _check_draw, check_sizes
from test.unit.test_gradient_program import same_weights, trained

R = torch.randn


class Classes(nn.Module):
    """Scores of samples, and their loss, a mean over samples."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, x, y):
        scores = self.inner(x)
        return {"loss": F.cross_entropy(scores, y), "scores": scores.t(), "samples": x.shape[0]}


def classes(n):
    return R(n, 6, requires_grad=True), torch.randint(0, 5, (n,))


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    path, model, samples = tmp_path_factory.mktemp("sizes") / "classes.kit", Classes(), Dim("samples", max=300)
    program = kitsune_mlir.compile(model, classes(5), gradients=True, dynamic={"x": {0: samples}, "y": {0: samples}})
    program.save(path, ir=False)
    return model, program, path


def test_every_size_in_range(sized):
    model, program, _ = sized
    beside = copy.deepcopy(model)
    words = [words for words, _ in program.compiled.programs()]
    for n in (3, 1, 129, 300, 2):
        trained(program, beside, *classes(n))
    same_weights(dict(model.state_dict(keep_vars=True)), beside)
    assert [words for words, _ in program.compiled.programs()] == words and len(words) == 2, "compiled at once"
    with pytest.raises(ArgumentError, match=r"'x' has 301 elements in dimension 0 \('samples'\); the program is for 1 to 300"):
        program(*classes(301))
    assert program.explain().startswith("samples: 1 to 300\n\nforward for") and "backward for" in program.explain()
    model.zero_grad()


def test_what_was_loaded_trains(sized):
    _, _, path = sized
    loaded, beside = kitsune_mlir.load(path), Classes()
    beside.load_state_dict({name: tensor.detach() for name, tensor in loaded.weights.items()})
    for n in (300, 7, 1):
        trained(loaded, beside, *classes(n))
    same_weights(loaded.weights, beside)
    with torch.no_grad():
        assert not loaded(*classes(4))["loss"].requires_grad


@pytest.mark.parametrize(
    "entry, value",
    [("ranks", [2]), ("ranks", [None] * 99), ("names", ["no"]), ("places", [])]
    + [("places", [{"symbol": "s0", "input": 0, "dim": 7, "times": 1}]), ("padded", [])],
)
def test_a_damaged_file(sized, entry, value):
    _, _, path = sized
    with zipfile.ZipFile(path) as file:
        sizes = json.loads(file.read("manifest.json"))["sizes"]
    check_sizes(record(StoredSizes, sizes, "it"))
    known = sizes["backward"]["known"]
    if entry == "padded":
        known["padded"][0]["taken"] = [99]
    else:
        known[entry] = value
    with pytest.raises(ValueError, match=r"\w"):
        check_sizes(record(StoredSizes, sizes, "it"))


class Turned(nn.Module):
    """Where a row goes depends on how many there are."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x).flip(0)


def test_rows_that_are_not_independent_have_a_program_for_each_size(tmp_path):
    model, beside = Turned(), Turned()
    beside.load_state_dict(model.state_dict())
    program = kitsune_mlir.compile(model, (R(5, 4),), gradients=True, dynamic={"x": {0: Dim("n", max=64)}})
    for n in (5, 2):
        trained(program, beside, R(n, 4))
    same_weights(dict(model.state_dict(keep_vars=True)), beside)
    assert len(program.programs) == 4 and "A program for each size" in program.explain()
    program.save(tmp_path / "turned.kit", ir=False)
    loaded = kitsune_mlir.load(tmp_path / "turned.kit")
    beside.zero_grad()
    trained(loaded, beside, R(2, 4))
    same_weights(loaded.weights, beside)
    with pytest.raises(ArgumentError, match="no program for n = 3"):
        loaded(R(3, 4))


def test_random_numbers_are_those_of_eager_at_each_size(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3))
    program = kitsune_mlir.compile(model, (R(5, 4),), gradients=True, dynamic={"input": {0: Dim("n", max=64)}})
    program.save(tmp_path / "noisy.kit", ir=False)
    loaded = kitsune_mlir.load(tmp_path / "noisy.kit")
    for n in (3, 17, 64):
        x, grads = R(n, 4), []
        for function, weight in ((program, model[0].weight), (loaded, loaded.weights["0.weight"]), (model, model[0].weight)):
            torch.manual_seed(5)
            y = function(x)
            grads.append((y.detach(), *torch.autograd.grad(y.square().sum(), weight)))
        torch.testing.assert_close(grads[0], grads[2])
        torch.testing.assert_close(grads[1], grads[2])


@pytest.mark.parametrize(
    "entry, value", [("operator", "aten.mm.default"), ("dtype", "Tensor"), ("others", [[1]]), ("size", ["no"])]
)
def test_damaged_random_numbers(entry, value):
    draw = {"operator": "aten.bernoulli.p", "size": ["s0", 4], "stride": [4, 1], "dtype": "float32"}
    draw |= {"others": [0.5], "named": {}, "dtypes": {}, "which": None}
    _check_draw(record(StoredDraw, draw, "it"), ["s0"])
    with pytest.raises(ValueError, match=r"\w"):
        _check_draw(record(StoredDraw, {**draw, entry: value}, "it"), ["s0"])


class Tokens(nn.Module):
    """Each token of each sample for itself; gradients of weights are sums over both."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def test_samples_and_tokens_change_at_once():
    model, beside = Tokens(), Tokens()
    beside.load_state_dict(model.state_dict())
    sizes = {"x": {0: Dim("samples", max=16), 1: Dim("tokens", max=64)}}
    program = kitsune_mlir.compile(model, (R(2, 7, 4, requires_grad=True),), gradients=True, dynamic=sizes)
    words = [words for words, _ in program.compiled.programs()]
    for samples, tokens in ((3, 7), (16, 64), (1, 2), (5, 33)):
        trained(program, beside, R(samples, tokens, 4, requires_grad=True))
    same_weights(dict(model.state_dict(keep_vars=True)), beside)
    assert not program.compiled.why and [words for words, _ in program.compiled.programs()] == words
