"""`kitsune_mlir.train_step` beside the same steps in PyTorch, in f32 and in float64: losses, weights, buffers, state."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, UnsupportedError
from test.numerics.compare import problems, widened
from test.rotation import in_turn

R = torch.randn


class Messages(nn.Module):
    """Edges read their ends, nodes add up their edges."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.node = nn.Linear(10, 7), nn.Sequential(nn.Linear(12, 9), nn.SiLU(), nn.Linear(9, 3))

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        messages = self.edge(torch.cat([x[ends[0]], x[ends[1]]], 1)).relu()
        return self.node(torch.cat([x, torch.zeros(len(x), 7, dtype=x.dtype).index_add(0, ends[1], messages)], 1))


class Words(nn.Module):
    """A transformer layer with dropout between an embedding and its transpose; positions that do not train."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(13, 8), nn.Parameter(R(5, 8), requires_grad=False)
        self.layer = nn.TransformerEncoderLayer(8, 2, 11, dropout=0.3, activation="gelu", batch_first=True)
        # A key's bias moves no score beside another: its gradient is rounding, of which Adam and others make whole steps.
        self.layer.self_attn.in_proj_bias.requires_grad_(False)
        self.head = nn.Linear(8, 13)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(ids) + self.position)).flatten(0, 1)


class Bags(nn.Module):
    """Sums and means of embeddings, and a layer that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.means = nn.EmbeddingBag(17, 6, mode="sum"), nn.EmbeddingBag(17, 6, mode="mean", padding_idx=3)
        self.top, self.unused = nn.Linear(6, 1), nn.Linear(2, 2)

    def forward(self, *, ids: Tensor, starts: Tensor) -> Tensor:
        return self.top(self.sums(ids, starts) + self.means(ids, starts)).squeeze(1)


class Sequences(nn.Module):
    """LSTM layers with dropout between them, and a GRU in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 5, 2, dropout=0.3, batch_first=True), nn.GRU(5, 3, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(self.lstm(x)[0].transpose(0, 1))[0]


def images() -> nn.Module:
    """Convolutions with BatchNorm."""
    layers = (
        nn.Conv2d(3, 5, 3, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3, stride=2, bias=False),
        nn.BatchNorm2d(6, momentum=None),
    )
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))


def weighted(output: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss, and something to look at."""
    error = (output - target) * weight
    return error.square().mean(), {"largest": error.abs().max()}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "layers": (
        lambda: nn.Sequential(nn.Linear(9, 17), nn.LayerNorm(17), nn.GELU(), nn.Dropout(0.2), nn.Linear(17, 5)),
        nn.CrossEntropyLoss(weight=torch.rand(5)),
        lambda: (R(7, 9), torch.randint(5, (7,))),
    ),
    "images": (images, F.cross_entropy, lambda: (R(3, 3, 9, 8), torch.randint(4, (3,)))),
    "words": (Words, F.cross_entropy, lambda: (torch.randint(13, (3, 5)), torch.randint(13, (15,)))),
    "messages": (Messages, weighted, lambda: ((R(11, 5), torch.randint(11, (2, 23))), R(11, 3), torch.rand(11, 1))),
    "sequences": (Sequences, F.mse_loss, lambda: (R(3, 2, 4), R(2, 3, 6))),
    "bags": (
        Bags,
        F.binary_cross_entropy_with_logits,
        lambda: ({"ids": torch.randint(17, (12,)), "starts": torch.tensor([0, 2, 2, 7])}, torch.rand(4)),
    ),
}
OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, 0.05, weight_decay=0.01),
    "SGD, momentum": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "SGD, dampened": lambda p: optim.SGD(p, 0.05, momentum=0.9, dampening=0.1, foreach=True),
    "Adam": lambda p: optim.Adam(p, 0.01, weight_decay=0.01),
    "Adam, amsgrad": lambda p: optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "AdamW": lambda p: optim.AdamW(p, 0.01),
    "AdamW, fused": lambda p: optim.AdamW(p, 0.01, fused=True),
    "AdamW, a tensor": lambda p: optim.AdamW(p, torch.tensor(0.01)),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "RMSprop, foreach": lambda p: optim.RMSprop(p, 0.01, foreach=True),
    "Adagrad": lambda p: optim.Adagrad(p, 0.02, lr_decay=0.1),
    "Adagrad, foreach": lambda p: optim.Adagrad(p, 0.02, lr_decay=0.1, weight_decay=0.01, foreach=True),
    "AdamW, foreach": lambda p: optim.AdamW(p, 0.01, foreach=True),
    "NAdam": lambda p: optim.NAdam(p, 0.01),
    "NAdam, foreach": lambda p: optim.NAdam(p, 0.01, weight_decay=0.01, foreach=True),
    "Adamax": lambda p: optim.Adamax(p, 0.01, weight_decay=0.01),
    "Adadelta": lambda p: optim.Adadelta(p, 0.5, weight_decay=0.01, foreach=True),
    "RAdam": lambda p: optim.RAdam(p, 0.01),
    "Adafactor": lambda p: optim.Adafactor(p, 0.05, eps=(1e-9, 1e-3), weight_decay=0.01),
    "Adafactor, foreach": lambda p: optim.Adafactor(p, 0.05, eps=(1e-9, 1e-3), maximize=True, foreach=True),
}


def eager_step(model: nn.Module, loss_fn: Callable[..., Any], best: optim.Optimizer) -> Callable[..., Any]:
    """What a step does, in PyTorch."""

    def step(inputs: Any, *targets: Any, update: bool = True) -> Any:
        if isinstance(inputs, dict):
            made = loss_fn(model(**inputs), *targets)
        else:
            made = loss_fn(model(*inputs) if isinstance(inputs, tuple) else model(inputs), *targets)
        (made[0] if isinstance(made, tuple) else made).backward()
        if update:
            best.step()
            best.zero_grad()
        return torch.utils._pytree.tree_map_only(Tensor, Tensor.detach, made)

    return step


def tensors(model: nn.Module, best: optim.Optimizer) -> list[Any]:
    """All that a step changes, and gradients."""
    state = best.state_dict()["state"]
    own = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    return [*own, *(state[n][key] for n in sorted(state) for key in sorted(state[n])), sorted(state)]


class Three:
    """The same model with its optimizer: with `train_step`, in PyTorch, and there in float64."""

    def __init__(self, model: nn.Module, loss_fn: Callable[..., Any], made: Callable[[Any], optim.Optimizer]):
        self.models = model, copy.deepcopy(model), copy.deepcopy(model).double()
        losses = [copy.deepcopy(loss_fn) for _ in range(3)]
        if isinstance(losses[2], nn.Module):
            losses[2].double()
        self.best = [made(each.parameters()) for each in self.models]
        self.steps = [
            kitsune_mlir.train_step(self.models[0], losses[0], self.best[0]),
            *(eager_step(m, loss, best) for m, loss, best in zip(self.models[1:], losses[1:], self.best[1:], strict=True)),
        ]

    def __call__(self, *batch: Any, update: bool = True) -> list[str]:
        """What is wrong after one more step."""
        wide, found, seed = torch.utils._pytree.tree_map(widened, batch), [], torch.randint(1000, ()).item()
        for step, given in zip(self.steps, (batch, batch, wide), strict=True):
            torch.manual_seed(seed)
            found.append(step(*given, update=update))
        results = [[made, *tensors(m, best)] for made, m, best in zip(found, self.models, self.best, strict=True)]
        return problems(results[0], results[2], results[1])


def changed(value: Any) -> Any:
    """Another number where there is one; zero stays zero."""
    if isinstance(value, tuple):
        return tuple(v**1.2 for v in value)
    return value * 0.8 if isinstance(value, float | Tensor) else value


@pytest.mark.parametrize("optimizer, model", in_turn(list(itertools.product(OPTIMIZERS, MODELS)), 2))
def test_steps(optimizer: str, model: str) -> None:
    """Three steps, all numbers of the optimizer other ones each time: one program, and nothing wrong."""
    make, loss_fn, batch = MODELS[model]
    three = Three(make(), loss_fn, OPTIMIZERS[optimizer])
    for _ in range(3):
        found = three(*batch())
        assert not found, found
        for best in three.best:
            for group in best.param_groups:
                group.update({key: changed(value) for key, value in group.items() if key != "params"})
    reports = three.steps[0].reports
    assert len(reports) == 1 + (optimizer == "SGD, dampened")
    assert all(len(report.programs) == 1 and not report.gave_up for report in reports), reports
    assert all("dropout" in island.operator for report in reports for island in report.islands), reports


@pytest.fixture
def layers() -> Iterator[Three]:
    torch.manual_seed(torch.seed() % 2**31)
    yield Three(nn.Sequential(nn.Linear(9, 17), nn.Tanh(), nn.Linear(17, 5)), F.mse_loss, lambda p: optim.AdamW(p, 0.01))


def test_modes_of_a_step(layers: Three) -> None:
    """Gradients added up, frozen parameters, an optimizer's state from a file, a scheduler, batches of another size."""
    plans = [optim.lr_scheduler.StepLR(best, 1, 0.5) for best in layers.best]
    for update in (False, False, True, True):
        assert not layers(R(6, 9), R(6, 5), update=update)
    assert all(p.grad is None for p in layers.models[0].parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that the scheduler's step comes before the optimizer's
        for plan in plans:
            plan.step()
    count = len(layers.steps[0].reports)
    for best in layers.best:
        best.load_state_dict(copy.deepcopy(best.state_dict()))
    assert not layers(R(6, 9), R(6, 5))
    assert len(layers.steps[0].reports) == count
    for model in layers.models:
        model[0].requires_grad_(False)
    kept = layers.models[0][0].weight.clone()
    assert not layers(R(6, 9), R(6, 5))
    assert torch.equal(layers.models[0][0].weight, kept)
    assert not layers(R(4, 9), R(4, 5))
    assert len(layers.steps[0].reports) == count + 2


def test_schedules(layers: Three) -> None:
    """A scheduler that changes the rate, from zero on, and betas in each step; a weight decay that begins: another program."""
    plans = [optim.lr_scheduler.OneCycleLR(best, 0.1, total_steps=9, base_momentum=0.7) for best in layers.best]
    warm = [optim.lr_scheduler.LambdaLR(best, lambda n: n / 3) for best in layers.best]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both at once
        for n in range(7):
            assert not layers(R(6, 9), R(6, 5))
            for plan in plans if n > 2 else warm:
                plan.step()
    assert len(layers.steps[0].reports) == 1
    for decay in (0.0, 0.01, 0.02):
        for best in layers.best:
            best.param_groups[0]["weight_decay"] = decay
        assert not layers(R(6, 9), R(6, 5))
    assert len(layers.steps[0].reports) == 2


class Rooted(optim.Optimizer):
    """Reads numbers where no tensor is: by a function of C, by one of Python, in a comparison."""

    def __init__(self, params: Any, lr: float, scale: float = 2.0, most: float = 0.5):
        super().__init__(params, {"lr": lr, "scale": scale, "most": most})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            rate = math.sqrt(group["lr"]) if group["scale"] > 1 else group["lr"] * float(group["most"])
            for p in group["params"]:
                p.sub_(p.grad.clamp(-group["most"], group["most"]) * rate / group["scale"])


def test_numbers_that_python_reads() -> None:
    """Constants of programs, which are other ones then; what is not read in the way that was taken is an input."""
    three = Three(nn.Linear(5, 3), F.mse_loss, lambda p: Rooted(p, 0.04))
    for count, numbers in enumerate(({}, {"lr": 0.09}, {"scale": 1.0}, {"lr": 0.01, "most": 0.5}, {"most": 0.2}), 1):
        for best in three.best:
            best.param_groups[0].update(numbers)
        assert not three(R(6, 5), R(6, 3))
        assert len(three.steps[0].reports) == count - (count > 3)


@pytest.mark.parametrize("name", ["Rprop", "Muon"])
def test_numbers_that_pytorch_takes_from_tensors(name: str) -> None:
    """Bounds of `clamp` are inputs, factors of a product constants; neither is a number that is known only when it runs."""
    if not hasattr(optim, name):
        pytest.skip(f"this PyTorch has no {name}")
    three = Three(nn.Linear(5, 3, bias=False), F.mse_loss, lambda p: getattr(optim, name)(p, 0.01))
    for _ in range(2):
        assert not three(R(7, 5), R(7, 3))
    (report,) = three.steps[0].reports
    assert len(report.programs) == 1 and not report.islands, report


def test_in_place(layers: Three) -> None:
    """Weights and state are where they were; so a graph of them may be recorded."""
    assert not layers(R(6, 9), R(6, 5))
    own = [*layers.models[0].parameters(), *(v for s in layers.best[0].state.values() for v in s.values())]
    before = [t.data_ptr() for t in own]
    assert not layers(R(6, 9), R(6, 5))
    now = [*layers.models[0].parameters(), *(v for s in layers.best[0].state.values() for v in s.values())]
    assert [t.data_ptr() for t in now] == before and all(a is b for a, b in zip(own, now, strict=True))
    (program,) = layers.steps[0].reports[0].programs
    assert sum(output.mutates is not None for output in program.signature.outputs) == len(own)


def test_parts() -> None:
    """Where values decide what the model does, its graphs are programs of their own; with `require_full` that is an error."""

    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.second(x * 2 if x.sum().item() > 0 else x.sin())

    three = Three(Decides(), F.mse_loss, lambda p: optim.SGD(p, 0.1, momentum=0.9))
    with pytest.warns(UserWarning, match="runs in parts"):
        assert not three(R(5, 4), R(5, 3))
    assert not three(R(5, 4), R(5, 3))
    full = kitsune_mlir.train_step(
        Decides(), F.mse_loss, optim.SGD(Decides().parameters(), 0.1), options={"require_full": True}
    )
    with pytest.raises(UnsupportedError, match="require_full"):
        full(R(5, 4), R(5, 3))


def test_a_ctc_loss_runs_in_parts() -> None:
    """PyTorch's operator has a table as wide as the longest target, which a tensor of lengths says; it stays PyTorch's."""
    model = nn.Sequential(nn.Linear(4, 7), nn.LogSoftmax(-1))
    three = Three(model, F.ctc_loss, lambda p: optim.SGD(p, 0.1))
    targets = torch.randint(1, 7, (3, 5)), torch.tensor([20, 20, 17]), torch.tensor([5, 4, 3])
    with pytest.warns(UserWarning, match="runs in parts: .*ctc_loss"):
        assert not three(R(20, 3, 4), *targets)
    assert not three(R(20, 3, 4), *targets)


def test_long_sequences_run_in_parts() -> None:
    model = nn.LSTM(3, 4)
    step = kitsune_mlir.train_step(model, lambda out, y: F.mse_loss(out[0], y), optim.SGD(model.parameters(), 0.1))
    other = copy.deepcopy(model)
    x, y = R(300, 2, 3), R(300, 2, 4)
    with pytest.warns(UserWarning, match="300 steps.*at most 256"):
        loss = step(x, y)
    torch.testing.assert_close(loss, F.mse_loss(other(x)[0], y).detach())


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="'optimizer'.*Optimizer"):
        kitsune_mlir.train_step(nn.Linear(2, 2), F.mse_loss, "AdamW")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="unknown"):
        kitsune_mlir.train_step(nn.Linear(2, 2), F.mse_loss, optim.SGD([R(2)], 0.1), mode="fastest")


def test_autocast() -> None:
    """Products in bf16; the target is the input at first, and another tensor then."""
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 8))
    other = copy.deepcopy(model)
    bests = [optim.Adagrad(m.parameters(), 0.05, foreach=True) for m in (model, other)]
    step, plain = kitsune_mlir.train_step(model, F.mse_loss, bests[0]), eager_step(other, F.mse_loss, bests[1])
    x = R(7, 8)
    for target in (x, R(7, 8)):
        with torch.autocast("cpu", torch.bfloat16):
            losses = [step(x, target), plain(x, target)]
        torch.testing.assert_close(*losses, rtol=2e-2, atol=2e-2)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=2e-2)
