"""torch.compile(backend="kitsune") beside eager as programs use it: methods, closures, threads, copies, weights replaced.

Each case is a function of a compiled or an eager callable and of fresh tensors; what it returns must be the same for both.
"""

import copy
import dataclasses
import functools
import io
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from test.unit.test_dynamo_autograd import alike

R = torch.randn


def eager(function):
    return function


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    name: str
    parts: list


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.calls, self.last = 0, None

    def forward(self, x, *, scale=1.0):
        self.calls += 1
        out = self.outer(self.inner(x).relu()) * scale
        self.mean = self.mean * 0.5 + out.detach().mean(0)
        self.last = out
        return out

    def twice(self, x):
        return self(x) + self(x)


class Called:
    def __init__(self):
        self.weight = R(4)

    def __call__(self, x):
        return x * self.weight

    def method(self, x):
        self.weight = self.weight + 1
        return self(x)

    @classmethod
    def of_the_class(cls, x):
        return x + 1, cls.__name__

    @staticmethod
    def static(x):
        return x * 2

    @property
    def doubled(self):
        return self.weight * 2


class Tagged(torch.Tensor):
    """A subclass that only remembers what it is."""


def methods(compiled):
    called, x = Called(), R(4)
    fast = compiled(called.method)
    return (
        *(fast(x), fast(x), called.weight, compiled(called)(x), compiled(Called.of_the_class)(x)),
        *(compiled(Called.static)(x), compiled(lambda t: t + called.doubled)(x)),
    )


def closures(compiled):
    factor, seen = R(3), []

    def outer(n):
        def inner(x):
            nonlocal factor
            factor = factor + n
            seen.append(n)
            return x * factor

        return inner

    fast, x = [compiled(outer(n)) for n in (1, 2)], R(3)
    return [run(x) for run in fast], factor, seen, fast[0](x)


def partials(compiled):
    x = R(3)
    return compiled(functools.partial(torch.add, alpha=3))(x, x), compiled(functools.partial(lambda n, t: t * n, 2))(x)


def decorated(compiled):
    @compiled
    def step(x, *rest, key=None, **more):
        return x + sum(rest) + (0 if key is None else key) + sum(more.values())

    x = R(3)
    return step(x), step(x, 1, 2), step(x, key=x), step(x, x, other=2), step(key=x, x=x)


def nested(compiled):
    inner = compiled(lambda t: t.sin() + 1)
    outer = compiled(lambda t: inner(t * 2) * 3)
    x = R(3).requires_grad_()
    outer(x).sum().backward()
    return outer(x), inner(x), x.grad


def nested_in_a_module(compiled):
    model = nn.Sequential(nn.Linear(4, 4), compiled(nn.Linear(4, 3)))
    return compiled(model)(x := R(2, 4)), model(x), list(model.state_dict().values())


def threads(compiled):
    fast, xs, found = compiled(lambda t: (t @ t.t()).relu() + 1), [R(n, 4) for n in (2, 3, 2, 5)], {}

    def work(n):
        for _ in range(3):
            found[n] = fast(xs[n])

    running = [threading.Thread(target=work, args=(n,)) for n in range(len(xs))]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return [found[n] for n in range(len(xs))]


def threads_in_training(compiled):
    models, x = [nn.Linear(4, 3) for _ in range(3)], R(2, 4)
    fast = [compiled(model) for model in models]
    running = [threading.Thread(target=lambda m=m: m(x).sum().backward()) for m in fast]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return [[p.grad for p in model.parameters()] for model in models]


def state_between_calls(compiled):
    model, other, x = Model(), Model(), R(2, 4)
    fast = compiled(model)
    with torch.no_grad():
        first = fast(x)
        model.load_state_dict(other.state_dict())
        second = fast(x)
        model.load_state_dict({k: v + 1 for k, v in other.state_dict().items()}, assign=True)
    return first, second, fast(x), model.state_dict()


def types_between_calls(compiled):
    model, x, found = Model(), R(2, 4), []
    fast = compiled(model)
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
            model.to(dtype)
            found.append(fast(x.to(dtype)))
    return found


def kept_attributes(compiled):
    model, x = Model(), R(2, 4)
    fast = compiled(model)
    out = fast(x)
    return (
        out,
        model.last is out,
        model.calls,
        fast(x, scale=2.0),
        model.calls,
        model.mean,
        compiled(model.twice)(x),
        model.calls,
    )


def training_and_evaluation(compiled):
    model, x = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), R(6, 4)
    fast = compiled(model)
    found = [fast.train()(x), fast.eval()(x), fast.train()(x + 1), fast.eval()(x)]
    return found, model.state_dict()


def copies(compiled):
    fast, x = compiled(nn.Linear(4, 3)), R(2, 4)
    before = fast(x)
    other = copy.deepcopy(fast)
    with torch.no_grad():
        other.weight.mul_(2)
    return before, fast(x), other(x), sorted(name.removeprefix("_orig_mod.") for name in other.state_dict())


def saved(compiled):
    fast, x, file = compiled(nn.Linear(4, 3)), R(2, 4), io.BytesIO()
    before = fast(x)
    torch.save(fast, file)
    file.seek(0)
    return before, torch.load(file, weights_only=False)(x)


def parametrized(compiled):
    model, x = parametrizations.weight_norm(nn.Linear(4, 3)), R(2, 4)
    fast = compiled(model)
    first = fast(x)
    parametrize.remove_parametrizations(model, "weight")
    return first, fast(x)


def layers_replaced(compiled):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), R(2, 4)
    fast = compiled(model)
    first = fast(x)
    model[1] = nn.Tanh()
    second = fast(x)
    model.append(nn.Linear(4, 2))
    return first, second, fast(x)


def compiled_in_place(compiled):
    model, x = nn.Linear(4, 3), R(2, 4)
    if compiled is not eager:
        model.compile(backend="kitsune")
    return model(x), model(x + 1)


def results_kept(compiled):
    fast, x = compiled(lambda t: (t * 2, t + 1)), R(3)
    found = [fast(x + n) for n in range(4)]  # what a call gave is not what the next one writes to
    return found


def breaks(compiled):
    def function(x):
        y = x * 2
        print("", end="")
        if y.sum().item() > -1e9:
            y = y + 1
        torch._dynamo.graph_break()
        return y.sin(), id(y) == id(y)

    return compiled(function)(R(3))


def errors(compiled):
    def function(x):
        y = x * 2
        if x.shape[0] > 3:
            raise ValueError(f"too long: {x.shape[0]}")
        return y

    fast, found = compiled(function), []
    for n in (3, 4, 2):
        try:
            found.append(fast(torch.ones(n)))
        except ValueError as error:
            found.append(str(error))
    return found


def errors_of_pytorch(compiled):
    fast, found = compiled(lambda a, b: a @ b + 1), []
    for shape in ((4, 3), (5, 3), (4, 2)):
        try:
            found.append(fast(torch.ones(2, 4), torch.ones(shape)))
        except RuntimeError:
            found.append("error")
    return found


def subclasses(compiled):
    x = R(3, 4).as_subclass(Tagged)
    out = compiled(lambda t: (t * 2, t.t()))(x)
    return out, [type(one).__name__ for one in out], compiled(lambda m, t: m(t))(nn.Linear(4, 2), nn.Parameter(R(3, 4)))


def changing_numbers(compiled):
    fast, x = compiled(lambda t, n, f, flag, name: (t * n + f, n * 2) if flag else (t - f, name)), R(3)
    calls = [(1, 0.5, True, "a"), (2, 0.5, True, "a"), (3, 1.5, False, "a"), (-1, float("inf"), False, "b"), (True, 0, 1, "")]
    return [fast(x, *given) for given in calls]


def changing_types(compiled):
    fast = compiled(lambda t: t + t)
    return [
        fast(torch.arange(4).to(dtype)) for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.uint8, torch.float64)
    ]


def changing_layouts(compiled):
    fast, x = compiled(lambda t: t * 2 + 1), R(4, 4)
    return [fast(one) for one in (x, x.t(), x[:, ::2], x[1:], x.expand(2, 4, 4), x[0], x[0, 0], x[:0])]


def data_classes(compiled):
    def function(given):
        return Result(given.value * 2, given.name + "!", [given.value, *given.parts])

    return dataclasses.asdict(compiled(function)(Result(R(3), "a", [R(2)])))


def versions(compiled):
    model, x = nn.BatchNorm1d(4), R(5, 4)
    fast, step, before = compiled(model), compiled(lambda t: (t.add_(1), t * 2)), model.running_var._version
    fast(x)
    with torch.no_grad():
        step(x)
    # A norm's own kernel does not count its changes of `running_var`; what is traced does.
    return model.num_batches_tracked._version, x._version, model.running_var._version - before + (compiled is eager)


def generators(compiled):
    def function(x):
        for n in range(3):
            yield x + n

    return list(compiled(lambda t: list(function(t)))(R(3)))


def random_state(compiled):
    fast = compiled(lambda t: t + torch.rand(3) + torch.rand(3))
    found = [fast(torch.zeros(3)), torch.rand(2), fast(torch.zeros(3))]
    torch.manual_seed(7)
    return found, fast(torch.zeros(3)), torch.initial_seed()


def default_types(compiled):
    kept = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        return compiled(lambda: torch.ones(3) / 3)(), compiled(lambda x: x * torch.tensor(0.1))(torch.ones(3))
    finally:
        torch.set_default_dtype(kept)


def globals_read(compiled):
    global OFFSET
    fast, found = compiled(lambda x: x + OFFSET), []
    for value in (1.0, 2.0, R(3)):
        OFFSET = value
        found.append(fast(torch.zeros(3)))
    return found


OFFSET = 0.0
CASES = (
    *(methods, closures, partials, decorated, nested, nested_in_a_module, threads, threads_in_training, state_between_calls),
    *(types_between_calls, kept_attributes, training_and_evaluation, copies, saved, parametrized, layers_replaced),
    *(compiled_in_place, results_kept, breaks, errors, errors_of_pytorch, subclasses, changing_numbers, changing_types),
    *(changing_layouts, data_classes, versions, generators, random_state, default_types, globals_read),
)


@pytest.mark.rotated(7)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_as_in_eager(case):
    found = []
    for compiled in (eager, lambda function: torch.compile(function, backend="kitsune")):
        torch._dynamo.reset()
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(case(compiled))
    alike(found[1], found[0], 1e-2 if case is types_between_calls else 1e-5)
