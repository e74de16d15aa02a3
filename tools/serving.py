"""`kitsune serve` and `kitsune load`: models behind HTTP, and requests to try them with."""

from __future__ import annotations

import asyncio
import gc
import importlib

import click
from rich.console import Console

from kitsune_mlir.errors import KitsuneError

from .progress import Progress
from .readable import readable

__all__ = ["load", "serve"]


@click.command()
@click.argument("models", type=click.Path(dir_okay=False))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port to listen at; 0 is any.")
@readable
def serve(models: str, host: str, port: int) -> None:
    """Serve the models that MODELS, a .toml file, names (docs/serving.md); ends at an interrupt, when all is answered."""
    _require("starlette", "uvicorn", "prometheus_client")
    import uvicorn

    from kitsune_mlir.serving.app import make_app
    from kitsune_mlir.serving.config import read_models
    from kitsune_mlir.serving.serve import serve as engine_of

    with Progress(Console(stderr=True, soft_wrap=True)).running("loading"):
        served = read_models(models)
        engine = engine_of(served.programs, limit=served.limit, capacity=served.capacity)
    gc.collect()
    gc.freeze()  # what is there stays: a full collection would look at all of it, and hold up all requests
    try:
        uvicorn.run(make_app(engine, served.deadlines), host=host, port=port, log_level="warning")
    finally:
        gc.unfreeze()


@click.command()
@click.argument("url")
@click.option("--model", "models", multiple=True, help="Name of a model; all of the server's without.")
@click.option("--rate", default=100.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Requests a second.")
@click.option("--count", default=1000, show_default=True, type=click.IntRange(1), help="Requests in all.")
@click.option("--deadline", type=click.FloatRange(0, min_open=True), help="Seconds that each request has.")
@click.option("--seed", default=0, show_default=True, help="Seed of the times and models.")
@readable
def load(url: str, models: tuple[str, ...], rate: float, count: int, deadline: float | None, seed: int) -> None:
    """Send random inputs to the server at URL, at times of a Poisson process, and say how long the answers took."""
    _require("httpx")
    import httpx

    from kitsune_mlir.serving.load_generator import generate_load

    async def run() -> str:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
            return str(await generate_load(client, models, rate, count, deadline, seed))

    click.echo(asyncio.run(run()))


def _require(*libraries: str) -> None:
    for library in libraries:
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise KitsuneError(f"serving needs {library}, which is not installed: pip install 'kitsune-mlir[serve]'") from error
