"""torch.compile(backend="kitsune") beside eager: types, layouts of inputs, writes to them, structures, transforms of functions.

As in test_dynamo.py, each case is called twice on fresh inputs, and what each output's memory is seen by writing to it.
"""

import collections
import enum

import pytest
import torch
import torch.nn.functional as F

from test.unit.test_dynamo import R, run

Pair = collections.namedtuple("Pair", "first second")


class Way(enum.Enum):
    UP = 1
    DOWN = 2


def changed(x, how):
    how(x)
    return x * 2


def numbers(dtype):
    most = {torch.bool: 2, torch.uint8: 256}.get(dtype, 90)
    return torch.randint(0, most, (5, 7)).to(dtype)


def overlapping():
    return R(12).as_strided((5, 4), (2, 1))


DTYPES = [
    *(torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.complex64, torch.uint16, torch.float8_e4m3fn),
]


@pytest.mark.rotated(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types(dtype):
    def function(x):
        if dtype is torch.bool:
            return x | ~x.t().t(), x.sum(), x.any(1), x.to(torch.int32) * 3, x
        if dtype in (torch.uint16, torch.float8_e4m3fn):
            return x.t(), x.to(torch.float32) * 2, x
        return x + x, x * 3, x.t(), (x == x[0]).sum(), x.sum(1), x

    run(function, lambda: (numbers(dtype),))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_bytes_beside_numbers(dtype):
    def function(x):
        return x % 7, x << (x % 3), 100 % (x % 5 + 1), x.max(), x.min(), x[0].max(), x - 100, x // 3, torch.fmod(x, 5)

    run(function, lambda: (numbers(dtype),))


@pytest.mark.rotated(1)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_bytes_as_what_they_are_computed_in(dtype):
    def function(x):
        wide = x.sum(1), x.prod(0), x / 3, x * 0.5, -x + x.int(), torch.cat([x, x.int()]), x + x.to(torch.int8), x.argmin(0)
        wide += (x % 7 + 1, x // 3, x >= 1.5, x % (x // 2 + 1), (x.float() % 200).to(torch.uint8), torch.copysign(x, x))
        return *wide, x.abs(), x.sort(1)[0], x.topk(2)[0], x.median(0)[0], torch.where(x > 100, x, 1.5), x.float().mean()

    run(function, lambda: (numbers(dtype),))


def test_truth_values_beside_numbers():
    def function(x, y, b):
        s, mask = b.to(torch.int8), y > 0
        both = (x == s, torch.maximum(x, s), torch.where(mask, x, s), torch.where(mask, b, x), torch.cat([x, s, x]), x & b)
        return *both, x > y, y > x, x >= b, b < x, x <= y, x == y, x + y, torch.maximum(x, y), torch.where(x, y, 1.5)

    run(function, lambda: (numbers(torch.bool), numbers(torch.int16) - 45, numbers(torch.uint8)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
def test_a_mask_that_is_a_value_beside_bytes(dtype):
    run(lambda b, x: (torch.where(b, b, x), torch.where(b, x, b)), lambda: (numbers(torch.bool), numbers(dtype)))


def test_bytes_of_two_types():
    run(lambda x: (x.clone(), x.to(torch.int8), x.relu(), x + 1), lambda: (numbers(torch.uint8),))


def test_results_that_are_row_major_however_operands_lie():
    def function(x):
        return x.softmax(-1), F.layer_norm(x, (4,)).view(-1), x.log_softmax(1), F.rms_norm(x, (4,)).view(15, 4)

    said, _ = run(function, lambda: (R(5, 3, 4).permute(1, 0, 2),))
    assert not said


LAYOUTS = {
    "no elements": lambda: R(0, 4),
    "no elements inside": lambda: R(3, 0, 4),
    "a number": lambda: R(()),
    "one element": lambda: R(1, 1),
    "expanded": lambda: R(3, 1).expand(3, 4),
    "a number expanded": lambda: R(()).expand(3, 4),
    "overlapping": overlapping,
    "every third": lambda: R(5, 12)[:, ::3],
    "from the middle": lambda: R(40)[7:27].view(4, 5),
    "permuted": lambda: R(3, 4, 5).permute(2, 0, 1),
    "volumes, channels last": lambda: R(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d),
    "gaps between rows": lambda: R(6, 130)[:, :129],
    "a column": lambda: R(9, 3)[:, 1],
    "six dimensions": lambda: R(2, 1, 3, 2, 1, 2).transpose(0, 3),
    "of a later offset": lambda: R(100).as_strided((3, 4), (1, 7), 5),
}


@pytest.mark.rotated(5)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    run(lambda x: (x * 2 + 1, x.sum(), x > 0, x.unsqueeze(0), x.clone(), x.contiguous() + 0.5), lambda: (LAYOUTS[name](),))


def spectrum(x, w):
    return torch.view_as_real(torch.fft.rfft(x) * torch.view_as_complex(w)).square().mean()


def imaginary(x, w):
    return (torch.fft.rfft(x).conj().imag * w[:, 0]).sum()


@pytest.mark.parametrize("function", [spectrum, imaginary])
def test_gradients_through_conjugates_and_negatives(function):
    """These are views in which only a bit says what is read."""
    x, w = R(9, 13), R(7, 2).requires_grad_()
    (wanted,) = torch.autograd.grad(function(x, w), w)
    compiled = torch.compile(function, backend="kitsune", options={"guard": False})
    (found,) = torch.autograd.grad(compiled(x, w), w)
    torch.testing.assert_close(found, wanted)


def swapped(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


WRITES = {
    "zero": (lambda x: changed(x, torch.Tensor.zero_), lambda: (R(3, 4),)),
    "fill": (lambda x: changed(x, lambda t: t.fill_(7)), lambda: (R(3, 4),)),
    "a row": (lambda x: changed(x, lambda t: t.__setitem__(1, 5.0)), lambda: (R(3, 4),)),
    "by mask": (lambda x: changed(x, lambda t: t.masked_fill_(t > 0, -1)), lambda: (R(3, 4),)),
    "by index": (lambda x, i: changed(x, lambda t: t.index_add_(0, i, t[i])), lambda: (R(5, 4), torch.tensor([1, 3, 1]))),
    "put, added up": (
        lambda x, i: changed(x, lambda t: t.index_put_((i,), torch.ones(3, 4), accumulate=True)),
        lambda: (R(5, 4), torch.tensor([1, 3, 1])),
    ),
    "a view": (lambda x: (x[1:].mul_(2), x.t(), x[0]), lambda: (R(3, 4),)),
    "a view of a view": (lambda x: changed(x, lambda t: t.view(-1)[2:9].view(7).add_(1)), lambda: (R(3, 4),)),
    "shape in place": (lambda x: ((x + 1).t_(), (x * 2).unsqueeze_(0)), lambda: (R(3, 4),)),
    "the input's shape": (lambda x: (x.t_(), x * 2), lambda: (R(3, 4),)),
    "transposed input": (lambda x: (x.add_(1), x.sum()), lambda: (R(3, 4).t(),)),
    "every other column": (lambda x: (x.mul_(3), x[0]), lambda: (R(5, 8)[:, ::2],)),
    "two swapped": (lambda x, y: (swapped(x, y), x + y), lambda: (R(3), R(3))),
    "from the other": (lambda x, y: (x.copy_(y), y.add_(1), x * y), lambda: (R(3, 4), R(4))),
    "of another type": (lambda x, y: (x.add_(y), y.add_(1)), lambda: (R(3), torch.arange(3))),
    "narrow": (lambda x, y: (x.copy_(y), x.mul_(y)), lambda: (R(3).half(), R(3))),
    "integers": (lambda x: (x.add_(1), x.floor_divide_(2), x.bitwise_and_(3)), lambda: (torch.arange(-6, 6),)),
    "twice": (lambda x: (x.add_(1).mul_(x), x.sub_(1)), lambda: (R(3, 4),)),
    "then read": (lambda x: (x * 2, x.add_(1), x * 2), lambda: (R(3, 4),)),
    "of a list": (lambda xs: [x.add_(n) for n, x in enumerate(xs)], lambda: ([R(3), R(4), R(5)],)),
    "of a dict": (lambda d: (d["a"].add_(d["b"]), d), lambda: ({"a": R(3), "b": R(3)},)),
    "a dict that grows": (lambda d: d.update(c=d["a"] + 1) or d["c"] * 2, lambda: ({"a": R(3)},)),
    "a number": (lambda x: (x.add_(1), x * 2), lambda: (R(()),)),
    "no elements": (lambda x: (x.add_(1), x.sum()), lambda: (R(0, 3),)),
    "foreach": (lambda xs: torch._foreach_add_(xs, 2.0) or xs[0] * 2, lambda: ([R(3), R(2, 2)],)),  # type: ignore[attr-defined]
    "copied slices": (lambda x, y: (x[:, 1:3].copy_(y), x.sum()), lambda: (R(3, 5), R(3, 2))),
    "diagonal": (lambda x: (x.fill_diagonal_(0), x.diagonal().add_(2)), lambda: (R(4, 4),)),
    "running sum": (lambda x: (x.cumsum_(0), x * 2), lambda: (R(5, 2),)),
    "out of a view": (lambda x, o: (torch.mul(x, 2, out=o), o[0]), lambda: (R(3), R(3))),
    "sorted, out": (lambda x, o, i: torch.sort(x, out=(o, i)), lambda: (R(9), R(9), torch.empty(9, dtype=torch.int64))),
    "values by data": (lambda x: (x.data.mul_(2), x + 1), lambda: (R(3, 4),)),
    "detached": (lambda x: (x.detach().mul_(2), x + 1), lambda: (R(3, 4),)),
    "conditional": (lambda x: x.mul_(2) if x.shape[0] > 2 else x.add_(1), lambda: (R(3, 4),)),
}


@pytest.mark.rotated(11)
@pytest.mark.parametrize("name", WRITES)
def test_writes(name):
    run(*WRITES[name])


def shared(*, same=False):
    memory = R(12)
    return (memory, memory) if same else (memory[:8], memory[4:])


SHARED = {
    "one tensor twice": (lambda x, y: (x.add_(1), y * 2), lambda: shared(same=True)),
    "one tensor twice, both written": (lambda x, y: (x.add_(1), y.mul_(2), x + y), lambda: shared(same=True)),
    "one tensor twice, read": (lambda x, y: (x + y, x, y), lambda: shared(same=True)),
    "overlapping, one written": (lambda x, y: (x.add_(1), y * 2), shared),
    "overlapping, both written": (lambda x, y: (x.add_(1), y.mul_(2), x * 3), shared),
    "overlapping, read": (lambda x, y: (x + y, x[1:], y[0]), shared),
    "whole and transposed": (lambda x, y: (x.mul_(2), y + 1), lambda: (lambda t: (t, t.t()))(R(3, 4))),
    "two looks of other types": (lambda x, y: (x.add_(1), y + 1), lambda: (lambda t: (t, t.view(torch.int32)))(R(8))),
    "whole and a row": (lambda x, y: (y.zero_(), x.sum(), x), lambda: (lambda t: (t, t[1]))(R(3, 4))),
}


@pytest.mark.rotated(4)
@pytest.mark.parametrize("name", SHARED)
def test_inputs_that_share_memory_and_are_written(name):
    run(*SHARED[name])


STRUCTURES = {
    "dict": (lambda x: {"a": x + 1, "b": {"c": x, "d": [x * 2, None]}}, lambda: (R(3),)),
    "tuple of lists": (lambda x: ([x + 1, (x,)], 3, "name", None, 2.5, True), lambda: (R(3),)),
    "named tuple": (lambda x: Pair(x + 1, Pair(x, 2)), lambda: (R(3),)),
    "PyTorch's own": (lambda x: x.max(1), lambda: (R(3, 4),)),
    "PyTorch's own, sorted": (lambda x: (x.sort(1), x.topk(2)), lambda: (R(3, 4),)),
    "ordered": (lambda x: collections.OrderedDict(b=x + 1, a=x * 2), lambda: (R(3),)),
    "sizes": (lambda x: (x.shape, x.shape[0], x.numel(), x.stride(), x * 2), lambda: (R(3, 4),)),
    "a type": (lambda x: (str(x.dtype), x.device.type, x * 2), lambda: (R(3),)),
    "the same in two places": (lambda x: (lambda y: {"a": y, "b": [y, y[0]]})(x + 1), lambda: (R(3, 2),)),
    "the input in a dict": (lambda d: {"a": d["a"], "b": d["a"] + 1}, lambda: ({"a": R(3)},)),
    "an item": (lambda x: (x.sum().item() > 1e9, x * 2), lambda: (R(3),)),
    "a list in and out": (lambda xs: (xs, [x + 1 for x in xs], xs[::-1]), lambda: ([R(3), R(4)],)),
    "nothing": (lambda x: None if x.sum() is None else (), lambda: (R(3),)),
    "numbers in and out": (lambda x, n, f, b: (x * n + f if b else x, n + 1, f * 2, not b), lambda: (R(3), 2, 0.5, True)),
    "an enum": (lambda x, way: x + 1 if way is Way.UP else x - 1, lambda: (R(3), Way.DOWN)),
    "an optional": (lambda x, bias=None: x * 2 if bias is None else x + bias, lambda: (R(3), None)),
    "a slice": (lambda x, s: x[s] * 2, lambda: (R(5), slice(1, 4))),
    "a NumPy array": (lambda x: (torch.from_numpy(x.numpy() * 2), x + 1), lambda: (R(3),)),
    "unevenly split": (lambda x: (x + 1).split([1, 3, 2], 1), lambda: (R(2, 6),)),
    "a generator": (lambda x: tuple(x + n for n in range(3)), lambda: (R(3),)),
    "nonzero": (lambda x: ((x > 0).nonzero(), x + 1), lambda: (torch.tensor([1.0, -1.0, 2.0]),)),
    "masked": (lambda x: (x[x > 0] * 2, x.masked_select(x < 0)), lambda: (torch.tensor([1.0, -1.0, 2.0]),)),
    "unique": (lambda x: torch.unique(x * 2), lambda: (torch.tensor([1.0, 3.0, 1.0]),)),
    "sparse": (lambda x: (x * 2).to_sparse().to_dense() + 1, lambda: (torch.eye(3),)),
    "made": (lambda x: (torch.arange(5), torch.zeros(2, 3), torch.full((2,), 7), x + torch.eye(3)), lambda: (R(3, 3),)),
    "like another": (lambda x: (torch.ones_like(x), x.new_zeros(3), torch.empty_like(x).fill_(1)), lambda: (R(3, 4).t(),)),
}


@pytest.mark.rotated(9)
@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.filterwarnings("ignore")
def test_structures(name):
    run(*STRUCTURES[name])


def small_bytes(*shape):
    return torch.randint(-90, 90, shape, dtype=torch.int8)


OPERATORS = {
    "products of bytes": (lambda a, b: (a @ b, a[0] @ b, a @ b[:, 0]), lambda: (small_bytes(3, 5), small_bytes(5, 7))),
    "batched products of bytes": (lambda a, b: a @ b, lambda: (small_bytes(2, 3, 5), small_bytes(2, 5, 7))),
    "joined with no elements": (lambda a, b: torch.cat([a[0], b]), lambda: (R(1, 0, 4), R(5, 4))),
    "looked at as another type": (lambda x: ((x + 1).view(torch.int32) & 255) * 2, lambda: (R(3, 4),)),
    "an input as another type": (lambda x: (x.view(torch.int32) >> 3, x + 1), lambda: (R(3, 4),)),
    "as a wider type": (lambda x: (x + 1).view(torch.float16) + 1, lambda: (torch.arange(12).to(torch.int8),)),
}


@pytest.mark.rotated(3)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.filterwarnings("ignore")
def test_operators(name):
    run(*OPERATORS[name])


def square(x):
    return (x * x).sum()


func = torch.func
TRANSFORMS = {
    "vmap": (lambda x, y: func.vmap(torch.dot)(x, y), lambda: (R(3, 4), R(3, 4))),
    "vmap, other dimensions": (lambda x: func.vmap(lambda t: t.cumsum(0), in_dims=1, out_dims=1)(x), lambda: (R(3, 4),)),
    "vmap of vmap": (lambda x: func.vmap(func.vmap(lambda t: t * 2 + 1))(x), lambda: (R(3, 4),)),
    "grad": (lambda x: func.grad(square)(x), lambda: (R(4),)),
    "grad and value": (lambda x: func.grad_and_value(square)(x), lambda: (R(4),)),
    "grad of grad": (lambda x: func.grad(lambda t: func.grad(square)(t).sum())(x), lambda: (R(4),)),
    "grads of samples": (
        lambda w, x: func.vmap(func.grad(lambda t, s: square(t @ s)), (None, 0))(w, x),
        lambda: (R(3, 4), R(5, 4)),
    ),
    "jvp": (lambda x, v: func.jvp(torch.sin, (x,), (v,)), lambda: (R(4), R(4))),
    "vjp": (lambda x: (lambda out, back: (out, back(out)))(*func.vjp(torch.tanh, x)), lambda: (R(4),)),  # type: ignore[arg-type]
    "jacobian": (lambda x: func.jacrev(lambda t: t.sin() * t.sum())(x), lambda: (R(3),)),
    "jacobian, forward": (lambda x: func.jacfwd(lambda t: t * t)(x), lambda: (R(3),)),
    "hessian": (lambda x: func.hessian(lambda t: (t**3).sum())(x), lambda: (R(3),)),
    "a model's function": (
        lambda w, x: func.functional_call(torch.nn.Linear(4, 3), {"weight": w, "bias": w[:, 0]}, (x,)),
        lambda: (R(3, 4), R(2, 4)),
    ),
    "linearized": (lambda x: func.linearize(torch.sin, x)[0], lambda: (R(3),)),
    "functionalized": (lambda x: func.functionalize(lambda t: t.clone().add_(1))(x), lambda: (R(3),)),
    "vmap with a random draw": (lambda x: func.vmap(lambda t: F.relu(t) + 1, randomness="same")(x), lambda: (R(3, 4),)),
}


@pytest.mark.rotated(6)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore")
def test_functional_transforms(name):
    run(*TRANSFORMS[name])
