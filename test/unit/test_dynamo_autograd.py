"""torch.compile(backend="kitsune") beside eager where gradients flow: hooks, modes of autograd, outputs changed in place.

Each case is a function of a compiled or an eager callable and of fresh tensors; what it returns must be the same for both.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from kitsune_mlir.sized.restride import same_strides
from test.programs.eager import eager_and_compiled
from test.rotation import in_turn

R = torch.randn


def alike(got, want, error=1e-5):
    got, want = tree_leaves(got), tree_leaves(want)
    for g, w in zip(got, want, strict=True):
        if not isinstance(w, torch.Tensor) or not isinstance(g, torch.Tensor):
            assert g is w or g == w
            continue
        assert (g.dtype, g.shape, g.requires_grad, g.is_leaf, type(g)) == (
            w.dtype,
            w.shape,
            w.requires_grad,
            w.is_leaf,
            type(w),
        )
        assert g.is_inference() == w.is_inference() and same_strides(g.shape, g.stride(), w.stride())
        torch.testing.assert_close(g.detach(), w.detach(), atol=error, rtol=max(error, 1e-4))


def leaf(*shape):
    return R(shape).requires_grad_()


def in_place(function, shape=(3, 4)):
    """Outputs are changed in place by the caller; then the gradient goes through what they were changed to."""

    def case(compiled):
        x = leaf(*shape)
        outputs = tree_leaves(compiled(function)(x))
        for n, out in enumerate(outputs):
            out.mul_(n + 2)
        sum(out.sum() for out in outputs).backward()
        return outputs, x.grad

    return case


def gradient(function, *shapes):
    def case(compiled):
        inputs = [leaf(*shape) for shape in shapes or [(3, 4)]]
        outputs = compiled(function)(*inputs)
        sum((out * out).sum() for out in tree_leaves(outputs) if out.requires_grad).backward()
        return outputs, [x.grad for x in inputs]

    return case


def hooks_of_tensors(compiled):
    x, seen = leaf(3), []
    x.register_hook(lambda g: seen.append(g) or g * 2)
    out = compiled(lambda t: (t * 3).relu())(x)
    out.register_hook(lambda g: seen.append(g) or g + 1)
    out.sum().backward()
    return seen, x.grad


def hooks_of_modules(compiled):
    model, seen = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), []
    model[0].register_forward_hook(lambda m, args, out: out * 2)
    model[1].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    model[0].register_full_backward_hook(lambda m, given, made: seen.append(made[0]))
    x = leaf(2, 4)
    compiled(model)(x).sum().backward()
    return x.grad, [p.grad for p in model.parameters()], seen


def hooks_after_accumulation(compiled):
    model, seen = nn.Linear(4, 3), []
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    step = compiled(model)
    for _ in range(2):
        step(R(2, 4)).sum().backward()
    return seen, model.weight.grad


def hooks_of_the_compiled_module(compiled):
    fast, seen = compiled(nn.Linear(4, 3)), []
    fast.register_forward_hook(lambda m, args, out: seen.append(out.shape) or out + 1)
    return fast(R(2, 4)), seen


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_non_differentiable(sign := x.sign())
        return x.round(), sign

    @staticmethod
    def backward(ctx, grad, _):
        return grad


def twice_backward(compiled):
    x = leaf(3)
    out = compiled(lambda t: t.sin() * t)(x).sum()
    out.backward(retain_graph=True)
    out.backward()
    return x.grad


def through_two_calls(compiled):
    x = leaf(3)
    step = compiled(lambda t: t.tanh() + 1)
    step(step(x)).sum().backward()
    return x.grad


def toggled(compiled):
    step, x = compiled(lambda t: t * 2 + 1), R(3)
    found = []
    for wants in (False, True, False):
        found.append(step(x.clone().requires_grad_(wants)))
        with torch.no_grad():
            found.append(step(x.clone().requires_grad_(wants)))
        with torch.inference_mode():
            found.append(step(x))
    return found


def frozen(compiled):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), R(3, 4)
    step = compiled(model)
    for wants in (True, False, True):
        model[0].requires_grad_(wants)
        step(x).sum().backward()
    return [p.grad for p in model.parameters()]


def no_grad_inside(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        z = x * 3
    return y, z, y + z, torch.is_grad_enabled()


def autocast(dtype, outside):
    def function(model, x):
        with torch.autocast("cpu", dtype, enabled=not outside):
            return model(x), torch.is_autocast_enabled("cpu")

    def case(compiled):
        model, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)), leaf(5, 8)
        with torch.autocast("cpu", dtype, enabled=outside):
            out, _ = compiled(function)(model, x)
        out.float().sum().backward()
        return out, x.grad, [p.grad for p in model.parameters()]

    return case


def inference(compiled):
    model = nn.Linear(4, 3)
    step = compiled(model)
    with torch.inference_mode():
        x = R(2, 4)
        first = step(x)
    return first, step(first.clone() @ R(3, 4)), torch.is_inference(first)


def accumulated(compiled):
    model, x = nn.Linear(4, 3), R(2, 4)
    best = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    step = compiled(lambda given: F.mse_loss(model(given), torch.ones(2, 3)))
    for n in range(4):
        step(x).backward()
        if n % 2:
            best.step()
            best.zero_grad(set_to_none=n == 1)
    return list(model.parameters()), [p.grad for p in model.parameters()]


def whole_step(compiled):
    model, x = nn.Linear(4, 3), R(2, 4)
    best = torch.optim.AdamW(model.parameters(), 0.1)

    def step():
        best.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        best.step()
        return loss.detach()

    fast = compiled(step)
    return [fast() for _ in range(3)], list(model.parameters())


def saved_elsewhere(compiled):
    x, seen = leaf(4), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(1) or t.double(), lambda t: t.float()):
        out = compiled(lambda t: (t * t).exp())(x)
    out.sum().backward()
    return x.grad, bool(seen)


def grad_of_some(compiled):
    x, y = leaf(3), leaf(3)
    out = compiled(lambda a, b: (a * b, b * 2))(x, y)
    # An input that an output does not depend on has no gradient in eager, and one of zeros wherever AOTAutograd is.
    return torch.autograd.grad(out[0].sum(), [x, y], retain_graph=True), torch.autograd.grad(out[1].sum(), [y])


def written_input(compiled):
    x = leaf(3, 4)
    y = x * 1
    out = compiled(lambda t: t.mul_(2).sum(0))(y)
    (out.sum() + y.sum()).backward()
    return out, y, x.grad


CASES = {
    "in place: a map": in_place(lambda x: x * 2),
    "in place: transposed": in_place(lambda x: x.t() * 2),
    "in place: a view of what was made": in_place(lambda x: (x * 2).view(-1)),
    "in place: a transposed view": in_place(lambda x: (x * 2).t()),
    "in place: two": in_place(lambda x: (x * 2, x + 1)),
    "in place: permuted thrice": in_place(lambda x: x.permute(2, 0, 1).sin(), (2, 3, 4)),
    "in place: the whole and a row": in_place(lambda x: (lambda y: (y, y[0]))(x + 1)),
    "in place: channels last": in_place(lambda x: x.relu() + 1, (2, 3, 4, 5)),
    "in place: a product": in_place(lambda x: (x @ x.t()).t()),
    "in place: reshaped": in_place(lambda x: (x * 3).reshape(4, 3)),
    "in place: a copy": in_place(lambda x: x.clone()),
    "in place: beside an island": in_place(lambda x: (torch.linalg.inv(x @ x.t() + torch.eye(3)).t() * 2, x.t() * 2)),
    "gradient": gradient(lambda x: x.sin()),
    "gradient of some outputs": gradient(lambda x, y: (x * 2, y.detach() * x, (y > 0)), (3, 4), (3, 4)),
    "gradient of one input": gradient(lambda x, y: x.detach() * y, (3,), (3,)),
    "gradient of a view": gradient(lambda x: (x[1:], x * 2)),
    "gradient of itself": gradient(lambda x: (x, x + 1)),
    "gradient through an index": gradient(lambda x: x[torch.tensor([0, 2, 0])] * 2),
    "gradient of a number": gradient(lambda x: x * x, ()),
    "gradient of nothing": gradient(lambda x: x * 2, (0, 4)),
    "gradient of a custom function": gradient(Doubled.apply),
    "gradient of a custom function of two outputs": gradient(lambda x: Straight.apply(x * 3)),
    "gradient of a checkpoint": gradient(lambda x: checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False)),
    "gradient, broken off": gradient(lambda x: (x.sin(), torch._dynamo.graph_break())[0].exp()),
    "gradient, expanded": gradient(lambda x: x.expand(5, 3, 4) * 2),
    "gradient of a scatter": gradient(lambda x: torch.zeros(5, 4).index_add(0, torch.tensor([1, 1, 4]), x)),
    "modes inside": gradient(lambda x: no_grad_inside(x)[:3]),
    "hooks of tensors": hooks_of_tensors,
    "hooks of modules": hooks_of_modules,
    "hooks after accumulation": hooks_after_accumulation,
    "hooks of the compiled module": hooks_of_the_compiled_module,
    "twice backward": twice_backward,
    "through two calls": through_two_calls,
    "toggled": toggled,
    "frozen layers": frozen,
    "autocast outside": autocast(torch.bfloat16, True),
    "autocast inside": autocast(torch.bfloat16, False),
    "autocast, f16": autocast(torch.float16, True),
    "inference mode": inference,
    "gradients added up": accumulated,
    "a whole step": whole_step,
    "saved tensors elsewhere": saved_elsewhere,
    "gradients of some": grad_of_some,
    "a written input": written_input,
}


@pytest.mark.parametrize("name", in_turn([*CASES], 7))
def test_as_in_eager(name):
    want, got = eager_and_compiled(CASES[name])
    alike(got, want, 5e-2 if name.startswith("autocast") else 1e-5)
