"""Cheap functions of simt: their errors, and when they are taken."""

import inspect
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kitsune_mlir.codegen.gpu.backend.ptx import to_ptx
from kitsune_mlir.codegen.gpu.backend.to_llvm import to_llvm_ir
from kitsune_mlir.codegen.gpu.emit import approx_math as simt_math
from test.gpu.simt_cases import Case, rows
from test.gpu.simt_programs import compile_case
from test.programs.emulated import compiled, emulated
from test.unit.test_simt_engine import check


def test_f16_has_the_functions_whose_errors_are_small_enough():
    """Half an ulp of f16 is 2.4e-4 of a value: the hardware's tanh and erf's polynomial are not that good."""
    every, close = (set(simt_math.approximations_for(names)) for names in (["bf16"], ["f16", "bf16"]))
    assert {"math.sqrt", "math.exp", "arith.divf"} <= close < every and not {"math.tanh", "math.erf", "math.log"} & close
    assert not simt_math.approximations_for(["bf16", "f32"]) and not simt_math.approximations_for([])


def ptx_of(run, *inputs) -> str:
    ((_, emitted),) = compile_case(Case(run, inputs))
    return to_ptx(to_llvm_ir(emitted.module))


def distribution(y: np.ndarray) -> np.ndarray:
    """As the device computes the normal distribution, in f32."""
    y = y.astype(np.float32)
    value = np.full_like(y, simt_math._NORMAL[-1])
    for number in simt_math._NORMAL[-2::-1]:
        value = value * (y * y) + np.float32(number)
    return np.clip(np.float32(0.5) + y * value, 0, 1)


def test_the_normal_distribution_is_good_to_8e_5_and_cut_off_outside():
    y = np.linspace(-30, 30, 600001)
    exact = np.array([0.5 + 0.5 * math.erf(value / math.sqrt(2)) for value in y.tolist()])
    assert np.abs(distribution(y) - exact).max() < 8e-5
    far = np.array([4, 5, 10, 1e3, 1e18, 1e30, np.inf])
    with np.errstate(over="ignore"):
        assert (distribution(far) == 1).all() and (distribution(-far) == 0).all()


@pytest.mark.parametrize("run, instruction", [
    (torch.exp, "ex2.approx.ftz"), (torch.tanh, "tanh.approx"), (torch.sigmoid, "rcp.approx.ftz"),
    (torch.sqrt, "sqrt.approx.ftz"), (lambda x: x / (x + 3), "div.full"), (torch.log, "lg2.approx"),
])  # fmt: skip
def test_short_functions_where_results_are_bf16_and_only_there(run, instruction):
    assert instruction in ptx_of(run, rows("bf16", 64, 64))
    assert instruction not in ptx_of(run, rows("f32", 64, 64)) or instruction == "ex2.approx.ftz"  # libdevice's exp ends in it


@pytest.mark.parametrize("shape, short", [((), True), ((64,), False), ((1, 64), False)])
def test_single_numbers_of_f32_leave_them_short(shape, short):
    """A learning rate, a count of steps: what they are computed with has 16 bits."""

    def run(x, y, rate):
        return (x - rate * y / (y.abs().float().sqrt() + 1e-8)).to(torch.bfloat16)

    ptx = ptx_of(run, rows("bf16", 64, 64), rows("bf16", 64, 64), ("f32", shape))
    assert ("div.full" in ptx, "sqrt.approx" in ptx, "div.rn" in ptx) == (short, short, not short)
    wide = ptx_of(lambda x, rate: rate / x, rows("f32", 64, 64), ("f32", ()))
    assert "div.full" not in wide


@pytest.mark.parametrize(
    "run", [torch.fmod, torch.remainder, torch.floor_divide, lambda x, y: (x / y).round(), lambda x, y: (x / y > 1.5) * x]
)
def test_what_jumps_has_exact_functions_before_it(run):
    """Quotients that are whole numbers, or nearly: a quotient that is a little less has another floor."""
    assert "div.full" not in ptx_of(run, rows("bf16", 64, 64), rows("bf16", 64, 64))
    assert "div.full" in ptx_of(lambda x, y: x / y, rows("bf16", 64, 64), rows("bf16", 64, 64))


def test_gelu_is_nine_operations_at_the_full_rate():
    """x / sqrt(2) is in the coefficients of erf, and 0.5 x (1 + erf) one product."""
    text = ptx_of(F.gelu, rows("bf16", 1024, 1024))
    points = text.count("fma.rn.sat.f32")
    assert points > 0 and text.count("fma.rn.f32") == 6 * points
    assert text.count("mul.rn.f32") + text.count("mul.f32") == 2 * points
    assert not any(name in text for name in ("add.f32", "add.rn.f32", "tanh.approx", "ex2.approx", "div.rn"))


@pytest.mark.parametrize(
    "run, saturated",
    [
        (lambda x: F.gelu(x), True),
        (lambda x: 0.5 * x * (1 + torch.erf(x * 0.3)), True),
        (lambda x: (1 + torch.erf(x)) * (x * 3), False),
        (lambda x, y: (1 + torch.erf(x)) * (y * 0.5), False),
        (lambda x: torch.erf(x), False),
    ],
)
def test_what_is_made_of_erf_is_right(run, saturated):
    """Cutting off by an fma turns NaN into 0, which only the product with the same number undoes."""
    case = Case(run, (rows("bf16", 7, 1000),) * len(inspect.signature(run).parameters))
    ((_, emitted),) = compile_case(case)
    assert ("nvvm.fma" in str(emitted.module)) == saturated
    check(case)


def test_a_number_that_all_points_share_is_inverted_once():
    """Softmax divides every element of a row by the row's sum."""
    text = ptx_of(lambda x: torch.softmax(x, -1), rows("f32", 64, 1024))
    assert "div.rn.f32" not in text and text.count("rcp.rn.f32") == 1


def test_values_between_operations_keep_their_bits():
    """PyTorch rounds x + y to bf16 before it multiplies; more bits are closer to the truth, and cost nothing."""
    text = ptx_of(lambda x, y: (x + y) * x, rows("bf16", 64, 256), rows("bf16", 64, 256))
    assert text.count("cvt.rn.bf16x2") == text.count("st.global.v4") * 4


def test_values_that_are_compared_are_rounded_as_pytorch_does():
    text = ptx_of(lambda x, y: torch.floor(x + y), rows("bf16", 64, 256), rows("bf16", 64, 256))
    assert text.count("cvt.rn.bf16x2") > 0 and "cvt.rmi" in text
    rounded = ptx_of(lambda x, y: (x + y > x).to(torch.bfloat16), rows("bf16", 64, 256), rows("bf16", 64, 256))
    assert rounded.count("cvt.rn.bf16x2") >= 4


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.erf(x) * x.flip(0),
        lambda x: (1 + torch.erf(x)) * (x.flip(0) * 0.5),
        lambda x: x * x.roll(3, 1) + x.roll(1, 0),
        lambda x: x * x[torch.arange(x.shape[0] - 1, -1, -1)],
    ],
)
def test_rows_read_in_place_and_by_index_in_one_loop(run):
    """The operand is a tile, what the body reads by index the whole tensor."""
    check(Case(run, (rows("bf16", 7, 1000),)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_powers_by_tensors_are_ieee_754s(dtype):
    """In f32, by libdevice or, for results of 16 bits, by exponent and logarithm; never in f64."""
    numbers = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.3, -0.3, math.inf, -math.inf, math.nan, 1.0078125]
    x = torch.tensor(numbers).to(dtype)
    by = torch.tensor([0, 1, 2, 3, 7, -1, -2, -3])
    floats = torch.tensor([0.0, 0.5, -0.5, 2.0, 3.0, -3.0, math.inf, -math.inf, math.nan, 40.0]).to(dtype)
    for exponent in (by, floats):
        program = compiled(lambda x, e: x.unsqueeze(-1) ** e, [x, exponent])
        assert "math.powf" in program.ir("stages") and "f64" not in program.ir("stages")
        want = x.double().unsqueeze(-1) ** exponent.double()
        (found,) = emulated(program, [x, exponent], [want.to(dtype)])
        limit = 5e-3 if dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(found.double(), want.to(dtype).double(), rtol=limit, atol=0, equal_nan=True)
        known = ~want.isnan()
        assert torch.equal(torch.signbit(found)[known], torch.signbit(want)[known])
    assert ("lg2.approx" in program.ir("ptx")) == (dtype == torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_remainders_are_exact(dtype: torch.dtype):
    """Quotients up to 2^40, also those that are integers, and what has none."""
    torch.manual_seed(0)
    x = torch.randn(4096) * 2.0 ** torch.randint(-20, 20, (4096,))
    y = torch.randn(4096) * 2.0 ** torch.randint(-20, 20, (4096,))
    x[:1024] = (y[:1024] * torch.randint(-500, 500, (1024,))).bfloat16().float()
    pairs = [(0.0, 1.0), (-0.0, 2.0), (4.0, 2.0), (-4.0, 2.0), (5.0, math.inf), (-5.0, -math.inf), (math.inf, 2.0), (1.0, 0.0)]
    x[1024:1032], y[1024:1032] = torch.tensor(pairs).unbind(1)
    x, y = x.to(dtype), y.to(dtype)
    want = torch.fmod(x.double(), y.double()).to(dtype)
    (found,) = emulated(compiled(torch.fmod, [x, y]), [x, y], [want])
    assert torch.equal(torch.nan_to_num(found, 7.0), torch.nan_to_num(want, 7.0))
