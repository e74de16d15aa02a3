"""Windows on the device: what a dependent hop and an independent tile cost, and DAGs of short tasks beside their bound.

    python -m bench.requests.device_window build DIR               # needs the compiler, no GPU
    python -m bench.requests.device_window run DIR [--json FILE]   # needs a Hopper GPU; no compiler

A task is a chain of 20 sines of 32 numbers in double precision by one warp, about 5 us: how long, is twice the difference
between that and one of ten, from chains of both. DAGs: "tree_lstm", recorded from eager calls of a child-sum Tree-LSTM over
64 leaves; "ant", "halfcheetah" and "humanoid", from steps of the creatures of `bench/requests/bodies.py` (a call that reads
more than four tensors reads some through others); "layers_12", drawn: as many tasks and levels as a step of mujoco-torch's
ant has, listed depth first. The bound is that of blocks that take tasks in the order of the list and lose no time between
them (`in_order`). Peers are timed in the same run: the same programs one after the other in a graph, in a graph with the
DAG's own edges on 16 streams, and the window of streams.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.records import Record
from bench.requests.bodies import CREATURES
from bench.requests.known_paths import Lanes
from bench.requests.physics import creature
from bench.requests.window_nets import NETS
from bench.timing import environment
from test.gpu.driver import program_main

WIDTH, STEPS, MOST = 32, 20, 4
KERNEL = "device.epoch"
TASKS, LEVELS = 4286, 356
"""Of a step of mujoco-torch's ant."""
STREAMS = 16

Dag = list[list[int]]
"""For each task the earlier ones that it reads."""


class Node(nn.Module):
    """A task that reads some tensors and writes one."""

    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps

    def forward(self, *given: Tensor) -> Tensor:
        y = functools.reduce(torch.add, given) + 1
        for _ in range(self.steps):
            y = torch.sin(y)
        return y


class Bump(nn.Module):
    """Adds one in place: hardly a body at all."""

    def forward(self, x: Tensor) -> None:
        x.add_(1)


def modules() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """What is compiled, by name, with example arguments."""
    x = torch.zeros(WIDTH, dtype=torch.float64)
    found: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        f"node_{count}": (Node(STEPS), tuple(x.clone() for _ in range(count))) for count in range(1, MOST + 1)
    }
    return found | {
        "node_half": (Node(STEPS // 2), (x,)),
        "bump": (Bump(), (torch.zeros(1),)),
        "rows": (Bump(), (torch.zeros(2048, 256),)),
    }


class _Recorder(TorchDispatchMode):
    """The calls that make something new, and which earlier ones made what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.dag: Dag = []
        self._made: dict[int, int] = {}
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        read = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        known = {one.untyped_storage().data_ptr() for one in read}
        new = [one for one in tree_leaves(out) if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in known]
        if new:
            self._kept.append(new)
            sources = sorted({self._made[place] for place in known if place in self._made})
            for one in new:
                self._made[one.untyped_storage().data_ptr()] = len(self.dag)
            self.dag.append(sources)
        return out


def tree_lstm() -> Dag:
    """Recorded from the eager model."""
    torch.manual_seed(0)
    model, draw = NETS["tree-lstm"].make(False)
    return _recorded(model, draw(random.Random(0)))


def step_of(name: str) -> Dag:
    """Recorded from a step of a creature, the fifth of an episode."""
    torch.manual_seed(0)
    (model, draw), source = creature(name, 1, False), random.Random(0)
    return narrowed(_recorded(model, [draw(source) for _ in range(5)][-1]))


def _recorded(model: nn.Module, given: Any) -> Dag:
    with torch.no_grad(), _Recorder() as recorder:
        model(given)
    return recorder.dag


def narrowed(dag: Dag, most: int = MOST) -> Dag:
    """With tasks that read so many others at most: what reads more reads the first of them through tasks more."""
    made, place = list[list[int]](), list[int]()
    for reads in dag:
        own = [place[one] for one in reads]
        while len(own) > most:
            made.append(own[:most])
            own = [*own[most:], len(made) - 1]
        place.append(len(made))
        made.append(own)
    return made


def layers(tasks: int = TASKS, levels: int = LEVELS, seed: int = 0) -> Dag:
    """Drawn: each task reads one or two of the level before; in the order of a depth-first walk from the last level."""
    draw = random.Random(seed)
    of: list[list[int]] = [[] for _ in range(levels)]
    for task in range(tasks):
        of[task if task < levels else draw.randrange(levels)].append(task)
    reads: dict[int, list[int]] = {
        task: sorted(draw.sample(of[level - 1], min(len(of[level - 1]), draw.choice((1, 1, 2))))) if level else []
        for level, those in enumerate(of)
        for task in those
    }
    numbers: dict[int, int] = {}
    for last in reversed(of):
        for task in last:
            waiting = [task]
            while waiting:
                if waiting[-1] in numbers:
                    waiting.pop()
                elif missing := [one for one in reads[waiting[-1]] if one not in numbers]:
                    waiting += missing
                else:
                    numbers[task := waiting.pop()] = len(numbers)
    return [[numbers[one] for one in reads[task]] for task in numbers]


def in_order(dag: Dag, blocks: int) -> int:
    """Units of time in which blocks do tasks of one unit each, which they take in the order of the list."""
    free, ends = [0] * blocks, list[int]()
    for reads in dag:
        start = max([heapq.heappop(free), *(ends[one] for one in reads)])
        ends.append(start + 1)
        heapq.heappush(free, start + 1)
    return max(ends)


DAGS: dict[str, Callable[[], Dag]] = {
    "tree_lstm": tree_lstm,
    "layers_12": layers,
    **{name: functools.partial(step_of, name) for name in CREATURES},
}


def build(folder: Path, names: Sequence[str]) -> None:
    """Compile the programs and their kernel, and make the DAGs."""
    import kitsune_mlir

    folder.mkdir(parents=True, exist_ok=True)
    programs = []
    for name, (model, args) in modules().items():
        programs.append(kitsune_mlir.compile(model, args, target="sm_90a"))
        programs[-1].save(folder / f"{name}.kit", ir=False)
        print(name, [(e["engine"], e["tiles"]) for e in programs[-1].summary["engines"]], flush=True)
    kernel = kitsune_mlir.epoch_kernel(programs)
    kernel.save(folder / KERNEL)
    print(kernel.resources, flush=True)
    for name, make in DAGS.items():
        (folder / f"{name}.json").write_text(json.dumps(make()))


def microseconds(call: Callable[[], object], rounds: int = 9) -> float:
    """Median device time of a call."""
    call()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(200_000)  # the host is ahead
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


class Bench:
    """The kernel and the programs, loaded."""

    def __init__(self, folder: Path):
        import kitsune_mlir
        from kitsune_mlir.runtime.epoch_kernel import EpochKernel

        self.folder = folder
        self.programs = {path.stem: kitsune_mlir.load(path) for path in sorted(folder.glob("*.kit"))}
        self.kernel = EpochKernel.load(folder / KERNEL)
        self.loaded = self.kernel.on(0)

    def prepared(
        self,
        calls: Sequence[tuple[str, Sequence[Tensor], Sequence[int]]],
        blocks: int | None = None,
        ready_first: bool = True,
    ) -> Any:
        """An epoch of calls: program, tensors in the order of its pointers, and the earlier calls that it depends on."""
        from kitsune_mlir.runtime.epoch import Epoch, Instance

        epoch = Epoch(self.kernel.manifest, ready_first)
        for name, tensors, upstream in calls:
            number = self.kernel.number_of(self.programs[name])
            assert number is not None
            epoch.append(Instance(number, [one.data_ptr() for one in tensors], upstream))
        made = self.loaded.prepare(epoch, torch.cuda.current_stream().cuda_stream, blocks)
        made.tensors = [tensors for _, tensors, _ in calls]
        return made

    def costs(self) -> dict[str, float]:
        """Hops, tiles, launches."""
        one, count = torch.zeros(1, device="cuda"), 4000
        found = {"blocks": float(self.loaded.resident)}
        chain = self.prepared([("bump", (one, one), [n - 1] if n else []) for n in range(count)])
        short = self.prepared([("bump", (one, one), [])])
        found["launch of one task, us"] = least = microseconds(short.run)
        one.zero_()
        chain.run()
        assert float(one) == count, f"{count} hops gave {float(one)}"
        for blocks in sorted({8, 132, 264, self.loaded.resident, self.loaded.most}):
            chain = self.prepared([("bump", (one, one), [n - 1] if n else []) for n in range(count)], blocks)
            found[f"dependent hop, {blocks} blocks, us"] = (microseconds(chain.run) - least) / (count - 1)
        rows = [torch.zeros(2048, 256, device="cuda") for _ in range(8)]
        wide = self.prepared([("rows", (rows[n % 8], rows[n % 8]), []) for n in range(64)])
        found["independent tiles, millions a second"] = wide.tickets / microseconds(wide.run)
        many = [torch.zeros(1, device="cuda") for _ in range(256)]
        fan = self.prepared([("bump", (many[n % 256], many[n % 256]), []) for n in range(16384)])
        found["independent tasks of a tile, millions a second"] = fan.tickets / microseconds(fan.run)
        x, y = (torch.zeros(WIDTH, dtype=torch.float64, device="cuda") for _ in range(2))
        whole, half = (
            microseconds(self.prepared([(name, (x, y), [n - 1] if n else []) for n in range(500)], 132).run) / 500
            for name in ("node_1", "node_half")
        )
        found["a task, us"], found["hop between tasks, us"] = 2 * (whole - half), 2 * half - whole
        return found

    def dag(self, name: str, task: float) -> dict[str, float]:
        """A DAG's times, microseconds."""
        dag: Dag = json.loads((self.folder / f"{name}.json").read_text())
        source = torch.randn(WIDTH, dtype=torch.float64, device="cuda")
        outputs = [torch.zeros(WIDTH, dtype=torch.float64, device="cuda") for _ in dag]
        reads = [[outputs[one] for one in own] or [source] for own in dag]
        assert max(map(len, reads)) <= MOST
        calls = [(f"node_{len(given)}", (*given, out), own) for given, out, own in zip(reads, outputs, dag, strict=True)]
        prepared = self.prepared(calls)
        prepared.run()
        got = [one.clone() for one in outputs]

        def plain() -> None:
            for given, out in zip(reads, outputs, strict=True):
                self.programs[f"node_{len(given)}"].run(*given, into=out)

        def branched() -> None:
            self._branched(dag, reads, outputs)

        for one in outputs:
            one.zero_()
        plain()
        wrong = sum(not a.equal(b) for a, b in zip(got, outputs, strict=True))
        assert not wrong, f"{wrong} of {len(dag)} outputs of {name} differ"
        found = {"tasks": float(len(dag)), "critical path, units": float(in_order(dag, len(dag)))}
        for blocks in sorted({132, 264, self.loaded.resident}):
            found[f"bound, {blocks} blocks"] = bound = in_order(dag, blocks) * task
            found[f"device, {blocks} blocks"] = time_ = microseconds(self.prepared(calls, blocks).run)
            found[f"share of the bound, {blocks} blocks"] = bound / time_
            found[f"device, in the order of the appends, {blocks} blocks"] = microseconds(
                self.prepared(calls, blocks, False).run
            )
        for kind, body in (("one after the other, graph", plain), ("16 streams, graph", branched)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                body()
            found[kind] = microseconds(graph.replay, 3)
        found |= self._windows(reads)
        return found

    def _branched(self, dag: Dag, reads: Sequence[Sequence[Tensor]], outputs: Sequence[Tensor]) -> None:
        """The programs on streams that wait for each other's events, each on that of what it reads if nothing followed yet."""
        streams = [torch.cuda.Stream() for _ in range(STREAMS)]
        first = torch.cuda.current_stream().record_event()
        for stream in streams:
            stream.wait_event(first)
        lanes, events = Lanes(STREAMS), list[Any]()
        for own, given, out in zip(dag, reads, outputs, strict=True):
            number, others = lanes.place(own)
            for one in others:
                streams[number].wait_event(events[one])
            with torch.cuda.stream(streams[number]):
                self.programs[f"node_{len(given)}"].run(*given, into=out)
            events.append(streams[number].record_event())
        for stream in streams:
            torch.cuda.current_stream().wait_event(stream.record_event())

    def _windows(self, reads: Sequence[Sequence[Tensor]]) -> dict[str, float]:
        """Windows from Python, host included; the tensors that tasks read are those of another run, which costs the same."""
        import kitsune_mlir

        found = {}
        for back_end in ("device", "streams"):
            times, host = [], []
            for _ in range(3):
                torch.cuda.synchronize()
                kernel = self.kernel if back_end == "device" else None
                window = kitsune_mlir.Window(size=4096 if kernel else 128, back_end=back_end, kernel=kernel)
                start = time.perf_counter()
                for given in reads:
                    window.append(self.programs[f"node_{len(given)}"], given)
                window.flush()
                host.append(1e6 * (time.perf_counter() - start))
                torch.cuda.synchronize()
                times.append(1e6 * (time.perf_counter() - start))
            found[f"window '{back_end}' from Python, independent tasks"] = statistics.median(times)
            found[f"window '{back_end}' from Python, host alone"] = statistics.median(host)
        return found


def run(folder: Path, names: Sequence[str], given: argparse.Namespace) -> None:
    """Measure, and print."""
    bench = Bench(folder)
    record = Record.open(given.json, resume=False)
    record.begin(
        {
            "environment": environment(),
            "command": f"python -m bench.requests.device_window run {' '.join(names)}",
        }
    )
    costs = bench.costs()
    for name in ("costs", *(names or DAGS)):
        figures = costs if name == "costs" else bench.dag(name, costs["a task, us"])
        record.add({"case": name, "figures": figures})
        print(name, json.dumps(figures, indent=1), flush=True)


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run))
