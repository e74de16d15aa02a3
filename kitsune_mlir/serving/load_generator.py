"""Sends requests to a server at a rate, whether or not the ones before are answered (an open loop), and says what came back."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.signature import torch_dtype
from kitsune_mlir.serving.bodies import SAFETENSORS
from kitsune_mlir.serving.statistics import percentile

__all__ = ["Load", "generate_load"]


@dataclasses.dataclass(frozen=True)
class Load:
    """What a load test has seen.

    Attributes:
        seconds: from the first request to the last answer.
        statuses: how many answers had each HTTP status; 0 is none at all.
        latencies: seconds of the right ones, in order.
        in_time: right ones within the deadline (all, without one).
    """

    seconds: float
    statuses: Mapping[int, int]
    latencies: Sequence[float]
    in_time: int

    def __str__(self) -> str:
        sent, ordered = sum(self.statuses.values()), list(self.latencies)
        others = ", ".join(
            f"{count} x {status or 'no answer'}" for status, count in sorted(self.statuses.items()) if status != 200
        )
        p50, p99 = (1e3 * percentile(ordered, percent) for percent in (50, 99))
        return (
            f"{sent} requests in {self.seconds:.1f} s: {len(ordered)} answered ({p50:.2f} ms p50, {p99:.2f} ms p99), "
            f"{self.in_time / self.seconds:.1f} a second in time{'; ' + others if others else ''}"
        )


async def generate_load(
    client: httpx.AsyncClient,
    models: Sequence[str] = (),
    rate: float = 100.0,
    count: int = 1000,
    deadline: float | None = None,
    seed: int = 0,
) -> Load:
    """Send random inputs to models at random, at times of a Poisson process.

    Args:
        client: of the server.
        models: names; all of the server's if empty.
        rate: requests a second.
        count: requests.
        deadline: seconds that each has, or None.
        seed: of the times and models.

    Raises:
        KitsuneError: the server has no such model, or no answer.
    """
    try:
        known = (await client.get("/models")).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise KitsuneError(f"no kitsune server answers at {client.base_url}: {error}") from error
    if unknown := {*models} - {*known}:
        raise KitsuneError(f"the server has no model '{min(unknown)}'; models are {', '.join(sorted(known))}")
    rng, names = random.Random(seed), list(models or sorted(known))
    bodies = {name: _random_body(known[name]["inputs"]) for name in names}
    statuses: collections.Counter[int] = collections.Counter()
    latencies: list[float] = []
    query = {} if deadline is None else {"deadline": str(deadline)}

    async def send(name: str) -> None:
        start = time.perf_counter()
        try:
            headers = {"content-type": SAFETENSORS}
            answer = await client.post(f"/models/{name}/infer", content=bodies[name], params=query, headers=headers)
            statuses[answer.status_code] += 1
            if answer.status_code == 200:
                latencies.append(time.perf_counter() - start)
        except httpx.HTTPError:
            statuses[0] += 1

    start = due = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(send(rng.choice(names)))
            due += rng.expovariate(rate)
    seconds = time.perf_counter() - start
    in_time = sum(deadline is None or latency <= deadline for latency in latencies)
    return Load(seconds, dict(statuses), sorted(latencies), in_time)


def _random_body(inputs: Mapping[str, Any]) -> bytes:
    import torch
    from safetensors.torch import save

    tensors = {}
    for name, item in inputs.items():
        kind = torch_dtype(item["dtype"])
        zeros = torch.zeros(item["shape"], dtype=kind)
        tensors[name] = zeros.normal_() if kind.is_floating_point else zeros
    return save(tensors)
