"""What is computed from weights alone is computed once, and when a weight changes."""

from __future__ import annotations

import copy
import gc
import json
import math
import random

import pytest
import torch
from torch import nn

import kitsune_mlir
from bench.sweeps import Function
from kitsune_mlir.errors import ArgumentError, PackageError
from kitsune_mlir.frontend import import_model
from kitsune_mlir.runtime.derived import check_recipe, evaluate, sources_of
from kitsune_mlir.runtime.weights import WeightCopies, WeightCopy
from test.programs.packages import altered, edited, loaded


class Normed(nn.Module):
    """A transposed convolution, and a batch norm behind a convolution."""

    def __init__(self):
        super().__init__()
        self.up, self.conv, self.norm = nn.ConvTranspose2d(5, 7, 4, 2, 1), nn.Conv2d(7, 3, 3), nn.BatchNorm2d(3)
        self.norm.get_buffer("running_mean").normal_()
        self.norm.get_buffer("running_var").uniform_(0.5, 2)

    def forward(self, x):
        return self.norm(self.conv(self.up(x).relu()))


@pytest.fixture(scope="module")
def normed() -> tuple[Normed, torch.Tensor, kitsune_mlir.Program]:
    torch.manual_seed(0)
    model, x = Normed().eval(), torch.randn(2, 5, 9, 7)
    return model, x, kitsune_mlir.compile(model, (x,), target="host")


def close(program: kitsune_mlir.Program, model: nn.Module, x: torch.Tensor) -> None:
    want = copy.deepcopy(model).double()(x.double())
    assert (program(x) - want).norm() < 1e-5 * want.norm()


def test_derived_weights_follow_their_sources(normed):
    model, x, program = normed
    kinds = {w.name: w.kind for w in program.signature.weights}
    assert [name for name, kind in kinds.items() if kind != "derived"] == ["up.bias"] and len(kinds) == 4
    close(program, model, x)
    with torch.no_grad():
        model.up.weight.mul_(-1.5)
    close(program, model, x)
    model.norm.get_buffer("running_var").add_(1)
    close(program, model, x)
    model.load_state_dict(Normed().state_dict())
    close(program, model, x)


def test_packages_hold_the_sources(normed, tmp_path):
    model, x, program = normed
    assert set(program.weights) == {w.name for w in program.signature.supplied}
    for whole in (True, False):
        program.save(tmp_path / "model.kit", weights=whole)
        close(kitsune_mlir.load(tmp_path / "model.kit", None if whole else dict(model.state_dict())), model, x)


def test_a_model_without_values(tmp_path):
    with torch.device("meta"):
        model, x = Normed().eval(), torch.empty(2, 5, 9, 7)
    kitsune_mlir.compile(model, (x,), target="host").save(tmp_path / "model.kit", weights=False)
    real, x = Normed().eval(), torch.randn(2, 5, 9, 7)
    close(kitsune_mlir.load(tmp_path / "model.kit", dict(real.state_dict())), real, x)


def test_inference_tensors_are_read_at_every_call():
    with torch.inference_mode():
        model, x = Normed().eval(), torch.randn(2, 5, 9, 7)
        program = kitsune_mlir.compile(model, (x,), target="host")
        model.up.weight.mul_(2)
        close(program, model, x)


class Held(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(6, 8))
        self.narrow, self.run = nn.Parameter(torch.randn(6, 8).bfloat16()), run
        self.register_buffer("state", torch.randn(6, 8))

    def forward(self, x):
        return self.run(self, x)


def kinds(run, *shape: int) -> list[str]:
    model, x = Held(run), torch.randn(*shape or (5, 8))
    imported = import_model(model, (x,))
    program = kitsune_mlir.compile(model, (x,), target="host")
    want, found = copy.deepcopy(model)(x), program(x)
    for got, exact in zip(*((o,) if isinstance(o, torch.Tensor) else o for o in (found, want)), strict=True):
        torch.testing.assert_close(got, exact)
    return [a.kind for a in imported.weights]


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: x @ torch.cat([m.weight, m.other]).t(),
        lambda m, x: x @ (m.weight * m.other.exp()).t(),
        lambda m, x: x * m.weight.flip(0)[2],
        lambda m, x: x @ m.weight.to(torch.bfloat16).float().t(),
        lambda m, x: x + (m.weight @ m.other.t()).sum(),
        lambda m, x: x + m.weight.tril()[0] * torch.arange(8.0),
        lambda m, x: x @ torch.where(m.weight > 0, m.weight, m.other).t(),
        lambda m, x: x * m.weight[0].sigmoid() + x.relu() * (1 - m.weight[0].sigmoid()),  # one of another
        lambda m, x: (x @ (m.weight * m.other.exp()).t(), x, m.weight),  # and arguments are handed back
    ],
)  # fmt: skip
def test_what_leaves_the_program(run):
    assert "derived" in kinds(run)


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: x @ m.weight.t(),  # views
        lambda m, x: x + m.weight[1, 2:3],
        lambda m, x: x @ m.narrow.float().t(),  # a wider type
        lambda m, x: x @ (m.weight * x[0]).t(),  # an input
        lambda m, x: (x + m.weight[0, 0], m.weight * 2),  # a result: each caller has its own
        lambda m, x: x @ (m.state.add_(1) * 2).t(),  # the model changes it
    ],
)
def test_what_stays(run):
    assert "derived" not in kinds(run)


def test_what_would_take_much_memory_stays():
    def outer(m, x):
        return x + (m.weight.reshape(-1, 1, 1) * m.other.reshape(1, -1, 1) * torch.ones(1, 1, 64)).sum(0)[:5, :8]

    imported = import_model(Held(outer), (torch.randn(5, 8),))
    assert all(a.value.numel() <= 6 * 8 for a in imported.weights if a.kind != "derived")
    assert all(4 * math.prod(a.shape) <= 1 << 16 for a in imported.weights)


def test_recipes():
    flipped = ["aten.flip.default", [{"weight": "a"}, [0]], {}]
    recipe = json.dumps([flipped, ["aten.add.Tensor", [{"step": 0}, {"weight": "b"}], {}]])
    a, b = torch.randn(3), torch.randn(3)
    assert torch.equal(evaluate(recipe, {"a": a, "b": b}, "cpu"), a.flip(0) + b)
    assert sources_of(recipe) == ["a", "b"]
    check_recipe(recipe, {"a", "b"}.__contains__)


@pytest.mark.parametrize(
    "steps, message",
    [
        ([], "no steps"),
        ([["aten.flip.default", [{"weight": "a"}, [0]]]], "step 0 is no operator"),
        ([["aten.set_.source_Tensor", [{"weight": "a"}], {}]], "which no recipe has"),
        ([["aten.neg.default", [{"step": 0}], {}]], "reads step 0"),
        ([["aten.neg.default", [{"step": True}], {}]], "reads step True"),
        ([["aten.neg.default", [{"weight": "c"}], {}]], "the weight 'c', which there is not"),
    ],
)
def test_what_is_no_recipe(steps, message):
    with pytest.raises(ValueError, match=message):
        check_recipe(json.dumps(steps), {"a", "b"}.__contains__)


def test_a_package_with_a_wrong_recipe(normed, tmp_path):
    import dataclasses

    _, _, program = normed
    wrong = json.dumps([["aten.neg.default", [{"weight": "x"}], {}]])
    weights = tuple(dataclasses.replace(w, recipe=w.recipe and wrong) for w in program.signature.weights)
    program = copy.copy(program)
    program.signature = dataclasses.replace(program.signature, weights=weights)
    with pytest.raises(PackageError, match="the recipe of weight 'up.weight.derived': step 0 reads the weight 'x'"):
        program.save(tmp_path / "model.kit")


@pytest.mark.parametrize(
    "steps, message",
    [
        ([["aten.neg.default", [{"weight": "up.weight"}], {}]], "it gives torch.float32 .5, 7, 4, 4. for f32"),
        ([["aten.flip.default", [{"weight": "up.weight"}, [9]], {}]], "it cannot be computed: Dimension out of range"),
        ([["aten.flip.default", [{"weight": "up.weight"}], {}]], "it cannot be computed: aten::flip.. is missing value"),
        ([["aten.repeat.default", [{"weight": "up.weight"}, [1 << 30, 1, 1, 1]], {}]], "step 0 gives 2405181685760 bytes"),
        ([["aten.full.default", [[1 << 40, 1 << 40], 0.0], {}]], "it cannot be computed: "),
    ],
)
def test_what_a_recipe_gives_is_known_before_it_is_computed(normed, steps, message, tmp_path):
    """Whatever the digests say."""
    normed[2].save(tmp_path / "model.kit")
    data = (tmp_path / "model.kit").read_bytes()
    number = next(n for n, w in enumerate(normed[2].signature.weights) if w.name == "up.weight.derived")
    (tmp_path / "model.kit").write_bytes(edited(data, "signature", "weights", number, "recipe", value=json.dumps(steps)))
    with pytest.raises(PackageError, match=f"the recipe of weight 'up.weight.derived': {message}"):
        kitsune_mlir.load(tmp_path / "model.kit")


def test_damaged_recipes(normed, tmp_path):
    normed[2].save(tmp_path / "model.kit")
    data, rng, refused = (tmp_path / "model.kit").read_bytes(), random.Random(0), 0
    derived = [(n, w.recipe) for n, w in enumerate(normed[2].signature.weights) if w.recipe]
    for _ in range(300):
        number, recipe = rng.choice(derived)
        text = altered(recipe.encode(), rng).decode()
        refused += loaded(tmp_path / "m.kit", edited(data, "signature", "weights", number, "recipe", value=text)) is None
    assert refused > 200


def test_rows_that_there_are_not():
    """A GPU's process would not survive them."""
    recipe = json.dumps([["aten.index_select.default", [{"weight": "a"}, 0, {"weight": "rows"}], {}]])
    a, rows = torch.randn(3, 2), torch.tensor([2, 0, 2])
    assert torch.equal(evaluate(recipe, {"a": a, "rows": rows}, "cpu"), a[rows])
    for wrong in (torch.tensor([0, 3]), torch.tensor([-1])):
        with pytest.raises(ArgumentError, match="a weight's rows are chosen by"):
            evaluate(recipe, {"a": a, "rows": wrong}, "cpu")


def test_equal_models_have_equal_names():
    model, x = Normed().eval(), torch.randn(2, 5, 9, 7)
    first, second = (import_model(model, (x,)) for _ in range(2))
    assert [(a.name, a.recipe) for a in first.weights] == [(a.name, a.recipe) for a in second.weights]


def test_functions_have_none():
    assert not import_model(Function(lambda x: x.flip(0)), (torch.randn(3, 4),)).weights


def test_a_dtype_may_be_the_only_keyword():
    check_recipe(json.dumps([["aten.full.default", [[2, 3], 0], {"dtype": {"dtype": "bf16"}}]]), set().__contains__)


def test_copies_are_looked_at_together():
    """One comparison where nothing was changed; else those alone are made again of which a source was."""
    made = []
    sources = [torch.ones(2), torch.ones(2), torch.ones(2)]

    def copy(*numbers):
        own = [sources[n] for n in numbers]

        def value():
            made.append(numbers)
            return sum(own)

        return WeightCopy(own, value, torch.zeros(2), [source._version for source in own])

    copies = WeightCopies([copy(0), copy(0, 1), copy(2)])
    assert len(copies) == 3 and not copies.stale
    copies.refresh()
    assert not made and not copies.stale
    sources[1].add_(1)
    assert copies.stale
    copies.refresh()
    assert made == [(0, 1)] and not copies.stale and copies[1].placed.tolist() == [3.0, 3.0]
    copies.refresh()
    assert made == [(0, 1)]
    sources[2].add_(1)
    copies[2].refresh()  # by somebody else
    copies.refresh()
    assert made == [(0, 1), (2,)] and not copies.stale


def test_copies_of_inference_tensors_are_made_at_every_call():
    with torch.inference_mode():
        source = torch.ones(2)
    made = []
    counted = torch.ones(2)
    copies = WeightCopies(
        [
            WeightCopy([source], lambda: made.append("source") or source, torch.zeros(2), None),
            WeightCopy([counted], lambda: made.append("counted") or counted, torch.zeros(2), [counted._version]),
        ]
    )
    copies.refresh()
    copies.refresh()
    assert made == ["source", "source"] and copies.stale
    counted.add_(1)
    copies.refresh()
    assert made.count("counted") == 1


def test_what_a_recipe_makes_on_the_way_is_given_back_at_once():
    """No circle of references holds it until a collection: folded norms of a network would be several times its weights."""
    steps = [["aten.mul.Tensor", [{"weight": "w"}, 2.0], {}]]
    steps += [["aten.add.Tensor", [{"step": n}, {"step": 0}], {}] for n in range(3)]
    weights, seen = {"w": torch.ones(1023)}, []
    gc.collect()
    gc.disable()
    try:
        before = _tensors_of(1023)
        made = evaluate(json.dumps(steps), weights, "cpu")
        seen.append(_tensors_of(1023) - before)
    finally:
        gc.enable()
    assert seen == [1]
    assert made.eq(8).all()


def _tensors_of(size: int) -> int:
    return sum(type(one) is torch.Tensor and one.shape == (size,) for one in gc.get_objects())
