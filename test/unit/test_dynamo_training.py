"""What training does beside forward and backward, through torch.compile and in `train_step`, beside eager.

Each case is a function of what compiles a callable; what it returns must be the same for both.
"""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import kitsune_mlir
from test.programs.eager import eager_and_compiled

R = torch.randn


def grads(model):
    return [None if p.grad is None else p.grad.to_dense() for p in model.parameters()]


class Tied(nn.Module):
    """One weight as an embedding and as the last layer; tables whose gradients are rows, or dense."""

    def __init__(self, sparse=False):
        super().__init__()
        self.table, self.rows = nn.Embedding(13, 6, sparse=False), nn.Embedding(17, 6, sparse=sparse)
        self.mixed, self.head = nn.Linear(6, 6), nn.Linear(6, 13, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.mixed(self.table(ids) + self.rows(ids)).tanh())


IDS = torch.tensor([[0, 3, 3], [12, 1, 0]])


def words(model, compiled, calls=2):
    step = compiled(model)
    for _ in range(calls):
        F.cross_entropy(step(IDS).flatten(0, 1), IDS.flatten()).backward()
    return grads(model)


def sparse_rows(compiled):
    model = Tied(sparse=True)
    found = words(model, compiled)
    best = torch.optim.SparseAdam([model.rows.weight], 0.1)
    rows = model.rows.weight.grad
    best.step()
    return found, rows.layout, rows.coalesce().indices(), model.rows.weight


def hooks_of_parameters(compiled):
    model, seen = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 2)), []
    model[0].weight.register_hook(lambda g: seen.append(("weight", g)) or g * 3)
    model[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(("bias", p.grad.clone())))
    model[2].register_full_backward_pre_hook(lambda m, made: seen.append(("pre", made[0])))
    model[0].register_full_backward_hook(lambda m, given, made: seen.append(("layer", made[0])))
    step = compiled(model)
    for _ in range(2):
        step(R(5, 4).requires_grad_()).square().sum().backward()
    return sorted(seen, key=lambda one: one[0]), grads(model)


def removed_hook(compiled):
    model = nn.Linear(4, 3)
    handle = model.weight.register_hook(lambda g: g * 2)
    step = compiled(model)
    step(R(2, 4)).sum().backward()
    handle.remove()
    step(R(2, 4)).sum().backward()
    return grads(model)


def step_in_backward(compiled):
    """An optimizer for each parameter, that steps as soon as the gradient is there."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    best = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def stepped(p):
        best[p].step()
        best[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(stepped)
    step = compiled(model)
    for _ in range(3):
        step(R(5, 4)).square().mean().backward()
    return list(model.parameters()), grads(model)


class Checkpointed(nn.Module):
    """Layers that are computed again, with dropout."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, x):
        x = checkpoint(lambda t: self.first(t).relu(), x, use_reentrant=False)
        return checkpoint_sequential(self.rest, 2, x, use_reentrant=False)


def checkpointed(compiled):
    model, x = Checkpointed(), R(5, 4).requires_grad_()
    compiled(model)(x).square().sum().backward()
    return grads(model), x.grad


def checkpoint_outside(compiled):
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.3)), R(5, 4).requires_grad_()
    checkpoint(compiled(model), x, use_reentrant=False).square().sum().backward()
    return grads(model), x.grad


def retained(compiled):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    made = compiled(model)(R(5, 4))
    made[:, 0].sum().backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    made[:, 1].sum().backward(retain_graph=True)
    return first, grads(model), torch.autograd.grad(made.sum(), list(model.parameters()))


def partly_frozen(compiled):
    model = Tied()
    model.rows.weight.requires_grad_(False)
    step = compiled(model)
    best = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.1)
    for wants in (True, False, True):
        model.mixed.requires_grad_(wants)
        F.cross_entropy(step(IDS).flatten(0, 1), IDS.flatten()).backward()
        best.step()
        best.zero_grad()
    return list(model.parameters())


def clipped(compiled):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    step = compiled(model)
    step(R(5, 4)).square().sum().backward()
    total = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    return total, grads(model)


CASES = {
    "tied weights": lambda compiled: words(Tied(), compiled),
    "gradients as rows": sparse_rows,
    "hooks of parameters": hooks_of_parameters,
    "a hook that is removed": removed_hook,
    "steps in backward": step_in_backward,
    "checkpointed layers": checkpointed,
    "checkpoint around": checkpoint_outside,
    "retained graph": retained,
    "partly frozen": partly_frozen,
    "clipped": clipped,
}


@pytest.mark.rotated(4)
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name):
    for want, got in zip(*map(tree_leaves, eager_and_compiled(CASES[name])), strict=True):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        else:
            assert got == want


def test_gradients_of_gradients():
    """AOTAutograd refuses them in words, outside and inside of what is compiled; what is left to PyTorch is its own."""
    x, model = R(3, 4).requires_grad_(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def penalty(model, x):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean()

    outside, inside = torch.compile(model, backend="kitsune"), torch.compile(lambda x: penalty(model, x), backend="kitsune")
    for call in (lambda x: penalty(outside, x), inside):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match="double backward"):
            call(x).backward()
    torch._dynamo.reset()
    alone = torch.compiler.disable(penalty)
    torch.compile(lambda x: alone(model, x) * 2 / 2, backend="kitsune")(x).backward()
    found = grads(model)
    model.zero_grad()
    penalty(model, x).backward()
    torch.testing.assert_close(found, grads(model))


def test_gradients_of_gradients_in_a_step():
    """A penalty on gradients is one program with the rest of a step."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    theirs = copy.deepcopy(ours)

    def loss_of(model):
        def loss(made, x):
            (slope,) = torch.autograd.grad(made.sum(), x, create_graph=True)
            return made.square().mean() + (slope.norm(dim=1) - 1).square().mean()

        return loss

    best = [torch.optim.SGD(m.parameters(), 0.1) for m in (ours, theirs)]
    step = kitsune_mlir.train_step(ours, loss_of(ours), best[0], options={"require_full": True})
    for _ in range(2):
        x = R(5, 4).requires_grad_()
        found = step(x, x)
        want = loss_of(theirs)(theirs(x), x)
        want.backward()
        best[1].step()
        best[1].zero_grad()
        torch.testing.assert_close(found, want.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()), rtol=1e-4, atol=1e-5)


def test_gradients_as_rows_in_a_step():
    """`train_step` runs in parts where a gradient is rows."""
    torch.manual_seed(0)
    ours = Tied(sparse=True)
    theirs = copy.deepcopy(ours)
    best = [torch.optim.SGD(m.parameters(), 0.1) for m in (ours, theirs)]

    def loss(made, ids):
        return F.cross_entropy(made.flatten(0, 1), ids.flatten())

    step = kitsune_mlir.train_step(ours, loss, best[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            step(IDS, IDS)
            loss(theirs(IDS), IDS).backward()
            best[1].step()
            best[1].zero_grad()
    torch.testing.assert_close(list(ours.parameters()), list(theirs.parameters()), rtol=1e-4, atol=1e-5)


def outcome(call, *given):
    """What a call gives, or the error that it raises."""
    try:
        return call(*given)
    except (RuntimeError, ValueError) as error:
        return str(error)


@pytest.mark.rotated(1)
@pytest.mark.parametrize("check", ["norm", "variance"])
def test_errors_that_depend_on_values_in_a_step(check):
    """One program that finds out by itself; PyTorch then raises what it always does, and nothing has changed."""
    torch.manual_seed(0)
    norms = [nn.Linear(7, 7, bias=False), nn.BatchNorm1d(7)] if check == "variance" else []
    ours = nn.Sequential(*norms, nn.Linear(7, 3))
    theirs = copy.deepcopy(ours)
    best = [torch.optim.SGD(m.parameters(), 1e-2, momentum=0.9) for m in (ours, theirs)]

    def clip(model):
        return nn.utils.clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True) if check == "norm" else None

    def loss(made, y, variance):
        return F.gaussian_nll_loss(made, y, variance) if check == "variance" else F.mse_loss(made, y)

    def eager(x, *targets):
        best[1].zero_grad()
        found = loss(theirs(x), *targets)
        found.backward()
        clip(theirs)
        best[1].step()
        return found.detach()

    step = kitsune_mlir.train_step(ours, loss, best[0], before_update=lambda: clip(ours))
    for wrong in (False, True, False):
        x, targets = R(9, 7), [R(9, 3), R(9, 3).abs() + 0.1]
        if wrong:
            (x if check == "norm" else targets[1])[0, 0] = float("inf") if check == "norm" else -1.0
        found, want = outcome(step, x, *targets), outcome(eager, x, *targets)
        assert isinstance(found, str) == isinstance(want, str) == wrong
        torch.testing.assert_close(found, want) if not wrong else None
        assert not wrong or found == want
        assert all(p.grad is None for p in ours.parameters())
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), equal_nan=True)
        if not wrong and len(step.reports) == 1:
            assert [len(step.reports[0].programs), len(step.reports[0].islands)] == [1, 0]
