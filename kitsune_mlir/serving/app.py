"""An ASGI app over an engine: health, models, metrics, and inference over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kitsune_mlir.errors import ArgumentError, BusyError, DeadlineError, KitsuneError
from kitsune_mlir.runtime.named_inputs import call_of
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.serving.bodies import JSON, SAFETENSORS, read_body, write_body
from kitsune_mlir.serving.engine import Engine
from kitsune_mlir.serving.metrics import metrics_text

__all__ = ["make_app"]

BODY_BYTES = 64 << 20
"""The largest body of a request."""

CLIENT_GONE = 499
"""Status of an answer that nobody waits for; only logs show it."""


class _TooLarge(ArgumentError):
    """A body has more bytes than are taken."""


def make_app(engine: Engine, deadlines: Mapping[str, float] | None = None, body_bytes: int = BODY_BYTES) -> Starlette:
    """The app; it closes the engine when it ends.

    `GET /health`, `/models` and `/metrics`; `POST /models/NAME/infer` with the inputs by name, in safetensors or JSON; the
    answer is in the same. `?deadline=SECONDS` is the request's. 400 is an argument that does not fit, 404 a model that there is
    not, 413 a body that is too large, 422 an error of the model itself, 503 too many requests, 504 a deadline that is over.
    Whoever goes before the answer is there cancels the request.

    Args:
        deadlines: seconds, by model, for requests without one.
        body_bytes: of the largest body.
    """
    models = engine.models

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "closed" if engine.closed else "ok"}, 503 if engine.closed else 200)

    async def list_models(_: Request) -> Response:
        return JSONResponse({name: _described(program) for name, program in models.items()})

    async def metrics(_: Request) -> Response:
        return Response(metrics_text(engine), media_type="text/plain; version=0.0.4")

    async def infer(request: Request) -> Response:
        name = request.path_params["name"]
        program = models.get(name)
        if program is None:
            return _problem(404, f"there is no model '{name}'; models are {', '.join(sorted(models))}")
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            tensors = read_body(program, await _body(request, body_bytes), kind)
            args, kwargs = call_of(program.signature, tensors, "the body")
            deadline = _deadline(request, (deadlines or {}).get(name))
            output = await _answer(request, engine.submit(name, args, kwargs, deadline=deadline))
        except (ClientDisconnect, asyncio.CancelledError):
            return Response(status_code=CLIENT_GONE)
        except KitsuneError as error:
            return _problem(_status(error), str(error))
        return Response(write_body(output, kind), media_type=kind)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    routes = [
        Route("/health", health),
        Route("/models", list_models),
        Route("/metrics", metrics),
        Route("/models/{name}/infer", infer, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


async def _body(request: Request, most: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise _TooLarge(f"the body has more than {most} bytes")
    return bytes(body)


async def _answer(request: Request, future: Future[Any]) -> Any:
    """The output of a submitted request, unless its client goes before."""
    waiting, gone = asyncio.wrap_future(future), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise ClientDisconnect
        return waiting.result()
    finally:
        gone.cancel()
        waiting.cancel()  # what it stands for, too, unless it has begun


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _deadline(request: Request, usual: float | None) -> float | None:
    text = request.query_params.get("deadline")
    if text is None:
        return usual
    try:
        return float(text)
    except ValueError:
        return math.nan  # the engine says what it wants


def _status(error: KitsuneError) -> int:
    kinds = ((_TooLarge, 413), (ArgumentError, 400), (BusyError, 503), (DeadlineError, 504))
    return next((status for kind, status in kinds if isinstance(error, kind)), 422)


def _problem(status: int, text: str) -> Response:
    headers = {"retry-after": "1"} if status == 503 else None
    return JSONResponse({"error": text}, status, headers)


def _described(program: Program) -> dict[str, Any]:
    inputs = {i.name: {"shape": i.shape, "dtype": i.dtype} for i in program.signature.inputs}
    return json.loads(json.dumps({"target": program.target, "inputs": inputs, "content_types": [JSON, SAFETENSORS]}))
