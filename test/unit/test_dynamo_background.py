"""torch.compile(options={"background": True}): PyTorch runs a graph until other processes have compiled it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from kitsune_mlir.dynamo import background, elsewhere
from kitsune_mlir.dynamo.parts import Part
from kitsune_mlir.dynamo.report import logger
from kitsune_mlir.dynamo.sent_graph import received, sent
from kitsune_mlir.errors import CompileError
from kitsune_mlir.options import Options
from test.unit.test_dynamo_saved import Net, biased, island

R = torch.randn
SECONDS = 240


@pytest.fixture
def said(caplog):
    """Lines of the log; nothing was compiled before."""
    torch._dynamo.reset()
    caplog.set_level("INFO", logger=logger.name)
    return caplog


def compiled(function, **options):
    return torch.compile(function, backend="kitsune", options={"background": True, **options})


def running() -> list[background.Background]:
    return list(background._under_way)


def finished() -> None:
    assert background.wait(SECONDS)


@torch.no_grad()
def test_calls_run_in_pytorch_and_then_programs(said):
    fast, x, w = compiled(biased), R(5, 4), R(4, 3)
    torch.testing.assert_close(fast(x, w), biased(x, w))
    (graph,) = [one for one in running() if not one.done.is_set()]
    before = graph._run
    finished()
    y, transposed = fast(x, w)
    assert graph._run is not before and any(isinstance(one, Part) for one in graph._run.__self__.modules())
    torch.testing.assert_close((y, transposed), biased(x, w))
    y.zero_()
    assert not transposed.any()
    assert "1 program" in said.text


def test_gradients_and_islands(said):
    model = Net().eval()
    fast, x = compiled(model), R(6, 12, requires_grad=True)

    def both(run):
        return torch.autograd.grad(run(x).square().sum(), [x, *model.parameters()])

    wanted = both(model)
    for _ in range(2):
        for one, other in zip(both(fast), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        finished()
    assert "forward graph" in said.text and "backward graph" in said.text
    with torch.no_grad():
        fast, x = compiled(island, min_part=1), R(5, 4)
        for _ in range(2):
            torch.testing.assert_close(fast(x), island(x), rtol=1e-4, atol=1e-4)
            finished()
    assert "linalg_qr" in said.text and "2 programs" in said.text


@torch.no_grad()
def test_threads_call_while_it_is_compiled(said):
    fast, w, wrong = compiled(biased), R(4, 3), []
    x = R(5, 4)
    fast(x, w)

    def call():
        while any(not one.done.is_set() for one in running()):
            if not torch.allclose(fast(x, w)[0], biased(x, w)[0], rtol=1e-4, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(fast(x, w), biased(x, w))
    assert not wrong


@torch.no_grad()
def test_what_is_on_disk_is_not_waited_for(said, tmp_path):
    x, w = R(5, 4), R(4, 3)
    for _ in range(2):
        torch._dynamo.reset()
        before = len(running())
        fast = compiled(biased, cache=True, cache_dir=str(tmp_path))
        torch.testing.assert_close(fast(x, w), biased(x, w))
        started = len(running()) - before
        finished()
    assert not started


@torch.no_grad()
def test_an_error_leaves_the_graph_to_pytorch(said, monkeypatch):
    def ended(*given):
        raise CompileError("the process that compiled it ended (-9)")

    monkeypatch.setattr(elsewhere.Compilers, "answer", ended)
    fast, x, w = compiled(biased), R(5, 4), R(4, 3)
    with pytest.warns(UserWarning, match="stays in PyTorch.*-9"):
        fast(x, w)
        finished()
    torch.testing.assert_close(fast(x, w), biased(x, w))


@torch.no_grad()
def test_code_that_cannot_be_loaded_leaves_the_graph_to_pytorch(said, monkeypatch):
    fast, x, w = compiled(biased), R(5, 4), R(4, 3)
    fast(x, w)
    finished()
    monkeypatch.setattr(Part, "load", lambda self: 1 / 0)
    with pytest.warns(UserWarning, match="stays in PyTorch.*ZeroDivisionError"):
        torch.testing.assert_close(fast(x, w), biased(x, w))
    torch.testing.assert_close(fast(x, w), biased(x, w))


def test_options_that_exclude_each_other():
    for name in ("require_full", "tune"):
        with pytest.raises(Exception, match=f"'background' and '{name}' exclude each other"):
            compiled(biased, **{name: True})(R(5, 4), R(4, 3))


def test_errors_of_the_compiler_name_the_operator():
    def wrong(x: Tensor) -> tuple[Tensor]:
        return (torch.ops.aten.linalg_qr.default(x)[0],)

    graph = sent(make_fx(wrong, tracing_mode="fake")(R(3, 3)))
    assert graph is not None
    answer = elsewhere.answered(pickle.dumps(elsewhere.Request(graph, (), "host", Options())))
    assert len(answer) == 2 and answer[1] == "aten.linalg_qr.default" and "linalg_qr" in answer[0]


def test_graphs_travel():
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        low, high = torch.aminmax(x, dim=1)
        return low + torch.tensor([1.0, float("inf"), float("-inf")]), high.to(torch.bfloat16), y[1:, ::2].flatten()

    args = (R(3, 5), R(4, 4))
    graph = make_fx(function, tracing_mode="fake")(*args)
    data = sent(graph)
    assert data is not None
    again = received(data)
    assert [node.name for node in again.graph.nodes] == [node.name for node in graph.graph.nodes]
    for one, other in zip(graph.graph.nodes, again.graph.nodes, strict=True):
        for before, after in zip(*(torch.utils._pytree.tree_leaves(n.meta.get("val")) for n in (one, other)), strict=True):
            if isinstance(before, Tensor):
                assert (before.shape, before.stride(), before.dtype) == (after.shape, after.stride(), after.dtype)
    torch.testing.assert_close(again(*args), function(*args))
    assert sent(torch.fx.symbolic_trace(lambda x: torch.relu(x))) is None  # no operator of ATen


SCRIPT = """
import os, sys, torch
from kitsune_mlir.dynamo import background, elsewhere
fast = torch.compile(lambda x: torch.relu(x) + 1, backend="kitsune", options={"background": True})
with torch.no_grad():
    fast(torch.randn(4))
while not (elsewhere._pool and elsewhere._pool._compilers and elsewhere._pool._compilers._processes):
    pass
(process,) = elsewhere._pool._compilers._processes
print(process.pid, flush=True)
child = os.fork()
if not child:
    with torch.no_grad():
        assert elsewhere._pool._compilers is None and fast(torch.zeros(4)).eq(1).all()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_processes_end_with_this_one_and_a_forked_child_has_none():
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)
