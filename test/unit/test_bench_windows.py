"""The benchmarks of windows: what peers are given, that forms without branches are the same networks, and what is recorded."""

import argparse
import random
from collections.abc import Sequence

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kitsune_mlir
from bench.requests import bodies, mujoco_steps
from bench.requests.known_paths import Answers, Lanes, Touched
from bench.requests.physics import NEAR, cases, creature
from bench.requests.window_nets import NETS
from bench.requests.window_peers import Peers
from bench.requests.window_run import Compared, measure
from test.rotation import in_turn

ASKED = argparse.Namespace(small=True, device="cpu", peers=("eager", "window"), calls=3, rounds=1, size=16, after=1 << 30)


class _NoReads(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert torch.Tag.data_dependent_output not in func.tags, f"{func} reads a value"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", NETS)
def test_a_known_path_is_run_without_reading(name: str):
    torch.manual_seed(random.randrange(1 << 30))
    draw = random.Random(random.randrange(1 << 30))
    model, make = NETS[name].make(True)
    model.eval()
    with torch.no_grad():
        x = make(draw)
        answers = Answers()
        with answers.noted():
            value, path = model(x)
        with answers.given(), _NoReads():
            again, same = model(x)
        assert again.equal(value) and same == path and (answers.values or name == "tree-lstm")
        if answers.values:
            answers.values.append(0)
            with pytest.raises(RuntimeError, match="were noted"), answers.given():
                model(x)


@pytest.mark.parametrize("name", [name for name in NETS if name != "tree-lstm"])
def test_forms_without_branches_are_the_same(name: str):
    torch.manual_seed(random.randrange(1 << 30))
    draw = random.Random(random.randrange(1 << 30))
    model, make = NETS[name].make(True)
    model.eval()
    with torch.no_grad(), _NoReads():
        given = [make(draw) for _ in range(8)]
        dense = [model.dense(x) for x in given]  # type: ignore[operator]
    with torch.no_grad():
        for x, found in zip(given, dense, strict=True):
            torch.testing.assert_close(found, model(x)[0], rtol=1e-4, atol=1e-5)


def test_lanes_keep_the_order_of_what_is_read():
    draw = random.Random(random.randrange(1 << 30))
    lanes, reads, placed = Lanes(3), list[Sequence[int]](), list[tuple[int, list[int]]]()
    before: list[set[int]] = []  # for each task, what surely ended before it
    for task in range(60):
        reads.append(sorted(draw.sample(range(task), min(task, draw.randrange(3)))))
        placed.append(lanes.place(reads[-1]))
        lane, waits = placed[-1]
        earlier = next((one for one in range(task - 1, -1, -1) if placed[one][0] == lane), None)
        direct = {*waits, *([] if earlier is None else [earlier])}
        before.append(direct.union(*(before[one] for one in direct)))
        assert before[task] >= {*reads[-1]} and not {placed[one][0] for one in waits} & {lane}
    assert len({lane for lane, _ in placed}) == 3
    chain = Lanes(4)
    assert {chain.place([n - 1] if n else [])[0] for n in range(9)} == {0}


class _Sources(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.touched, self.found = Touched(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found.append(self.touched.sources(func, args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        self.touched.note(func, args, kwargs or {}, out)
        return out


def test_what_calls_wait_for():
    with _Sources() as mode:
        a = torch.ones(3)  # 0
        b = a + 1  # 1
        c = a * 2  # 2
        a.add_(1)  # 3: wrote 0, and was read by 1 and 2
        d = b + c  # 4
        torch.add(d, a, out=b)  # 5
        torch.neg(b)  # 6
    assert mode.found == [[], [0], [0], [0, 1, 2], [1, 2], [1, 3, 4], [5]]


def test_an_entry_and_what_is_wrong():
    with torch.no_grad():
        entry = measure("experts", NETS["experts"], ASKED, paths=8)
    assert entry["ok"] and entry["paths"] >= 8 and not entry["missing"] and entry["best_peer"] == "eager"
    assert entry["times"]["eager"] == pytest.approx(
        entry["milliseconds"]["eager"] / entry["milliseconds"]["window"], abs=2e-3
    )  # fmt: skip
    compared = Compared("net")
    one = torch.ones(2)
    compared.add("peer", [(one, (1,)), (one + 0.5, None)], [(one, (1,)), (one, (2,))])
    assert compared.errors == {"peer": 0.5} and compared.paths == {(1,), (2,)}
    with pytest.raises(AssertionError, match="takes the path"):
        compared.add("peer", [(one, (1,))], [(one, (2,))])


def test_a_peer_that_cannot_be_made_is_missing():
    model, make = NETS["tree-lstm"].make(True)
    peers = Peers(model, ASKED)
    assert peers.prepare("dense, compile, graph", [make(random.Random(0))]) is None
    assert "no form without branches" in peers.missing["dense, compile, graph"]
    assert peers.prepare("mjx", [0]) is None and peers.missing["mjx"].endswith("TreeLSTM has no peer 'mjx'")
    compared = Compared("net")
    compared.add("mjx", [(None, None)], [(torch.ones(1), ())])
    assert not compared.errors and not compared.paths


@pytest.mark.parametrize("batch", [1, 3])
def test_bodies_through_a_window(batch: int):
    torch.manual_seed(random.randrange(1 << 30))
    (name,) = in_turn(list(bodies.CREATURES), 1)
    model, draw = creature(name, batch, True)
    source = random.Random(random.randrange(1 << 30))
    states = [draw(source) for _ in range(2)]
    expected = [model(one) for one in states]
    with kitsune_mlir.window(after=1 << 30) as captured:
        found = [model(one) for one in states]
    compared = Compared(name)
    compared.add("window", found, expected)
    assert compared.errors["window"] <= NEAR and captured.taken > 100


def test_bodies_stay_on_the_ground_and_together():
    own = bodies.CREATURES["halfcheetah"]
    state, paths = bodies.first_state(own, 2, random.Random(random.randrange(1 << 30)), torch.float64), set()
    for _ in range(60):
        state, path = bodies.step(own, state, torch.zeros_like(state[0]))
        paths.add(path)
    x, v = state
    assert x[:, :, 2].min() > 0 and x.abs().max() < 1.5 and v.abs().max() < 10 and len(paths) > 2
    for child, parent in enumerate(own.parents, 1):
        length = torch.tensor(own.offsets[child - 1]).norm()
        torch.testing.assert_close((x[:, child] - x[:, parent]).norm(dim=-1), length.double().expand(2), rtol=0.1, atol=0.02)


def test_environments_of_mujoco():
    if problem := mujoco_steps.available():
        with pytest.raises(ImportError, match="mujoco-torch is not installed"):
            cases((1,))["mujoco_ant_1"].make(True)
        pytest.skip(problem)
    with torch.no_grad():
        entry = measure("mujoco_hopper_1", cases((1,))["mujoco_hopper_1"], argparse.Namespace(**{**vars(ASKED), "calls": 1}))
    assert entry["ok"] and entry["errors"]["window"] <= NEAR
