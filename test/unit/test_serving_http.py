"""Models behind HTTP: the ASGI app, its figures, the file of models, the load generator, `kitsune serve`."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load, save, save_file
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, KitsuneError
from kitsune_mlir.serving.bodies import SAFETENSORS
from kitsune_mlir.serving.config import read_models
from kitsune_mlir.tools.kitsune import main

httpx = pytest.importorskip("httpx")
pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")
testclient = pytest.importorskip("starlette.testclient")

from kitsune_mlir.serving.app import make_app  # noqa: E402
from kitsune_mlir.serving.load_generator import generate_load  # noqa: E402


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


class Lookup(nn.Module):
    def forward(self, table: Tensor, index: Tensor) -> tuple[Tensor, int]:
        return table[index] + 1, 7


@pytest.fixture(scope="module")
def towers() -> list[Tower]:
    return [Tower(), Tower()]


@pytest.fixture(scope="module")
def folder(towers: list[Tower], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packages and models.toml."""
    folder = tmp_path_factory.mktemp("models")
    kitsune_mlir.compile(towers[0], (torch.randn(2, 8),), target="host").save(folder / "tower.kit")
    kitsune_mlir.compile(Lookup(), (torch.randn(5, 4), torch.tensor([0, 1])), target="host").save(folder / "lookup.kit")
    save_file({name: tensor.detach() for name, tensor in towers[1].named_parameters()}, folder / "b.safetensors")
    (folder / "models.toml").write_text(
        'limit = 4\ncapacity = 64\n[models.a]\npackage = "tower.kit"\n'
        '[models.b]\npackage = "tower.kit"\nweights = "b.safetensors"\ndeadline = 20\n[models.lookup]\npackage = "lookup.kit"\n'
    )
    return folder


@pytest.fixture
def client(folder: Path) -> Iterator[Any]:
    served = read_models(folder / "models.toml")
    engine = kitsune_mlir.serve(served.programs, limit=served.limit, capacity=served.capacity, measure=False)
    with testclient.TestClient(make_app(engine, served.deadlines, body_bytes=4096)) as client:
        client.engine = engine
        yield client
    assert engine.closed


def test_inference_with_json_and_safetensors(client, towers):
    x = torch.randn(2, 8)
    for name, tower in zip("ab", towers, strict=True):
        answer = client.post(f"/models/{name}/infer", json={"inputs": {"x": x.tolist()}})
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
        assert torch.allclose(torch.tensor(answer.json()["outputs"]["output0"]), tower(x), atol=1e-5)
        answer = client.post(f"/models/{name}/infer", content=save({"x": x}), headers={"content-type": SAFETENSORS})
        assert answer.headers["content-type"] == SAFETENSORS
        assert torch.allclose(load(answer.content)["output0"], tower(x), atol=1e-5)
    inputs = {"table": torch.zeros(5, 4).tolist(), "index": [4, 0]}
    assert client.post("/models/lookup/infer", json={"inputs": inputs}).json()["outputs"] == {
        "output0": [[1.0] * 4] * 2,
        "output1": 7,
    }


def test_health_models_and_metrics(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/models").json()["a"]["inputs"] == {"x": {"shape": [2, 8], "dtype": "f32"}}
    for _ in range(3):
        client.post("/models/a/infer", json={"inputs": {"x": [[0.0] * 8] * 2}})
    text = client.get("/metrics").text
    assert 'kitsune_requests_total{model="a",outcome="answered"} 3.0' in text
    assert 'kitsune_requests_total{model="b",outcome="answered"} 0.0' in text
    assert "kitsune_waiting_requests 0.0" in text
    (seconds,) = re.findall(r'kitsune_latency_seconds\{model="a",quantile="0.99"\} (\S+)', text)
    assert 0 < float(seconds) < 10
    client.engine.close()
    assert client.get("/health").status_code == 503


def test_errors_have_a_status_and_a_sentence(client):
    good = {"inputs": {"x": [[0.0] * 8] * 2}}

    def post(name: str, status: int, match: str, **body: Any) -> None:
        answer = client.post(f"/models/{name}/infer", **body)
        assert answer.status_code == status and re.search(match, answer.json()["error"]), answer.text

    post("nobody", 404, "no model 'nobody'; models are a, b, lookup", json=good)
    post("a", 400, r"input 'x' has shape \[1, 8\], compiled for \[2, 8\]", json={"inputs": {"x": [[0.0] * 8]}})
    post("a", 400, "the body holds y; the program's inputs are x", json={"inputs": {"y": 1}})
    post("a", 400, "input 'x' is no tensor", json={"inputs": {"x": [[1, 2], [3]]}})
    post("a", 400, "input 'x' is no tensor", json={"inputs": {"x": "text"}})
    post("a", 400, 'the body is not {"inputs"', json=[1])
    post("a", 400, "the body is no JSON", content=b"{", headers={"content-type": "application/json; charset=utf-8"})
    post("a", 400, "the body is text/plain; ", content=b"{", headers={"content-type": "text/plain"})
    post("a", 400, "no safetensors file", content=b"12345678", headers={"content-type": SAFETENSORS})
    post("a", 413, "more than 4096 bytes", content=b" " * 5000, headers={"content-type": "application/json"})
    post("a", 400, "a deadline is a number of seconds above 0", json=good, params={"deadline": "soon"})
    post("a", 504, "the deadline of model 'a' was over", json=good, params={"deadline": "1e-9"})
    post("lookup", 422, "index", json={"inputs": {"table": [[0.0] * 4] * 5, "index": [5, 0]}})
    client.engine.close()
    post("a", 503, "closed", json=good)


def test_a_client_that_goes_cancels_its_request(folder):
    served = read_models(folder / "models.toml")
    engine = kitsune_mlir.serve(served.programs, measure=False)
    gate, begun = threading.Event(), threading.Event()
    family = engine._families["a"]
    real = family.finish

    def finish() -> None:
        family.finish = real
        begun.set()
        gate.wait(10)

    family.finish = finish
    engine.submit("a", (torch.zeros(2, 8),))
    begun.wait(10)
    app, body = make_app(engine), b'{"inputs": {"x": [[0,0,0,0,0,0,0,0],[0,0,0,0,0,0,0,0]]}}'
    messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/models/a/infer",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    sent: list[dict] = []

    async def receive() -> dict:
        return messages.pop(0) if messages else await asyncio.Event().wait()  # type: ignore[return-value]

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    gate.set()
    engine.close()
    assert sent[0]["status"] == 499
    assert engine.stats()["models"]["a"]["cancelled"] == 1 and engine.stats()["waiting"] == 0


def test_what_is_wrong_with_a_file_of_models(folder):
    def problem(text: str, match: str, kind: type[Exception] = ArgumentError) -> None:
        (folder / "wrong.toml").write_text(text)
        with pytest.raises(kind, match=match):
            read_models(folder / "wrong.toml")

    problem("[models", "wrong.toml: ")
    problem("limit = 3", "the file has no 'models'")
    problem('[models.a]\npackage = "tower.kit"\ncolour = 1', "model 'a' has an unknown entry 'colour'")
    problem("[models.a]\npackage = 3", "'package' of model 'a' is 3, where a text was expected")
    problem('[models.a]\npackage = "tower.kit"\ndeadline = -1', "'deadline' of model 'a' is -1, where a number of seconds")
    problem('[models.a]\npackage = "no.kit"', "no.kit", OSError)
    problem('[models.a]\npackage = "tower.kit"\nweights = "tower.kit"', "tower.kit: not a safetensors file")


def test_the_load_generator(folder):
    served = read_models(folder / "models.toml")
    engine = kitsune_mlir.serve(served.programs, limit=8, measure=False)

    async def run(**options: Any) -> Any:
        transport = httpx.ASGITransport(make_app(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await generate_load(client, **options)

    load = asyncio.run(run(rate=2000, count=200, deadline=20.0))
    assert load.statuses == {200: 200} and len(load.latencies) == load.in_time == 200
    assert "200 requests in" in str(load) and "p99" in str(load)
    assert {name for name, one in engine.stats()["models"].items() if one["answered"]} == {"a", "b", "lookup"}
    load = asyncio.run(run(models=["a"], rate=2000, count=20, deadline=1e-9))
    assert not load.latencies and sum(load.statuses.values()) == 20 and {*load.statuses} <= {503, 504}  # or not taken in
    assert f"{load.statuses[504]} x 504" in str(load)
    with pytest.raises(KitsuneError, match="no model 'nobody'; models are a, b, lookup"):
        asyncio.run(run(models=["nobody"]))
    engine.close()


def test_the_commands(folder, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from kitsune_mlir.tools.kitsune import main; main()"]
    command += ["serve", str(folder / "models.toml"), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            up = False
            while not up and server.poll() is None:
                try:
                    up = httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
                except httpx.TransportError:
                    threading.Event().wait(0.1)
            words = ["--rate", "500", "--count", "50", "--model", "a", "--deadline", "20"]
            done = CliRunner().invoke(main, ["load", f"http://127.0.0.1:{port}", *words])
            assert done.exit_code == 0 and "50 requests" in done.output and "; " not in done.output, done.output
        finally:
            server.terminate()
            server.wait(20)
    done = CliRunner().invoke(main, ["load", f"http://127.0.0.1:{port}"])
    assert done.exit_code == 1 and "no kitsune server answers" in done.output
    done = CliRunner().invoke(main, ["serve", str(folder / "none.toml")])
    assert done.exit_code == 1 and "No such file" in done.output
    frozen = list[int]()
    monkeypatch.setitem(sys.modules, "uvicorn", SimpleNamespace(run=lambda *_, **__: frozen.append(gc.get_freeze_count())))
    done = CliRunner().invoke(main, ["serve", str(folder / "models.toml")])
    assert done.exit_code == 0 and frozen[0] > 1000 and not gc.get_freeze_count(), done.output
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = CliRunner().invoke(main, ["serve", str(folder / "models.toml")])
    assert done.exit_code == 1 and "serving needs uvicorn, which is not installed: pip install" in done.output
