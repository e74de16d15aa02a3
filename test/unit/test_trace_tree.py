"""What `kitsune_mlir.trace_tree` runs again is what the function does: values, aliasing, changes in place, errors."""

import importlib
import itertools
import random
import threading
from types import SimpleNamespace

import pytest
import torch

import kitsune_mlir
from bench.requests.window_nets import NETS
from kitsune_mlir.windows import capture
from kitsune_mlir.windows.trace_tree import trace_tree
from test.unit.test_window_capture import NEVER, random_program


@pytest.fixture(autouse=True)
def nothing_known():
    capture.forget()
    with torch.no_grad():
        yield


def same(found, wanted, near=0.0):
    """Whether outputs are equal: tensors in value, dtype, shape and strides."""
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, torch.Tensor):
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            torch.testing.assert_close(one, other, rtol=near, atol=near, equal_nan=True)
        else:
            assert type(one) is type(other) and (one == other or near), (one, other)
    return True


@pytest.mark.parametrize("name", NETS)
def test_networks_that_read_values(name):
    torch.manual_seed(0)
    draw = random.Random(0)
    model, make = NETS[name].make(True)
    model.eval()
    traced = trace_tree(model, hot=1, after=NEVER)
    given = [make(draw) for _ in range(4)]
    wanted = [model(x) for x in given]
    for _ in range(2):
        for x, (value, path) in zip(given, wanted, strict=True):
            found, taken = traced(x)
            assert taken == path
            torch.testing.assert_close(found, value)
    assert traced.calls["replayed"] >= 4 and not traced.calls["run as they are"]


def test_random_programs():
    replayed = recorded = 0
    for seed in range(60):

        def program(*tensors, seed=seed):
            return [one for one in random_program(seed, list(tensors))[1:]]

        traced = trace_tree(program, hot=1, after=NEVER)
        for number in range(3):
            torch.manual_seed(seed if number < 2 else number)
            given = [torch.randn(3, 4), torch.randn(3, 4), torch.randn(4)]
            own = [one.clone() for one in given]
            assert same(traced(*given), program(*own))
            assert same(given, own)
        replayed, recorded = replayed + traced.calls["replayed"], recorded + traced.calls["recorded"]
    assert replayed > 30 and recorded > 60


def test_compiled_segments_are_launched_by_addresses_alone():
    weight, bias = torch.randn(24, 24), torch.randn(24)

    def f(x, y):
        z = torch.tanh(x @ weight + bias) + y[1:]
        if bool(z.sum() > 0):
            return torch.relu(z).T, z
        return torch.sigmoid(z * 2)[:, ::2] * 3, z

    traced = trace_tree(f, hot=1, after=1)
    draw = [(torch.randn(7, 24), torch.randn(8, 24)) for _ in range(12)]
    for x, y in itertools.chain(draw, draw):
        assert same(traced(x, y), f(x, y), 1e-5)
    bias.add_(1)  # tensors from outside may change
    for x, y in draw:
        assert same(traced(x, y), f(x, y), 1e-5)


@pytest.mark.parametrize("given", [[2.0], {0: 2.0}, bytearray(b"\x02")], ids=["list", "dict", "bytes"])
def test_an_argument_that_was_changed_in_place_is_another(given):
    def f(x, factors):
        return x * factors[0] if bool((x > 0).any()) else x

    traced = trace_tree(f, hot=1, after=NEVER)
    x = torch.rand(7) + 1
    for _ in range(4):
        assert same(traced(x, given), 2 * x)
    given[0] = 3
    assert same(traced(x, given), 3 * x)


def test_what_was_changed_is_restored_where_a_path_is_new():
    state = torch.zeros(4)

    def f(x, step):
        x.mul_(2)
        state.add_(step)
        if int(state.sum()) % 3 == 0:
            x.add_(1)
        return x + state

    plain_state = torch.zeros(4)

    def plain(x, step):
        x.mul_(2)
        plain_state.add_(step)
        if int(plain_state.sum()) % 3 == 0:
            x.add_(1)
        return x + plain_state

    traced = trace_tree(f, hot=1, after=NEVER)
    for number in range(9):
        x = torch.randn(4)
        own = x.clone()
        step = torch.full((4,), float(number % 3))
        assert same([traced(x, step), x, state], [plain(own, step), own, plain_state])
    assert traced.calls["replayed"] and traced.calls["recorded"] > 2


def test_outputs_are_what_eager_gives():
    buffer = torch.randn(3)

    def f(x, flag):
        made = torch.tensor([1.0, 2.0, 3.0]).mul_(2)
        made += x
        return {"view": x[1:], "same": x, "outside": buffer, "made": made, "none": None, "flag": flag, "empty": x[:0] * 2}

    traced = trace_tree(f, hot=1, after=NEVER)
    for flag in (True, True, 1, 1):
        x = torch.randn(3)
        found = traced(x, flag)
        assert found["same"] is x and found["outside"] is buffer and found["flag"] is flag and found["none"] is None
        assert found["view"].data_ptr() == x[1:].data_ptr() and found["empty"].shape == (0,)
        assert found["made"].equal(torch.tensor([2.0, 4.0, 6.0]) + x)
    assert traced.calls == {"recorded": 2, "replayed": 2}


@pytest.mark.parametrize(
    ("what", "f"),
    {
        "random numbers": lambda x: x + torch.randn(3),
        "Tensor.numpy": lambda x: torch.from_numpy((x + 1).numpy() * 2),
        "changes an argument": lambda x: torch.add(x, 1, out=torch.empty(3)),
        "compare it on the device": lambda x: x * float(x.sum()),
        "hardly come again: 0 of 64 runs were replayed": lambda x: x * int(10 * x[0]),
    }.items(),
)
def test_what_is_not_traced_is_run_as_it_is(what, f):
    traced = trace_tree(f, hot=1, after=NEVER)
    for number in range(70):
        x = torch.full((3,), 0.1 * number)
        torch.manual_seed(0)
        found = traced(x)
        torch.manual_seed(0)
        assert found.equal(f(x))
    assert traced.calls["run as they are"] and what in traced.explain()


def test_an_impure_function_is_noticed():
    calls = itertools.count()

    def f(x):
        flag = bool(x.sum() > 0)
        return x + 1 if next(calls) % 2 else torch.relu(x) * (2 if flag else 3)

    traced = trace_tree(f, hot=1, after=NEVER)
    for value in (1.0, -1.0, 1.0, -1.0, 0.5, float("nan")):
        traced(torch.full((3,), value))
    assert "are the same" in traced.explain() or traced.calls["replayed"]


def test_gradients_windows_and_odd_arguments_are_run_as_they_are():
    traced = trace_tree(lambda x, *more: torch.tanh(x) * 2, hot=1, after=NEVER)
    x = torch.randn(5)
    with torch.enable_grad():
        y = traced(x.clone().requires_grad_())
        assert y.requires_grad
    with kitsune_mlir.window():
        inside = traced(x)
    assert inside.equal(torch.tanh(x) * 2)
    traced(x, {1, 2}), traced(x, [{3}])
    assert torch.vmap(traced)(x[:, None]).equal(inside[:, None])
    assert traced.calls == {"run as they are": 5}
    assert torch.compile(traced, backend="eager", fullgraph=True)(x).equal(inside)


def test_arguments_that_are_known_by_their_guard():
    traced = trace_tree(lambda x, y, how: torch.tanh(x) * y if how == "times" else x + y, hot=1, after=NEVER)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for a, b, how in itertools.product((x, x.T, x.double(), x[:, :2]), (y, 2.0, y.T.contiguous().T), ("times", "plus")):
        if not isinstance(b, float) and a.shape != b.shape:
            continue
        for _ in range(3):
            assert same([traced(a, b, how)], [traced.function(a, b, how)])
    assert traced.calls["replayed"] >= 2 * traced.calls["recorded"] and not traced.calls["run as they are"]
    shared = torch.randn(2, 4)
    assert same([traced(shared[0], shared[1], "plus")], [shared[0] + shared[1]])


def test_an_error_leaves_what_came_before_it():
    def f(x):
        x.add_(1)
        if bool(x.sum() > 100):
            x.mul_(2)
            raise ValueError("too large")
        return x * 2

    traced = trace_tree(f, hot=1, after=NEVER)
    for start in (0.0, 0.0, 50.0, 50.0, 0.0):
        x = torch.full((4,), start)
        if start:
            with pytest.raises(ValueError, match="too large"):
                traced(x)
            assert x.equal(torch.full((4,), 2 * (start + 1)))
        else:
            assert traced(x).equal(torch.full((4,), 2.0)) and x.equal(torch.ones(4))


def test_paths_are_recorded_when_they_come_again():
    traced = trace_tree(lambda x: x * 2 if bool(x > 0) else x * 3, after=NEVER)
    for value, factor in ((1.0, 2), (2.0, 2), (3.0, 2), (-1.0, 3), (-2.0, 3), (-3.0, 3), (4.0, 2)):
        assert float(traced(torch.tensor(value))) == value * factor
    assert traced.calls == {"run as they are": 2, "recorded": 2, "replayed": 3}


def test_recording_takes_half_as_long_as_other_calls_at_most(monkeypatch):
    """Each look at the clock is a second after the one before; every path is new when it comes, and comes twice."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(importlib.import_module("kitsune_mlir.windows.trace_tree"), "time", clock)
    calls = {}
    for after in (None, NEVER):
        traced = trace_tree(lambda x: x * int(x), after=after)
        for number in range(30):
            assert float(traced(torch.tensor(float(number // 2)))) == (number // 2) ** 2
        calls[after] = traced.calls
    assert calls[NEVER]["recorded"] == 15 and 4 <= calls[None]["recorded"] <= 10
    assert calls[None]["recorded"] <= 1 + 0.5 * (30 - calls[None]["recorded"])


def test_the_same_objects_beside_tensors_are_found_without_comparing_them(monkeypatch):
    """Of more kinds than are tried one after the other; equal objects that are not the same are compared."""
    module = importlib.import_module("kitsune_mlir.windows.trace_tree")
    compared = []
    monkeypatch.setattr(
        module, "_key", lambda value, tensors, key=module._key: (compared.append(value), key(value, tensors))[1]
    )
    traced = trace_tree(lambda x, y, by: torch.tanh(x) * by[0] + y * by[1][0], hot=1, after=NEVER)
    rows, offsets = torch.randn(5, 4).unbind(1), [(0.5 * n, (float(n), "a")) for n in range(3 * module.QUICK)]
    for turn in range(5):
        before = len(compared)
        for n, by in enumerate(offsets):
            for x in (rows[n % 3], torch.randn(5)):
                assert torch.equal(traced(x, rows[3], by), torch.tanh(x) * by[0] + rows[3] * by[1][0])
        assert len(compared) > before if turn < 2 else len(compared) == before
    by = (0.5, (1.0, "a"))
    assert torch.equal(traced(rows[1], rows[0], by), torch.tanh(rows[1]) * 0.5 + rows[0]) and len(compared) > before


def test_arguments_that_share_memory():
    def parts(x, y, how):
        z = torch.tanh(x) + y[..., :1]
        if how and bool(z.sum() > 0):
            return z * x[..., 1:2], y.T
        return x - y, x[1:]

    traced = trace_tree(parts, hot=1, after=NEVER)
    for number in range(12):
        whole = torch.randn(3, 2, 4) if number % 2 else torch.randn(6, 4).view(2, 3, 4).transpose(0, 1)
        x, y = whole.unbind(1)
        apart = (x.clone(), y.clone()) if number % 3 == 2 else (x, y)
        assert same(traced(*apart, number > 3), parts(*apart, number > 3))
    # Where arguments lie between each other, nobody knows of which one a view is that is looked at later.
    assert traced.calls["replayed"] and "of one argument or of another" in traced.explain()

    def change(x, y):
        x.add_(1)
        return x + y

    traced = trace_tree(change, hot=1, after=NEVER)
    for x, y in ((0, 1), (1, 2), (0, 2), (0, 1)):
        memory = torch.randn(8)
        own = memory.clone()
        assert same([traced(memory[x : x + 4], memory[y : y + 4]), memory], [change(own[x : x + 4], own[y : y + 4]), own])
    assert "share memory" in traced.explain()


def test_threads_call_side_by_side():
    traced = trace_tree(lambda x: torch.tanh(x) * 2 if bool(x.sum() > 0) else x - 1, after=NEVER)
    wrong = []

    def work(seed):
        noise = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for _ in range(60):
                x = torch.randn(5, generator=noise)
                if not traced(x).equal(traced.function(x)):
                    wrong.append(x)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and traced.calls["replayed"] > 150
