"""Two processes that train with DistributedDataParallel, in PyTorch and with this backend, and compare.

    python -m test.numerics.data_parallel FILE CASE

FILE is what the processes find each other by. They are forked from one that has imported all they need; problems are
exceptions, which end both.
"""

import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo.backends.common
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

import kitsune_mlir
import kitsune_mlir.pipeline
from kitsune_mlir.dynamo.report import GraphReport, logger

PROCESSES, BUCKETS = 2, 2
Model = Callable[..., Any]


class Reports(logging.Handler):
    """What became of graphs, as the logger of this backend says."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[GraphReport] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps reports."""
        self.found += [report for report in record.args or () if isinstance(report, GraphReport)]


REPORTS = Reports()


class Layers(nn.Module):
    """Two buckets' worth, of sizes that go into none evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm, self.last = (
            nn.Linear(9, 129),
            nn.Linear(129, 67),
            nn.LayerNorm(67),
            nn.Linear(67, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.second(F.gelu(self.first(x)))).relu())


def layers() -> nn.Module:
    """The same in each process."""
    torch.manual_seed(1)
    return Layers()


def parallel(model: nn.Module, sent: list[int]) -> DistributedDataParallel:
    """A model with buckets of 20 KB; the number of each bucket that is sent goes into a list."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 16_000  # type: ignore[attr-defined]  # Dynamo's own wants it no larger than the others
    made = DistributedDataParallel(model, bucket_cap_mb=0.02)

    def send(_: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        sent.append(bucket.index())
        mean = bucket.buffer().div_(PROCESSES)
        sending: Any = dist.all_reduce(mean, async_op=True)
        return sending.get_future().then(lambda done: done.value()[0])

    made.register_comm_hook(None, send)
    return made


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    """This process's."""
    made = torch.Generator().manual_seed(10 + dist.get_rank())
    return [(torch.randn(7, 9, generator=made), torch.randn(7, 5, generator=made)) for _ in range(count)]


def alike(ours: nn.Module, theirs: nn.Module) -> None:
    """Parameters and gradients are the same, and in both processes."""
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
        least, most = a.detach().clone(), a.detach().clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        assert torch.equal(least, most)


def gradients(compiled: Callable[[nn.Module, list[int]], tuple[Model, DistributedDataParallel]]) -> None:
    """Three times backward, with one between that is not sent, as eager's; the same buckets are sent, in the same order."""
    sent: tuple[list[int], list[int]] = ([], [])
    call, ours = compiled(layers(), sent[0])
    theirs = parallel(layers(), sent[1])
    for n, (x, y) in enumerate(batches(4)):
        for forward, model in ((call, ours), (theirs, theirs)):
            with model.no_sync() if n == 1 else torch.enable_grad():
                F.mse_loss(forward(x), y).backward()
        if n != 1:
            alike(ours.module, theirs.module)
            for p in [*ours.parameters(), *theirs.parameters()]:
                p.grad = None
    assert sent[0] == sent[1] and len(set(sent[1])) == BUCKETS, sent
    cut()


def cut() -> None:
    """There is a backward program for each bucket, so that it is sent while the next one is computed."""
    kinds = [report.kind for report in REPORTS.found if report.programs and not report.gave_up]
    assert kinds.count("backward") >= BUCKETS, kinds


def inside(model: nn.Module, sent: list[int]) -> tuple[Model, DistributedDataParallel]:
    """The model is compiled, DDP is around it."""
    compiled: Any = torch.compile(model, backend="kitsune")
    made = parallel(compiled, sent)
    return made, made


def outside(model: nn.Module, sent: list[int]) -> tuple[Model, DistributedDataParallel]:
    """DDP is compiled: Dynamo cuts graphs where buckets end."""
    made = parallel(model, sent)
    return torch.compile(made, backend="kitsune"), made


def steps() -> None:
    """`train_step` of such a model: gradients are sent, clipped, the update is one program; two batches with one update."""
    sent: tuple[list[int], list[int]] = ([], [])
    models = parallel(layers(), sent[0]), parallel(layers(), sent[1])
    bests = [optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in models]
    step = kitsune_mlir.train_step(
        models[0], F.mse_loss, bests[0], before_update=lambda: nn.utils.clip_grad_norm_(models[0].parameters(), 0.1)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n, (x, y) in enumerate(batches(5)):
            update = n != 1
            with models[0].no_sync() if not update else torch.enable_grad():
                loss = step(x, y, update=update)
            with models[1].no_sync() if not update else torch.enable_grad():
                other = F.mse_loss(models[1](x), y)
                other.backward()
            torch.testing.assert_close(loss, other.detach(), rtol=1e-4, atol=1e-5)
            if update:
                nn.utils.clip_grad_norm_(models[1].parameters(), 0.1)
                bests[1].step()
                bests[1].zero_grad()
                alike(models[0].module, models[1].module)
            for best in bests:
                best.param_groups[0]["lr"] *= 0.9
    assert sent[0] == sent[1]
    cut()
    (update_of,) = [report for report in step.reports if report.kind == "step"]
    assert len(update_of.programs) == 1


CASES: dict[str, Callable[[], None]] = {
    "inside": lambda: gradients(inside),
    "outside": lambda: gradients(outside),
    "steps": steps,
}


def run(rank: int, file: str, case: str) -> None:
    """One of the processes."""
    logger.addHandler(REPORTS)
    logger.setLevel(logging.INFO)
    dist.init_process_group("gloo", f"file://{file}", timedelta(seconds=100), PROCESSES, rank)
    CASES[case]()
    dist.destroy_process_group()


def forked(rank: int, file: str, case: str) -> int:
    """The number of a process that runs the case and ends, with 0 where nothing was wrong."""
    child = os.fork()
    if not child:
        code = 1
        try:
            run(rank, file, case)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


if __name__ == "__main__":
    torch.set_num_threads(1)
    running = {forked(rank, *sys.argv[1:]) for rank in range(PROCESSES)}
    while running:
        child, status = os.wait()
        running.discard(child)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)
    print("right")
