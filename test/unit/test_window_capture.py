"""What `kitsune_mlir.window()` captures is what eager PyTorch does: values, aliasing, dtypes, errors, gradients."""

import copy
import itertools
import random
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import kitsune_mlir
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.windows import balance, capture, segments
from kitsune_mlir.windows.capture import window
from kitsune_mlir.windows.operators import Meta, results_of

NEVER = 1 << 30
"""Times a segment has to come before it is compiled."""


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """No segment is, nor what capturing costs here: calls are so small that it never pays."""
    capture.forget()
    monkeypatch.setattr(balance, "LEAST", float("inf"))


def random_program(seed: int, tensors: list[torch.Tensor]) -> list:
    """Calls, views and changes in place of a pool of tensors; some are forgotten, some values are read."""
    draw, read = random.Random(seed), []
    pool = list(tensors)
    for _ in range(draw.randrange(5, 60)):
        a, b = draw.choice(pool), draw.choice(pool)
        what = draw.randrange(16)
        if what == 0:
            new = a + b.sum() * 0.01
        elif what == 1:
            new = torch.tanh(a) * float(draw.random())
        elif what == 2:
            new = a.T if a.dim() == 2 else a[None]
        elif what == 3:
            new = a[: max(1, a.shape[0] - 1)]
        elif what == 4 and a.shape == b.shape and a.data_ptr() != b.data_ptr():
            new = a.add_(torch.sigmoid(b), alpha=0.5)
        elif what == 5:
            a.mul_(0.5)
            continue
        elif what == 6:
            a[0] = draw.random()
            continue
        elif what == 7:
            new = torch.softmax(a, -1)
        elif what == 8 and draw.random() < 0.5:
            read.append(a.sum().item())
            if read[-1] > 0:
                pool.append(a * 2)
            continue
        elif what == 9:
            new = torch.cat([a.reshape(-1), b.reshape(-1), torch.ones(12)])[:12].view(3, 4)
        elif what == 10:
            new = (a > 0).to(torch.float32) + a.argmax(-1, keepdim=True)
        elif what == 11:
            new = a.max(-1)[0] if a.dim() > 1 else a
        elif what == 12:
            pool.pop(draw.randrange(len(pool)))
            if len(pool) < 2:
                pool += tensors
            continue
        elif what == 13:
            new = torch.stack(a.unbind(0)).clone()
        elif what == 14:
            new = a[a > 0.5][:3]
            if not new.numel():
                continue
        else:
            new = a.double().abs().float()
        pool.append(new)
    return [read, *pool]


def inputs_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(3, 4, generator=generator)
    return [base, base[1:], torch.randn(4, generator=generator), torch.randn(3, 4, generator=generator)]


def check_program(seed: int, after: int, exact: bool, **options) -> None:
    first, second = inputs_of(seed), inputs_of(seed)
    wanted = random_program(seed, first)
    with torch.no_grad(), window(after=after, **options):
        found = random_program(seed, second)
    tolerance: dict[str, Any] = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-4}
    assert found[0] == pytest.approx(wanted[0], rel=0 if exact else 1e-3, abs=0 if exact else 1e-3)
    for mine, other in zip([*found[1:], *second], [*wanted[1:], *first], strict=True):
        assert mine.dtype == other.dtype and type(mine) is type(other)
        # PyTorch's own results on meta tensors have other strides than real ones along dimensions of one element
        assert [n for size, n in zip(mine.shape, mine.stride(), strict=True) if size > 1] == [
            n for size, n in zip(other.shape, other.stride(), strict=True) if size > 1
        ]
        torch.testing.assert_close(mine, other, **tolerance)
    for a, b in zip(found[1:], wanted[1:], strict=True):  # who shares memory with whom
        mine = [a.untyped_storage().data_ptr() == one.untyped_storage().data_ptr() for one in found[1:]]
        assert mine == [b.untyped_storage().data_ptr() == one.untyped_storage().data_ptr() for one in wanted[1:]]


def test_random_programs_run_by_pytorch() -> None:
    first = random.randrange(1 << 40)
    for seed in range(first, first + 150):
        check_program(seed, NEVER, exact=True, threads=seed % 2, size=(1, 4, 128)[seed % 3])


def test_random_programs_compiled() -> None:
    first = random.randrange(1 << 40)
    for seed in range(first, first + 3):
        check_program(seed, 1, exact=False)


def test_segments_are_compiled_once_and_counted() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.LayerNorm(64)).eval()
    x = torch.randn(32, 64)
    with torch.no_grad():
        expected = model(x)
        total = expected.sum().item()
        with window(after=2) as captured:
            for _ in range(12):
                y = model(x)
                assert y.sum().item() == pytest.approx(total, abs=1e-2)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    assert captured.segments[f"PyTorch, {segments.NEW}"] == 1 and sum(captured.segments.values()) == 12
    assert captured.eager == {"aten._local_scalar_dense.default: a value is read": 12}
    assert len(capture._segments._known) == 1
    assert "12 segments" in captured.explain() and "a value is read" in captured.explain()


def test_what_is_too_small_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "CALL_SECONDS", 1.0)
    x = torch.ones(4)
    with window(after=2) as captured:
        for _ in range(8):
            assert (x + 1).sum().item() == 8
    assert captured.segments == {f"PyTorch, {segments.NEW}": 1, "PyTorch, it is too small": 7}


@pytest.mark.parametrize("read", ["numpy", "tolist", "repr", "array", "deepcopy", "dlpack", "float", "bool"])
def test_every_way_to_read_has_the_values(read: str) -> None:
    x = torch.randn(6)
    readers = {
        "numpy": lambda t: t.numpy().copy(),
        "tolist": lambda t: t.tolist(),
        "repr": repr,
        "array": lambda t: np.asarray(t).copy(),
        "deepcopy": lambda t: copy.deepcopy(t).numpy(),
        "dlpack": lambda t: np.from_dlpack(t).copy(),
        "float": lambda t: float(t[0]),
        "bool": lambda t: bool(t[0] > 0),
    }
    wanted = readers[read](torch.exp(x) - 1)
    with window(after=NEVER):
        found = readers[read](torch.exp(x) - 1)
    np.testing.assert_array_equal(found, wanted)


def test_memory_that_numpy_has_is_left_to_pytorch() -> None:
    with window(after=NEVER) as captured:
        x = torch.zeros(4) + 1
        lent = x.numpy()
        y = x * 2
        lent[0] = 7  # y is eager's: computed before
        z = x + 0
    assert y.tolist() == [2, 2, 2, 2] and z.tolist() == [7, 1, 1, 1]
    assert any("others can write" in why for why in captured.eager)


def test_random_numbers_come_in_the_order_of_the_calls() -> None:
    def work() -> torch.Tensor:
        x = torch.randn(5).exp()
        return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x).cumsum(0)

    torch.manual_seed(3)
    wanted = work()
    torch.manual_seed(3)
    with window(after=NEVER):
        found = work()
    assert found.equal(wanted)


@pytest.mark.parametrize("after", [1, NEVER])
def test_gradients(after: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    same = copy.deepcopy(model)
    x = torch.randn(5, 8)
    for one, context in ((same, None), (model, window(after=after))):
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        if context is not None:
            context.__enter__()
        for _ in range(3):
            optimizer.zero_grad()
            loss = one(x).square().mean()
            if loss.item() > 1e-9:
                loss.backward()
            optimizer.step()
        if context is not None:
            context.__exit__(None, None, None)
    for mine, other in zip(model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_inference_tensors_and_batch_norm_in_training() -> None:
    norm = torch.nn.BatchNorm1d(4)
    same = copy.deepcopy(norm)
    x = torch.randn(6, 4)
    with torch.inference_mode():
        wanted = same(x + 1) * 2
        with window(after=1):
            found = norm(x + 1) * 2
        torch.testing.assert_close(found, wanted)
        assert found.is_inference()
    torch.testing.assert_close(norm.running_mean, same.running_mean)


def test_results_without_elements_leave_a_call_in_its_segment() -> None:
    """Batch normalization gives two beside its own when it does not train; they are tensors like any other."""
    norm, x = torch.nn.BatchNorm2d(4).eval(), torch.randn(2, 4, 5, 5)
    norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
    numbers = norm.weight, norm.bias, norm.running_mean, norm.running_var
    with torch.no_grad():
        expected = (norm(x * 2) + 1).relu()
        for _ in range(3):
            with kitsune_mlir.window(after=2) as captured:
                found = (norm(x * 2) + 1).relu()
                made, mean, deviation = torch.ops.aten.native_batch_norm(found, *numbers, False, 0.1, 1e-5)
                assert mean.numel() == deviation.numel() == 0 and torch.cat([mean, deviation]).numel() == 0
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(made, norm(expected))
    assert captured.segments == {"a program": 1}
    assert set(captured.eager) == {"aten.cat.default: an argument has no elements"}


def test_errors_come_when_values_are_read() -> None:
    table, rows = torch.randn(4, 2), torch.tensor([1, 9])
    for read in (True, False):
        with pytest.raises((IndexError, KitsuneError)):
            with window(after=NEVER):
                taken = torch.index_select(table, 0, rows) + 1
                if read:
                    taken.sum().item()
    with window(after=NEVER):
        torch.index_select(table, 0, rows) + 1
    with pytest.raises(RuntimeError, match="shapes"), window():  # what eager finds at the call is found there
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_other_threads_are_left_alone() -> None:
    found = []
    with window(after=NEVER) as captured:
        worker = threading.Thread(target=lambda: found.append((torch.ones(3) * 2).sum().item()))
        worker.start()
        worker.join()
    assert found == [6.0] and captured.taken == 0


def test_what_took_as_long_as_compiling_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(segments, "time", SimpleNamespace(perf_counter=lambda: next(ticks) * 0.001))
    monkeypatch.setattr(segments, "COMPILE_SECONDS", 0.0025)
    x = torch.randn(300, 300)
    with window() as captured:
        for _ in range(40):
            torch.softmax(x @ x, -1).sum().item()
    assert captured.segments["a program"] and captured.segments[f"PyTorch, {segments.NEW}"] == 3


def test_copies_to_other_devices_are_not_put_off() -> None:
    """What is read on the host was first copied there, by a call that nobody sees who asks for a list."""
    with window(after=NEVER) as captured:
        x = torch.randn(3, 4) + 1
        there = torch.softmax(x, -1).to("meta")
    assert there.device.type == "meta" and captured.taken == 2
    assert any("it copies to another device" in why for why in captured.eager)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_results_are_known_before_they_are_computed(dtype: torch.dtype):
    def filled(*shape: int) -> torch.Tensor:
        return torch.randint(0, 2, shape).to(dtype)

    base = filled(2, 3, 4, 5)
    layouts = [
        base,
        base.transpose(1, 3),
        base[:, :, ::2, 1:],
        base[:1].expand(2, 3, 4, 5),
        base.to(memory_format=torch.channels_last),
        base.permute(3, 0, 2, 1)[1],
        filled(5),
        filled(4, 1),
        torch.ones((), dtype=dtype),
    ]
    aten = torch.ops.aten
    binary = [aten.mul.Tensor, aten.add.Tensor, aten.div.Tensor, aten.maximum.default, aten.eq.Tensor, aten.atan2.default]
    calls: list[tuple[Any, tuple[Any, ...]]] = [(aten.mul.Tensor, (one, 2.5)) for one in layouts]
    calls += [(func, (one,)) for one in layouts for func in (aten.sin.default, aten.logical_not.default, aten.sgn.default)]
    calls += [(func, (a, b)) for func in binary for a in layouts for b in (*layouts, torch.ones(5, dtype=torch.float64))]
    calls += [(aten.where.self, (layouts[0] > 0, one, layouts[1].transpose(1, 3))) for one in layouts[:5]]
    checked = 0
    for func, args in calls:
        try:
            made = func(*args)
        except RuntimeError:
            continue  # shapes or types that do not fit
        known = results_of(func, pytree.tree_map_only(torch.Tensor, _meta, args), {})
        assert not isinstance(known, str) and known.metas == [_meta(made)], (func, args)
        checked += 1
    assert checked > 100


def _meta(tensor: torch.Tensor) -> Meta:
    return Meta(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


def test_programs_that_are_called_read_what_is_captured():
    program = kitsune_mlir.compile(lambda x, y: torch.tanh(x) + y, (torch.randn(3, 5), torch.randn(3, 5)))
    into = torch.empty(3, 5)
    with torch.no_grad():
        x = torch.randn(3, 5)
        wanted = torch.tanh(torch.tanh(x * 2) + x) + x * 2
        with window() as captured:
            y = x * 2
            z = program(y, x)
            program.run(z, y, into=into)
            z.zero_()
        assert torch.allclose(into, wanted) and not z.any() and captured.segments["a program that was called"] == 2
