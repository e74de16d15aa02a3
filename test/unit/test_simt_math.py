"""Cheap functions of simt: their errors, and when they are taken."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from kitsune_mlir.codegen.gpu import simt_math
from kitsune_mlir.codegen.gpu.ptx import to_llvm_ir, to_ptx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gpu"))

from simt_cases import Case, rows
from simt_programs import compile_case


def ptx_of(run, *inputs) -> str:
    ((_, emitted),) = compile_case(Case(run, inputs))
    return to_ptx(to_llvm_ir(emitted.module))


def test_erf_is_good_to_3e_4_beside_the_error_of_tanh():
    x = np.linspace(-8, 8, 400001)
    a, b = simt_math._ERF
    exact = np.array([math.erf(value) for value in x.tolist()])
    assert np.abs(np.tanh(a * x + b * x**3) - exact).max() < 3e-4


@pytest.mark.parametrize("run, instruction", [
    (torch.exp, "ex2.approx.ftz"), (torch.tanh, "tanh.approx"), (torch.sigmoid, "rcp.approx.ftz"),
    (torch.sqrt, "sqrt.approx.ftz"), (lambda x: x / (x + 3), "div.full"), (torch.log, "lg2.approx"),
])  # fmt: skip
def test_short_functions_where_results_are_bf16_and_only_there(run, instruction):
    assert instruction in ptx_of(run, rows("bf16", 64, 64))
    assert instruction not in ptx_of(run, rows("f32", 64, 64)) or instruction == "ex2.approx.ftz"  # libdevice's exp ends in it


def test_no_calls_and_branches_in_gelu():
    text = ptx_of(F.gelu, rows("bf16", 1024, 1024))
    points = text.count("tanh.approx")
    assert "div.rn" not in text and points > 0 and text.count("fma.rn.f32") <= 3 * points


def test_gelu_has_no_multiplication_or_addition_of_its_constants():
    """x / sqrt(2) is in the coefficients of erf, and 0.5 x (1 + erf) one fma."""
    text = ptx_of(F.gelu, rows("bf16", 1024, 1024))
    points = text.count("tanh.approx")
    assert text.count("mul.rn.f32") + text.count("mul.f32") == 3 * points and "add.f32" not in text


def test_erf_of_a_product_and_a_sum_with_one_are_as_exact_as_apart():
    x = np.linspace(-6, 6, 100001)
    a, b = simt_math._ERF
    factor = 0.7071067811865476
    apart = np.tanh((x * factor * x * factor * b + a) * x * factor)
    together = np.tanh((x * x * (b * factor**3) + a * factor) * x)
    assert np.abs(apart - together).max() < 1e-12


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
