"""How long compiled code takes on its device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from kitsune_mlir.runtime.program import Runner
from kitsune_mlir.runtime.signature import torch_dtype

__all__ = ["device_name", "milliseconds"]

ROUNDS = 7
ROUND_SECONDS = 0.01


def device_name(device: str) -> str:
    """The processor's name: measurements hold for it only."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    from kitsune_mlir.runtime.host_code import host_cpu

    return f"{host_cpu()}-{torch.get_num_threads()}-threads"


TensorType = tuple[Sequence[int], str]
"""Shape, and MLIR's spelling of the element type."""


def milliseconds(
    runner: Runner, inputs: Sequence[TensorType], results: Sequence[TensorType], enough: float = float("inf")
) -> float:
    """Median time of a run on random inputs of these types.

    Integers are below every input's smallest extent, because they may index any of them. Code that takes longer than `enough`
    milliseconds is timed once.
    """
    import torch

    bound = max(1, min((extent for shape, _ in inputs for extent in shape if extent > 1), default=1))
    given = []
    for shape, element in inputs:
        dtype = torch_dtype(element)
        if dtype.is_floating_point:
            given.append(torch.randn(*shape, device=runner.device).to(dtype))
        else:
            given.append(torch.randint(0, 2 if dtype == torch.bool else bound, tuple(shape), device=runner.device).to(dtype))
    made = [torch.empty(*shape, dtype=torch_dtype(element), device=runner.device) for shape, element in results]
    pointers = tuple(t.data_ptr() for t in (*given, *made))
    cuda = runner.device.startswith("cuda")
    stream = torch.cuda.current_stream(runner.device).cuda_stream if cuda else 0

    def many(count: int) -> float:
        if not cuda:
            start = time.perf_counter()
            for _ in range(count):
                runner.run(pointers, stream)
            return (time.perf_counter() - start) / count
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            runner.run(pointers, stream)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / count * 1e-3

    many(1)
    once = 1e3 * many(1)
    if once > enough:
        return once
    count = max(1, min(200, int(1e3 * ROUND_SECONDS / max(once, 1e-4))))
    return 1e3 * statistics.median(many(count) for _ in range(ROUNDS))
