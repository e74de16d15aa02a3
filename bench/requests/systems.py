"""What serves requests for many models beside the engine: a loop that takes what waits, and a way to run what it took.

A way is `work(items)`, which gives outputs and the items that wait for the next turn, made for models of one architecture or
several. On the host ways call models; on a GPU they replay graphs that were recorded before, and synchronize once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bench.requests.arrivals import Arrivals
from bench.timing import graphed
from kitsune_mlir.errors import KitsuneError
from kitsune_mlir.runtime.driver import Device, call, driver

__all__ = ["LIMIT", "Item", "Work", "batched", "in_green_contexts", "one_by_one", "serve", "stacked", "together"]

LIMIT = 64
"""Requests that are taken at a time."""
BUCKETS = (1, 2, 4, 8)
"""Rows of one model that are run at once."""

Item = tuple[int, Tensor, int]
"""The model's number, its input, and the number of the request."""
Work = Callable[[Sequence[Item]], tuple[list[tuple[int, Any]], Sequence[Item]]]
"""Runs some requests, to their end: numbers with outputs, and those that have to wait for the next turn."""


def serve(work: Work, arrivals: Arrivals, items: Sequence[Item], keep: dict[int, Any] | None = None) -> None:
    """Have what has come run, in the order in which it came, until the load is over.

    Args:
        items: all requests of the load.
        keep: is given the outputs.
    """
    left: Sequence[Item] = []
    with torch.no_grad():
        while True:
            new = arrivals.take(LIMIT - len(left), not left) if len(left) < LIMIT else range(0)
            taken = [*left, *items[new.start : new.stop]]
            if not taken:
                return
            ended, left = work(taken)
            arrivals.ended([number for number, _ in ended])
            if keep is not None:
                keep.update(ended)


def one_by_one(models: Sequence[nn.Module], examples: Sequence[Tensor], streams: Sequence[Any] = ()) -> Work:
    """Each request by itself, in order.

    Args:
        examples: an input of each model, or one for all.
        streams: CUDA streams that models are dealt out to; one of its own if empty.
    """
    if not examples[0].is_cuda:
        return lambda items: ([(number, models[model](x)) for model, x, number in items], ())
    given = examples if len(examples) == len(models) else [examples[0]] * len(models)
    places = [x.clone() for x in given]
    made = list(streams) or [torch.cuda.Stream()]
    graphs = [
        graphed(lambda model=model, x=x: model(x), made[number % len(made)])
        for number, (model, x) in enumerate(zip(models, places, strict=True))
    ]

    def work(items: Sequence[Item]) -> tuple[list[tuple[int, Any]], Sequence[Item]]:
        outputs = []
        for model, x, number in items:
            with torch.cuda.stream(made[model % len(made)]):  # a model's requests stay in order
                places[model].copy_(x)
                outputs.append((number, graphs[model]().clone()))  # the next replay overwrites it
        for stream in made:
            stream.synchronize()
        return outputs, ()

    return work


def in_green_contexts(models: Sequence[nn.Module], examples: Sequence[Tensor], contexts: int = 4, share: int = 32) -> Work:
    """Models dealt out to parts of the GPU that have no multiprocessor in common, of so many each.

    (`torch.cuda.green_contexts` cuts each context from the whole device, so that several would be the same part.)

    Raises:
        KitsuneError: this driver has no green contexts, or the device no such parts.
    """
    cu, device = driver(), Device.open(examples[0].device.index or 0)
    whole = call("cuDeviceGetDevResource", device.handle, cu.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    parts, count, _ = call("cuDevSmResourceSplitByCount", contexts, whole, 0, share)
    if count < contexts:
        raise KitsuneError(f"the device has {count} parts of {share} multiprocessors, not {contexts}")
    streams = []
    for part in parts[:contexts]:
        described = call("cuDevResourceGenerateDesc", [part], 1)
        context = call("cuGreenCtxCreate", described, device.handle, cu.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        stream = call("cuGreenCtxStreamCreate", context, cu.CUstream_flags.CU_STREAM_NON_BLOCKING, 0)
        streams.append(torch.cuda.ExternalStream(int(stream), examples[0].device))
    return one_by_one(models, examples, streams)


def stacked(models: Sequence[nn.Module], shared: str = "") -> Callable[[Tensor], Tensor]:
    """All models by `vmap`, on a row of inputs each; their weights are copied into stacks, but for `shared` ones."""
    first = {**dict(models[0].named_parameters()), **dict(models[0].named_buffers())}
    states = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model in models]
    alike = {name for name in first if shared and name.startswith(shared)}
    stacks = {name: first[name] if name in alike else torch.stack([state[name] for state in states]) for name in first}
    axes = {name: None if name in alike else 0 for name in first}
    shape = copy.deepcopy(models[0]).to("meta")

    def one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(shape, weights, (x,))

    return lambda rows: torch.vmap(one, (axes, 0))(stacks, rows)


def together(models: Sequence[nn.Module], example: Tensor, shared: str = "") -> Work:
    """All models at once, at most one request of each: `vmap`, through torch.compile in a graph on a GPU.

    Args:
        shared: names of parameters that are the same tensors in all models begin so; those are not stacked.
    """
    every, rows, cuda = stacked(models, shared), torch.stack([example] * len(models)), example.is_cuda
    compiled = torch.compile(every, dynamic=False) if cuda else every
    replay = graphed(lambda: compiled(rows)) if cuda else lambda: every(rows)
    stream = torch.cuda.Stream() if cuda else None

    def work(items: Sequence[Item]) -> tuple[list[tuple[int, Any]], Sequence[Item]]:
        own: dict[int, Item] = {}
        again = [item for item in items if own.setdefault(item[0], item) is not item]
        with torch.cuda.stream(stream):
            torch._foreach_copy_([rows[number] for number in own], [x for _, x, _ in own.values()])  # type: ignore[reportPrivateImportUsage]
            outputs = replay()
            outputs = outputs.clone() if cuda else outputs
        if stream is not None:
            stream.synchronize()
        return [(number, outputs[model]) for model, (_, _, number) in own.items()], again

    return work


def batched(models: Sequence[nn.Module], examples: Sequence[Tensor]) -> Work:
    """Requests of one model as rows of one call, as servers that batch by model do; rows are padded to `BUCKETS`."""
    given = examples if len(examples) == len(models) else [examples[0]] * len(models)
    made: dict[tuple[int, int], tuple[Tensor, Callable[[], Tensor]]] = {}
    for number, (model, x) in enumerate(zip(models, given, strict=True)):
        for count in BUCKETS:
            place = torch.cat([x] * count)
            call = lambda model=model, place=place: model(place)  # noqa: E731
            made[number, count] = place, graphed(call) if x.is_cuda else call

    def work(items: Sequence[Item]) -> tuple[list[tuple[int, Any]], Sequence[Item]]:
        groups: dict[int, list[Item]] = {}
        for item in items:
            groups.setdefault(item[0], []).append(item)
        outputs = []
        for number, group in groups.items():
            own = group[: BUCKETS[-1]]
            place, call = made[number, next(count for count in BUCKETS if count >= len(own))]
            for row, (_, x, _) in enumerate(own):
                place[row : row + 1].copy_(x)
            outputs.append((own, call().clone()))
        if place.is_cuda:
            torch.cuda.current_stream().synchronize()
        ended = [(number, output[row : row + 1]) for own, output in outputs for row, (_, _, number) in enumerate(own)]
        return ended, [item for group in groups.values() for item in group[BUCKETS[-1] :]]

    return work
