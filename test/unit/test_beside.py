"""Products that run beside each other are planned for their parts of the multiprocessors."""

from __future__ import annotations

import types

import pytest

from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
from kitsune_mlir.codegen.gpu.kernel.concurrent_gemms import options_of

OPTIONS = KernelOptions(workers=132)


def task(number: int, tiles: int, rows: str = "x", after: int | None = None, requested_engine: str = "mma"):
    loads = tuple(types.SimpleNamespace(buffer=types.SimpleNamespace(memory=name)) for name in (rows, f"w{number}"))
    waits = () if after is None else (types.SimpleNamespace(task=after),)
    return types.SimpleNamespace(number=number, tiles=tiles, requested_engine=requested_engine, loads=loads, waits=waits)


def workers(*tasks) -> list[int]:
    return [options.workers for options in options_of(tasks, OPTIONS)]


def test_the_smaller_products_share_what_the_largest_leaves() -> None:
    # 64 tiles go whole to a multiprocessor each; two blocks share each of the others' tiles.
    assert workers(task(0, 64), task(1, 16), task(2, 16)) == [88, 34, 36]


def test_the_order_of_the_tasks_does_not_matter() -> None:
    assert workers(task(0, 16), task(1, 64), task(2, 16)) == [34, 88, 36]


@pytest.mark.parametrize(
    "tasks",
    [
        (task(0, 64),),
        (task(0, 64), task(1, 64, rows="y")),  # of different inputs
        (task(0, 64), task(1, 64, after=0)),  # one after the other
        (task(0, 64), task(1, 64, requested_engine="simt")),
        (task(0, 100), task(1, 100)),  # tiles for all without division
    ],
)
def test_other_products_have_all_multiprocessors(tasks) -> None:
    assert workers(*tasks) == [132] * len(tasks)


def test_what_all_of_them_wait_for_does_not_part_them() -> None:
    assert workers(task(0, 9, requested_engine="simt"), task(1, 40, after=0), task(2, 40, after=0)) == [132, 66, 92]
