"""The collector of cycles while a model is compiled."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import kitsune_mlir
from kitsune_mlir.garbage import NEVER, full_collections_later


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thresholds():
    """Full collections that become due soon: also in a process of millions of objects, a quarter of which they await."""
    before = gc.get_threshold()
    gc.freeze()
    gc.collect()
    gc.set_threshold(50, 2, 2)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def full_collections() -> int:
    return gc.get_stats()[2]["collections"]


def busy() -> list[list[int]]:
    """Objects of which each is kept: full collections become due."""
    return [[] for _ in range(200_000)]


def test_full_collections_wait_and_younger_objects_do_not():
    full, made = full_collections(), busy()
    assert full_collections() > full
    full, young = full_collections(), gc.get_stats()[0]["collections"]
    with full_collections_later():
        with full_collections_later():
            made = busy()
        made = [made, busy()]
        short = weakref.ref(Cycle())
        made.append(busy())
        assert short() is None
        assert full_collections() == full
        assert gc.get_stats()[0]["collections"] > young
    assert gc.get_threshold() == (50, 2, 2)
    made = [[], *busy()]
    assert full_collections() > full and len(made) > 1


def test_an_error_ends_it():
    with pytest.raises(KeyError), full_collections_later():
        raise KeyError
    assert gc.get_threshold() == (50, 2, 2)


def test_thresholds_that_the_program_sets_stay():
    with full_collections_later():
        assert gc.get_threshold() == (50, 2, NEVER)
        gc.set_threshold(60, 3, 3)
    assert gc.get_threshold() == (60, 3, 3)


def test_blocks_of_other_threads_keep_it():
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with full_collections_later():
            begun.set()
            end.wait()

    thread = threading.Thread(target=other)
    with full_collections_later():
        thread.start()
        begun.wait()
    assert gc.get_threshold() == (50, 2, NEVER)
    end.set()
    thread.join()
    assert gc.get_threshold() == (50, 2, 2)


def test_a_model_is_compiled_without_them():
    seen: dict[str, int] = {}
    gc.set_threshold(700, 10, 10)
    options = {"cache": False, "on_phase": lambda name: seen.update({name: gc.get_threshold()[2]})}
    kitsune_mlir.compile(nn.Linear(8, 8), (torch.randn(4, 8),), target="host", options=options)
    assert {"import", "plan", "lower", "codegen"} <= seen.keys() and set(seen.values()) == {NEVER}
    assert gc.get_threshold() == (700, 10, 10)
