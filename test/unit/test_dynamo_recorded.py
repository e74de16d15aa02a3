"""Option `cudagraphs`, with a stand-in for CUDA graphs: what is replayed reads and writes the memory that was recorded."""

import copy
import ctypes
import gc

import pytest
import torch
from torch import nn

from kitsune_mlir.dynamo import backend, recorded, torch_api
from kitsune_mlir.dynamo.graph_options import MODES, options_of_backend
from kitsune_mlir.dynamo.recorded import Recorded
from kitsune_mlir.dynamo.stopwatch import Budget
from kitsune_mlir.dynamo.timed_choice import Peer, Rules, TimedChoice
from kitsune_mlir.sized.padded_input import PaddedInput

R = torch.randn


def at_place(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor, which it does not hold: what a CUDA graph knows of it."""
    storage = tensor.untyped_storage()
    memory = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


@pytest.fixture
def graphs(monkeypatch):
    """Counts what is done. A replay makes the calls again, and writes the results to where they were at the recording."""
    done = {"recorded": 0, "replayed": 0}
    monkeypatch.setattr(recorded, "WRITTEN", [], raising=False)  # what the recorded calls write to

    def capture(run, inputs):
        done["recorded"] += 1
        before = [value.clone() for value in recorded.WRITTEN]
        outputs = run(*inputs)
        for value, old in zip(recorded.WRITTEN, before, strict=True):
            value.data.copy_(old)
        for output in outputs:
            if all(output is not given for given in inputs) and isinstance(output, torch.Tensor):
                output.detach().zero_().sub_(7)  # a recording computes nothing
        places = [at_place(given) if isinstance(given, torch.Tensor) else given for given in inputs]

        def replay():
            done["replayed"] += 1
            for output, value in zip(outputs, run(*places), strict=True):
                if isinstance(output, torch.Tensor) and all(value is not place for place in places):
                    output.detach().copy_(value)

        return replay, list(outputs)

    monkeypatch.setattr(recorded, "capture", capture)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return done


def test_what_is_held_is_not_overwritten(graphs):
    run = Recorded(lambda x, w: [x @ w, x + 1], [1])
    w, held = R(4, 3), []
    for _n in range(6):
        x = R(2, 4)
        product, more = run(x, w)
        held.append((x, product, more[0]))  # a view holds its tensor's memory
        for x, product, row in held:
            torch.testing.assert_close(product, x @ w)
            torch.testing.assert_close(row, x[0] + 1)
    # The first call loads code; then there are two recordings, whose outputs are held.
    assert graphs == {"recorded": 2, "replayed": 2}


def test_a_loop_that_holds_its_last_output_replays(graphs):
    run, w = Recorded(lambda x, w: [x @ w], [1]), R(4, 3)
    for _ in range(10):
        x = R(2, 4)
        (out,) = run(x, w)
        torch.testing.assert_close(out, x @ w)
    assert graphs == {"recorded": 2, "replayed": 9}


def test_other_weights_and_sizes_have_recordings_of_their_own(graphs):
    run, weights = Recorded(lambda x, w: [x @ w], [1]), [R(4, 3), R(4, 3)]
    for n in range(12):
        x, w = R(2 + n // 6, 4), weights[n % 2]
        torch.testing.assert_close(run(x, w)[0], x @ w)
    assert graphs["recorded"] == 4
    for _n in range(20):  # no more than there may be
        torch.testing.assert_close(run(R(1, 4), R(4, 3))[0].shape, torch.Size([1, 3]))
    assert graphs["recorded"] <= recorded.MOST


def test_what_a_recording_hands_on_is_not_copied(graphs):
    forward, backward = Recorded(lambda x: [x.exp(), x * 2], []), Recorded(lambda saved, tangent: [saved * tangent], [])
    for _n in range(5):
        x, tangent = R(3), R(3)
        saved, _ = forward(x)
        torch.testing.assert_close(backward(saved, tangent)[0], x.exp() * tangent)
        del saved, _
    recordings = [one for same in backward._known.values() for one in same]
    assert recordings and all(len(one._inputs) == 1 for one in recordings)  # the tangent
    assert graphs["recorded"] == 2
    del recordings, forward, backward
    gc.collect()
    assert not recorded._MANAGED


def test_a_padded_input_is_read_in_its_buffer(graphs):
    """It was copied once, to there."""
    padded, copies = PaddedInput((8, 3), (3, 1)), []
    run = Recorded(lambda x, w: [copies.append(x.data_ptr()) or x @ w], [1])
    w = R(3, 2)
    for n in (2, 5, 8, 3):
        x = R(n, 3)
        (found,) = run(padded(x), w)
        torch.testing.assert_close(found[:n], x @ w)
        del found
    # Eight rows are no buffer, and have a recording of their own, which is not made at the first call.
    assert graphs == {"recorded": 1, "replayed": 2}
    assert copies[0] == copies[1] == padded.buffers()[0].data_ptr()


def test_numbers_and_inputs_among_outputs(graphs):
    run = Recorded(lambda x, n, b: [x * n, b, None, 7], [2])
    b = R(3)
    for n in (2, 2, 2, 3, 3):
        x = R(3)
        out = run(x, n, b)
        torch.testing.assert_close(out[0], x * n)
        assert out[1] is b and out[2:] == [None, 7]


def test_what_is_written_to_counts_as_changed(graphs):
    run, b = Recorded(lambda x, b: [b.add_(1) * x], [1], [1]), torch.zeros(3)
    run(torch.ones(3), b)
    version = b._version
    run(torch.ones(3), b)
    assert b._version > version


def test_what_cannot_be_recorded_runs_as_it_is(graphs, caplog, monkeypatch):
    def fails(run, inputs):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recorded, "capture", fails)
    views = Recorded(lambda x: [x + 1], [])
    for _ in range(3):
        x = R(3)
        torch.testing.assert_close(views(x)[0], x + 1)
    assert caplog.text.count("operation not permitted") == 1
    # An output that lies in an input's copy
    monkeypatch.undo()
    monkeypatch.setattr(recorded, "capture", lambda run, inputs: (lambda: None, run(*inputs)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    views = Recorded(lambda x: [x[1:]], [])
    for _ in range(3):
        x = R(3)
        assert torch.equal(views(x)[0], x[1:])


def test_nothing_is_replayed_while_another_graph_is_recorded(graphs, monkeypatch):
    run, x = Recorded(lambda x: [x + 1], []), R(3)
    run(x), run(x)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    before = dict(graphs)
    torch.testing.assert_close(run(x)[0], x + 1)
    assert graphs == before


class Folded(nn.Module):
    """A convolution whose norm is folded into it: a weight that is derived."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


@pytest.fixture
def on_host(monkeypatch, graphs, reports):
    """Graphs on the host are recorded as if they were on a GPU."""
    monkeypatch.setattr(recorded, "unrecordable", lambda gm, fixed: None)
    return graphs


def test_weights_that_change_are_seen_by_replays(on_host):
    model = Folded().eval()
    with torch.no_grad():
        fast = torch.compile(model, backend="kitsune", options={**MODES["reduce-overhead"], "cache": False})
        for n in range(6):
            x = R(2, 3, 8, 8)
            torch.testing.assert_close(fast(x), model(x), atol=1e-5, rtol=1e-5)
            if n == 3:
                model.conv.weight.mul_(2)
                model.norm.bias.add_(1)
    assert on_host["replayed"] == 5


def test_a_graph_that_is_found_on_disk_is_recorded(on_host, tmp_path, monkeypatch):
    linear, traced = nn.Linear(6, 5), []
    model = nn.Sequential(linear, nn.BatchNorm1d(5), nn.Tanh()).eval()
    really = torch_api.aot_autograd
    monkeypatch.setattr(torch_api, "aot_autograd", lambda **given: traced.append(given) or really(**given))
    for count in (1, 2):
        torch._dynamo.reset()
        options = {"cudagraphs": True, "cache": True, "cache_dir": str(tmp_path)}
        fast = torch.compile(model, backend="kitsune", options=options)
        with torch.no_grad():
            for n in range(5):
                x = R(3, 6)
                if n == 3:
                    linear.weight.mul_(-2)
                torch.testing.assert_close(fast(x), model(x))
        assert len(traced) == 1 and on_host == {"recorded": count, "replayed": 4 * count}


def test_training_replays_forward_and_backward(on_host):
    ours = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.GELU(), nn.Linear(7, 3))
    theirs = copy.deepcopy(ours)
    recorded.WRITTEN.extend(ours.buffers())
    fast = torch.compile(ours, backend="kitsune", options={"cudagraphs": True, "cache": False})
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (ours, theirs)]
    for n in range(6):
        for x in [R(9, 5) for _ in range(1 + n % 2)]:  # gradients of two batches are added in every second step
            for run in (fast, theirs):
                run(x).square().mean().backward()
        for x in [R(9, 5), R(9, 5)]:  # two forwards before two backwards
            for run in (fast, theirs):
                one, two = run(x).mean(), run(x * 2).tanh().mean()
                (one + two).backward()
        for p, q in zip([*ours.parameters(), *ours.buffers()], [*theirs.parameters(), *theirs.buffers()], strict=True):
            torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-4)
            if q.grad is not None:
                torch.testing.assert_close(p.grad, q.grad, atol=1e-3, rtol=1e-3)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert on_host["replayed"] > 20


def test_a_guard_times_replays(graphs):
    rules, noted = Rules(Budget(2.0), None, "", "eager", recorded=True), []
    peer = Peer("eager in a CUDA graph", lambda args: lambda x, b: [b.add_(1) * x])
    timed = TimedChoice("it", lambda x, b: [b.add_(1) * x], peer, lambda: "text", [1], rules, noted.append)
    x, b = R(3), torch.zeros(3)
    torch.testing.assert_close(timed(x, b)[0], x)
    assert torch.equal(b, torch.ones(3))
    assert noted[0].milliseconds is not None and graphs["recorded"] == 2 and graphs["replayed"] > 2


def test_it_is_nothing_on_the_host(graphs, reports):
    with torch.no_grad():
        fast, x = torch.compile(lambda x: torch.tanh(x) + 1, backend="kitsune", mode="reduce-overhead"), R(3)
        for _ in range(3):
            torch.testing.assert_close(fast(x), torch.tanh(x) + 1)
    assert not graphs["recorded"] and not reports[0].gave_up


@pytest.mark.parametrize("mode", MODES)
def test_modes_are_presets_that_options_replace(mode):
    ours, options = options_of_backend(mode, None)
    assert ours.cudagraphs is (mode in ("reduce-overhead", "max-autotune"))
    assert options.tune is mode.startswith("max-autotune")
    ours, options = options_of_backend(mode, {"cudagraphs": False, "tune": False})
    assert not ours.cudagraphs and not options.tune
    assert backend.MODES is MODES
