"""Inline math functions of the host target against numpy in f64: ordinary numbers, special values, every binade."""

from __future__ import annotations

import numpy as np
import pytest

from test.programs.host import Rows, Stage, elementwise, tensor

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy on NaNs and overflows

RNG = np.random.default_rng(3)
SPECIAL = np.array(
    [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, -1e-38, 3.4e38, -3.4e38, 88.72, 88.73, -87.3, -87.4]
    + [-103.9, -104, -150, 150, 127.9, 128, -126, -149, -150, 0.5, 2, 3, -2, -3, 0.25, 1e10, 1e20, 2.0**30, 2.0**31 + 5]
    + [2.0**24, 8388607.5],
    dtype=np.float32,
)  # fmt: skip
COUNT = 20_001  # odd: the last vector is not full


def sample() -> np.ndarray:
    """Special values, random bit patterns (every exponent, NaNs), and numbers of ordinary size."""
    bits = RNG.integers(0, 1 << 32, COUNT, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ordinary = [scale * RNG.normal(size=COUNT) for scale in (0.01, 1, 10, 1e4)]
    return np.concatenate([SPECIAL, bits, *ordinary]).astype(np.float32)


def run(name: str, *arguments: np.ndarray) -> np.ndarray:
    names = ["x", "y"][: len(arguments)]
    shape = arguments[0].shape
    operands = ", ".join(f"%a{i}" for i in range(len(arguments)))
    body = elementwise(
        "r", shape, [(n, tensor(shape), "d0") for n in names], f"%q = math.{name} {operands} : f32\nlinalg.yield %q : f32"
    )
    stage = Stage("map", "out", shape[0], body, tiled=tuple(names))
    return Rows({n: (shape, "f32") for n in names}, {"out": (shape, "f32")}, [stage]).run(*arguments)[0]


def worst_ulp(got: np.ndarray, want: np.ndarray) -> tuple[float, int]:
    """Largest error in units in the last place of the f32 result, and where. Wrong infinities and NaNs count as infinite."""
    rounded = want.astype(np.float32)
    unit = np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, 1)))
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - want) / unit
    error[(got == rounded) | (np.isnan(got) & np.isnan(rounded))] = 0
    largest = np.finfo(np.float32).max
    edge = (np.isinf(got) & (np.abs(want) >= largest)) | (np.isinf(rounded) & (np.abs(got) == largest))
    error[edge & (np.sign(got) == np.sign(want))] = 0
    error[np.isnan(error)] = np.inf
    return float(error.max()), int(error.argmax())


def erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return erf(x)


UNARY = {
    "exp": (np.exp, 1.5),
    "exp2": (np.exp2, 1.5),
    "expm1": (np.expm1, 2.5),
    "log": (np.log, 1.5),
    "log2": (np.log2, 2.5),
    "log10": (np.log10, 3.0),
    "log1p": (np.log1p, 2.5),
    "tanh": (np.tanh, 3.0),
    "erf": (erf, 1.5),
    "sin": (np.sin, 2.0),
    "cos": (np.cos, 2.0),
    "tan": (np.tan, 4.0),
    "atan": (np.arctan, 2.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2.0),
    "sqrt": (np.sqrt, 0.51),
    "asin": (np.arcsin, 2.0),  # libm's
    "sinh": (np.sinh, 2.0),
}


@pytest.mark.rotated(8)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    reference, limit = UNARY[name]
    x = sample()
    got = run(name, x)
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64))
    error, at = worst_ulp(got, want)
    assert error <= limit, (x[at], got[at], want[at])
    zeros = x == 0
    assert (np.signbit(got[zeros]) == np.signbit(want[zeros].astype(np.float32))).all()


@pytest.mark.parametrize(("name", "reference", "limit"), [("powf", np.power, 1.0), ("atan2", np.arctan2, 2.5)])
def test_binary(name, reference, limit):
    a, b = (m.ravel() for m in np.meshgrid(SPECIAL, SPECIAL))
    x = np.concatenate([a, sample(), np.abs(5 * RNG.normal(size=COUNT)), np.arange(-60.0, 60)]).astype(np.float32)
    y = np.concatenate([b, RNG.permutation(sample()), 10 * RNG.normal(size=COUNT), np.tile([2.0, 3.0, -3.0, 0.5], 30)]).astype(
        np.float32
    )
    got = run(name, x, y)
    with np.errstate(all="ignore"):
        want = reference(x.astype(np.float64), y.astype(np.float64))
    error, at = worst_ulp(got, want)
    assert error <= limit, (x[at], y[at], got[at], want[at])


@pytest.mark.parametrize("exponent", [1, 2, 3, 4, -1, -2, 5, -7])
def test_constant_powers(exponent):
    x = np.concatenate([RNG.normal(size=100), [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    shape = x.shape
    for op, kind in (("powf", "f32"), ("fpowi", "i64")):
        number = f"{exponent}.0" if kind == "f32" else exponent
        types = "f32" if kind == "f32" else "f32, i64"
        body = elementwise(
            "r", shape, [("x", tensor(shape), "d0")],
            f"%n = arith.constant {number} : {kind}\n%q = math.{op} %a0, %n : {types}\nlinalg.yield %q : f32",
        )  # fmt: skip
        stage = Stage("map", "out", shape[0], body, tiled=("x",))
        (got,) = Rows({"x": (shape, "f32")}, {"out": (shape, "f32")}, [stage]).run(x)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(got, x.astype(np.float64) ** exponent, rtol=1e-6)


def test_f64_goes_to_libm():
    x = RNG.normal(size=77)
    shape = (77,)
    body = elementwise(
        "r",
        shape,
        [("x", tensor(shape, "f64"), "d0")],
        "%q = math.exp %a0 : f64\n%s = math.erf %q : f64\nlinalg.yield %s : f64",
        "f64",
    )
    (got,) = Rows({"x": (shape, "f64")}, {"out": (shape, "f64")}, [Stage("map", "out", 77, body, tiled=("x",))]).run(x)
    np.testing.assert_allclose(got, erf(np.exp(x)), rtol=1e-14)


@pytest.mark.parametrize(("name", "reference"), [("log1p", np.log1p), ("expm1", np.expm1)])
def test_f64_near_zero(name, reference):
    """LLVM has these as log(1 + x) and exp(x) - 1."""
    x = np.concatenate(
        [10.0 ** RNG.uniform(-300, 2, 200), -(10.0 ** RNG.uniform(-300, -0.01, 200)), [0.0, -0.0, np.inf, np.nan]]
    )
    shape = x.shape
    body = elementwise(
        "r", shape, [("x", tensor(shape, "f64"), "d0")], f"%q = math.{name} %a0 : f64\nlinalg.yield %q : f64", "f64"
    )
    stage = Stage("map", "out", shape[0], body, tiled=("x",))
    (got,) = Rows({"x": (shape, "f64")}, {"out": (shape, "f64")}, [stage]).run(x)
    np.testing.assert_allclose(got, reference(x), rtol=1e-15)
    assert (np.signbit(got) == np.signbit(x))[:-1].all()
