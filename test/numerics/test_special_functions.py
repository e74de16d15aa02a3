"""Special functions against values in 40 digits, their special values against PyTorch's, and their gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import pytest
import torch
from torch import Tensor

import kitsune_mlir
from bench.sweeps import Function
from test.gpu.unassembled import unassembled
from test.numerics.gradients import wrong
from test.programs.compiled import planned_for_gpu
from test.rotation import in_turn

S = torch.special
Number = Any
"""mpmath's, which has no types."""
LEAST_EPS = 6
"""Of the type, which are errors of a few last places; otherwise twice that of PyTorch."""


class Form(NamedTuple):
    """A function, its value for a number in as many digits as mpmath has, and what its arguments are.

    Attributes:
        size: of the terms of which a value is the sum, beside its own: errors are compared with the larger one.
        unlike: whether PyTorch's value for a special one is another.
    """

    function: Callable[[Tensor], Tensor]
    exact: Callable[[Number], Number]
    sample: Callable[[int], Tensor]
    size: Callable[[Tensor], Tensor] = torch.zeros_like
    unlike: Callable[[float], bool] = lambda x: False


def spread(count: int) -> Tensor:
    """Numbers of ordinary sizes, of either sign, few of them very small or large."""
    sizes = 10 * torch.randn(count, dtype=torch.float64)
    wide = torch.exp(12 * torch.randn(count, dtype=torch.float64))
    return torch.where(torch.rand(count) < 0.15, wide, sizes)


def below_1(count: int) -> Tensor:
    """Numbers from -1 to 1, many near these."""
    x = 2 * torch.rand(count, dtype=torch.float64) - 1
    near = torch.sign(x) * (1 - torch.exp(-16 * torch.rand(count, dtype=torch.float64)))
    return torch.where(torch.rand(count) < 0.3, near, x)


def chances(count: int) -> Tensor:
    """Numbers from 0 to 1, many near 0."""
    x = torch.rand(count, dtype=torch.float64)
    return torch.where(torch.rand(count) < 0.3, torch.exp(-80 * x), x)


def quantile(p: Number) -> Number:
    with mpmath.workdps(80):
        return mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)


def scaled_erfc(x: Number) -> Number:
    return mpmath.exp(x * x) * mpmath.erfc(x) if x < 1e4 else (1 - 1 / (2 * x * x)) / (x * mpmath.sqrt(mpmath.pi))


def scaled_bessel(order: int) -> Callable[[Number], Number]:
    return lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(order, x)


def of_gamma(x: Tensor) -> Tensor:
    return torch.where(x < 0, torch.lgamma(1 + x.abs()), 1.0)


def of_waves(x: Tensor) -> Tensor:
    return 0.8 / torch.sqrt(x.abs().clamp(min=1))


def unlike_polygamma(order: int) -> Callable[[float], bool]:
    """PyTorch's first derivative of ψ is some large number at its poles, and its others no number at infinity."""
    return lambda x: x < 0 and (math.isinf(x) or x == math.floor(x)) if order == 1 else x == math.inf


def polygamma(order: int) -> Form:
    return Form(lambda x: torch.polygamma(order, x), lambda x: mpmath.psi(order, x), spread, unlike=unlike_polygamma(order))


FORMS: dict[str, Form] = {
    "lgamma": Form(torch.lgamma, lambda x: mpmath.loggamma(x).real, spread, of_gamma),
    "digamma": Form(torch.digamma, mpmath.digamma, spread, torch.ones_like),
    "polygamma 1": polygamma(1),
    "polygamma 2": polygamma(2),
    "polygamma 5": polygamma(5),
    "erfinv": Form(torch.erfinv, mpmath.erfinv, below_1),
    "ndtri": Form(S.ndtri, quantile, chances),
    "erfc": Form(torch.erfc, mpmath.erfc, spread),
    "erfcx": Form(S.erfcx, scaled_erfc, spread),
    "log_ndtr": Form(S.log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x)), lambda n: spread(n).clamp(-1e3, 5)),
    "i0": Form(torch.i0, lambda x: mpmath.besseli(0, x), spread, unlike=math.isinf),
    "i0e": Form(S.i0e, scaled_bessel(0), spread),
    "i1": Form(S.i1, lambda x: mpmath.besseli(1, x), spread, unlike=math.isinf),
    "i1e": Form(S.i1e, scaled_bessel(1), spread),
    "j0": Form(S.bessel_j0, lambda x: mpmath.besselj(0, x), lambda n: spread(n).clamp(-1e3, 1e3), of_waves),
    "j1": Form(S.bessel_j1, lambda x: mpmath.besselj(1, x), lambda n: spread(n).clamp(-1e3, 1e3), of_waves),
}
SPECIAL = (0, 1, 2, 3, 7, 0.5, 1.5, math.inf, math.nan, 1e-45, 1e-40, 1e-30, 1e7, 1e30, 3e38, 9.1, 27, 150)
SIZES = (1, 7, 129, 1000)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
VALUES = [
    (name, dtype, count)
    for name, dtype, count in itertools.product(FORMS, DTYPES, SIZES)
    if count == 129 or dtype == torch.float32
]


def exact(form: Form, x: Tensor) -> Tensor:
    """In f64, infinite where it is larger."""

    def value(number: float) -> float:
        with mpmath.workdps(40):
            try:
                return float(form.exact(mpmath.mpf(number)))
            except (ValueError, ZeroDivisionError):  # a pole
                return math.nan

    return torch.tensor([value(number) for number in x.tolist()], dtype=torch.float64)


def errors(found: Tensor, wanted: Tensor, size: Tensor) -> Tensor:
    """Differences from finite values, by the type's eps of the value, of a larger `size`, or of the least normal number."""
    info = torch.finfo(found.dtype)
    counted = wanted.abs() < info.max / 2
    unit = torch.maximum(wanted.abs(), size).clamp(min=info.tiny) * info.eps
    return ((found.double() - wanted).abs() / unit)[counted]


def runs(form: Form, dtype: torch.dtype) -> bool:
    """Whether PyTorch has it in a type, on the host."""
    try:
        form.function(torch.ones(1, dtype=dtype))
    except NotImplementedError:
        return False
    return True


def by_both(function: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
    """Results of the host's program, and of the one that was planned for a GPU."""
    program = kitsune_mlir.compile(Function(function), args, target="host")
    return [program(*args), planned_for_gpu(Function(function), *args)(*args)]


@pytest.mark.parametrize(("name", "dtype", "count"), in_turn(VALUES, 16), ids=str)
def test_values(name: str, dtype: torch.dtype, count: int) -> None:
    form = FORMS[name]
    torch.manual_seed(count)
    x = form.sample(count).to(dtype)
    x = torch.where(torch.isfinite(x), x, 0.5)
    wanted, size = exact(form, x), form.size(x.double())
    limit = LEAST_EPS
    if runs(form, dtype):
        plain = errors(form.function(x), wanted, size)
        limit = max([limit, *(2 * plain[torch.isfinite(plain)]).tolist()])
    for found in by_both(form.function, x):
        assert found.dtype == dtype
        assert (errors(found, wanted, size) <= limit).all()


@pytest.mark.parametrize(("name", "dtype"), in_turn([*itertools.product(FORMS, (torch.float32, torch.float64))], 6), ids=str)
def test_special_values(name: str, dtype: torch.dtype) -> None:
    """As PyTorch's, signs of zeros included."""
    form = FORMS[name]
    x = torch.tensor([sign * number for number in SPECIAL for sign in (1, -1)], dtype=dtype)
    x = x[[not form.unlike(number) for number in x.tolist()]]
    wanted = form.function(x)
    known = ~torch.isnan(wanted)
    for found in by_both(form.function, x):
        torch.testing.assert_close(
            found, wanted, rtol=1e-5, atol=1e-6 if form.size is not torch.zeros_like else 0, equal_nan=True
        )
        assert torch.equal(torch.signbit(found[known]), torch.signbit(wanted[known]))


@pytest.mark.parametrize(
    ("dtype", "count"), in_turn([*itertools.product((torch.float32, torch.float64), (1, 7, 129))], 2), ids=str
)
def test_zeta(dtype: torch.dtype, count: int) -> None:
    """Values of Hurwitz's zeta function in 40 digits; below 0, PyTorch's in f64, which adds up its terms."""
    torch.manual_seed(count)
    s = 1 + torch.exp(1.5 * torch.randn(count, dtype=torch.float64))
    q = torch.exp(2 * torch.randn(count, dtype=torch.float64))
    below = torch.rand(count) < 0.3
    s, q = (torch.where(below, a, b).to(dtype) for a, b in ((torch.randint(2, 9, (count,)), s), (-10 * q / (1 + q), q)))
    values = [
        float(mpmath.zeta(mpmath.mpf(a), mpmath.mpf(b))) if b > 0 else math.nan
        for a, b in zip(s.tolist(), q.tolist(), strict=True)
    ]
    wanted = torch.where(below, S.zeta(s.double(), q.double()), torch.tensor(values, dtype=torch.float64))
    largest = (q - torch.round(q)).abs().double() ** -s.double()  # of the terms below 0, which have either sign
    size = torch.where(below, largest, 0.0)
    limit = max([LEAST_EPS, *(2 * errors(S.zeta(s, q), wanted, size)).tolist()])
    for found in by_both(S.zeta, s, q):
        assert (errors(found, wanted, size) <= limit).all()


def test_special_values_of_zeta() -> None:
    """As PyTorch's, which is no number where one of the arguments is so large that all terms are 0."""
    some = [0.0, 1, 2, 3, 1.5, 0.5, -1, -2, -1.5, 30, -math.inf, math.nan]
    pairs = torch.tensor([*itertools.product(some, [*some, 1e10])])
    s, q = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    for found in by_both(S.zeta, s, q):
        torch.testing.assert_close(found, S.zeta(s, q), rtol=1e-5, atol=0, equal_nan=True)
    for found in by_both(lambda q: S.zeta(2.5, q) + S.zeta(q.abs() + 1.5, 0.5), q):
        wanted = S.zeta(2.5, q) + S.zeta(q.abs() + 1.5, 0.5)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("order", [1, 2, 3, 12])
def test_poles_of_polygamma(order: int) -> None:
    x = torch.tensor([0.0, -1, -2, -1e7])
    for found in by_both(lambda x: torch.polygamma(order, x), x):
        assert torch.equal(found, torch.full_like(x, math.inf if order % 2 else -math.inf))


def test_large_modified_functions_are_finite_as_long_as_their_values_are() -> None:
    """PyTorch's exponential is infinite before."""
    x = torch.tensor([89.0, 91.0, -91.5, 92.5, -math.inf])
    for found in by_both(lambda x: torch.stack([torch.i0(x), S.i1(x)]), x):
        wanted = torch.stack([torch.i0(x.double()), S.i1(x.double())]).float().nan_to_num(nan=math.inf, posinf=math.inf)
        wanted[1, 4] = -math.inf
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", [*FORMS, "zeta"])
def test_one_stage_on_the_gpu(name: str) -> None:
    """Each is one stage, with nothing that engines lack."""
    function = FORMS[name].function if name in FORMS else lambda x: S.zeta(x + 1.5, x)
    with unassembled():
        program = kitsune_mlir.compile(Function(function), (torch.rand(33, 129),), target="h200")
    assert {engine["engine"] for engine in program.summary["engines"]} == {"simt"}
    assert program.summary["launches"] == 1 and len(program.summary["engines"]) == 1


INPUTS: dict[str, Callable[..., Tensor]] = {
    "integers": torch.lgamma,
    "no dimensions": torch.digamma,
    "rows of another order": lambda x: S.i1e(x.float().reshape(-1, 3).t()),
    "several arguments": lambda x: torch.mvlgamma(x.float() + 3, 2),
}


@pytest.mark.parametrize("name", INPUTS)
def test_other_inputs(name: str) -> None:
    x = torch.tensor(5) if name == "no dimensions" else torch.arange(1, 13)
    wanted = INPUTS[name](x)
    for found in by_both(INPUTS[name], x):
        torch.testing.assert_close(found, wanted, rtol=2e-6, atol=2e-6)


def squared(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function whose argument is positive and has two dimensions."""
    return lambda x: function(x * x + 0.3)


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: squared(FORMS[name].function) for name in FORMS if name not in ("erfinv", "ndtri", "j0", "j1")},
    "zeta": squared(lambda x: S.zeta(2.5, x)),
    "mvlgamma": squared(lambda x: torch.mvlgamma(x + 2, 3)),
    "erfinv": lambda x: torch.erfinv(torch.tanh(x)),
    "ndtri": lambda x: S.ndtri(torch.sigmoid(x)),
}


@pytest.mark.parametrize("name", in_turn([*GRADIENTS], 5))
def test_gradients(name: str) -> None:
    """Which other functions of the family are parts of."""
    torch.manual_seed(0)
    assert wrong(GRADIENTS[name], [torch.randn(7, 33)]) == []


def test_torch_compile_has_no_islands() -> None:
    def every(x: Tensor) -> Tensor:
        smooth = [form.function(x) for name, form in FORMS.items() if name not in ("j0", "j1")]
        return torch.stack(smooth).sum(0)

    torch.manual_seed(0)
    x = (0.1 + 0.8 * torch.rand(5, 33)).requires_grad_()
    fast = torch.compile(every, backend="kitsune", options={"require_full": True})
    (found,) = torch.autograd.grad(fast(x).sum(), x)
    (wanted,) = torch.autograd.grad(every(x).sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
