"""The operators of the breadth benchmark: none is planned far above its floor on an H200; small ones are right on the host."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable

import pytest
import torch
from torch.utils import _pytree as pytree

import kitsune_mlir
from bench.breadth.operators import operators
from bench.case import LIMITS, BenchCase
from bench.measure import exact, relative_errors
from kitsune_mlir.errors import PerformanceWarning
from test.gpu.unassembled import unassembled
from test.rotation import in_turn

LARGE = {case.name: case for case in operators() if "_large" in case.name}
SMALL = {case.name: case for case in operators() if "_small" in case.name}
SLOW = {
    "op_order_sort_large": "a sort moves its rows more often than once",
    "op_order_sort_stable_large": "as a sort",
    "op_order_sort_columns_large": "as a sort",
    "op_order_top_vector_large": "as a sort",
    "op_order_top_100_large": "as a sort",
    "op_order_kthvalue_large": "as a sort",
    "op_order_median_large": "as a sort",
    "op_conv_depthwise_large_f32": "the model of a depthwise convolution's time is three times what was measured",
    "op_conv_last_depthwise_large_f32": "the model of a depthwise convolution's time is three times what was measured",
    "op_product_squared_distance_large_f32": "differences, their squares and sums are no product",
}
"""Operators with stages that are said to be slow."""


def mixed(names: Iterable[str]) -> list[str]:
    """In an order in which a family's members are not neighbours."""
    return sorted(names, key=lambda name: zlib.crc32(name.encode()))


def compiled(case: BenchCase, target: str) -> kitsune_mlir.Program:
    """The program as the benchmark has it, not assembled."""
    exactly = {"convolution_precision": "highest"} if case.dtype == "f32" else {}
    model, args = case.make("cpu", target == "host")
    with unassembled(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        return kitsune_mlir.compile(model, args, target=target, options={} if target == "host" else exactly)


@pytest.mark.parametrize("name", in_turn(mixed(LARGE), 6))
def test_no_stage_is_far_above_its_floor(name: str) -> None:
    slow = [stage["reason"] for stage in compiled(LARGE[name], "h200").summary["slow"]]
    assert bool(slow) == any(name.startswith(known) for known in SLOW), slow


@pytest.mark.parametrize("name", in_turn(mixed(SMALL), 6))
def test_small_ones_are_right(name: str) -> None:
    """The error is at most twice what PyTorch's own is."""
    case = SMALL[name]
    model, args = case.make("cpu", True)
    found = compiled(case, "host")(*args)
    with torch.no_grad():
        wanted = exact(model, args)
        try:
            plain = model(*args)
        except NotImplementedError:  # PyTorch has some operators in f32 only, on the host
            assert all(error <= LIMITS[case.dtype] for error in relative_errors(found, wanted))
            return
    pairs = zip(relative_errors(found, wanted), relative_errors(plain, wanted), strict=True)
    assert all(own <= max(2 * eager, LIMITS["f32"]) for own, eager in pairs)
    assert [t.dtype for t in pytree.tree_leaves(found)] == [t.dtype for t in pytree.tree_leaves(plain)]
