"""PyTorch's own operator samples through the compiler.

    python -m test.opinfo [--samples N] [--every K] [--out docs/coverage.md]

Each sample of `op_db` (float32 and int64 where defined) is compiled for the host target and compared with PyTorch; the float32
ones also with their gradients, forward and backward in one program, where PyTorch has them. Outcomes:

    right          compiled, ran, equal to PyTorch (float64 reference)
    not importable torch-mlir cannot import it (the error names operator and line), or it has no static shape
    unsupported    imported, and refused with a clear error
    wrong          ran and differed
    crash          the process died or hung

The work is done by worker processes, so that a crash costs one sample.
"""

from __future__ import annotations

import argparse
import collections
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

SECONDS = 60
OUTCOMES = ("right", "not importable", "unsupported", "wrong", "crash")
# Results that depend on a random generator, on uninitialised memory, or on the process: nothing to compare.
SKIPPED = ("rand", "normal", "empty", "dropout", "bernoulli", "multinomial", "cauchy", "exponential", "geometric", "log_normal")


# Among equal elements PyTorch promises no order, so the second output (indices) is not compared.
TIES = ("topk", "kthvalue", "mode")


def wrap(op: Any, sample: Any):
    """A module that applies an operator to a sample, and the tensors that are its inputs."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    class Sample(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            filled = list(leaves)
            for i, tensor in zip(where, tensors, strict=True):
                filled[i] = tensor
            value, args, kwargs = pytree.tree_unflatten(filled, spec)
            return op(value, *args, **kwargs)

    return Sample().eval(), tuple(leaves[i].detach() for i in where)


def _first_line(error: Exception) -> str:
    """What an error says, with source files as paths inside this repository."""
    root = f"{Path(__file__).resolve().parents[1]}/"
    return str(error).splitlines()[0].replace(root, "")[:160]


def try_sample(op: Any, sample: Any) -> tuple[str, str]:
    """(outcome, detail) of one sample."""
    import torch
    from torch.utils import _pytree as pytree

    import kitsune_mlir
    from kitsune_mlir.errors import FrontendError, KitsuneError
    from test.numerics.compare import problems, widened

    model, args = wrap(op, sample)
    if not args:
        return "skip", "no tensor input"
    with torch.no_grad():
        try:
            plain = model(*(a.clone() for a in args))
        except Exception as error:  # PyTorch itself cannot run the sample here
            return "skip", f"PyTorch: {error}"[:160]
        if not all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(plain)):
            return "skip", "its output is no tensor"
        try:
            wide = model(*(widened(a.clone()) for a in args))
        except (RuntimeError, TypeError):
            wide = plain
        if [t.is_floating_point() for t in pytree.tree_leaves(wide)] != [
            t.is_floating_point() for t in pytree.tree_leaves(plain)
        ]:
            wide = plain
    try:
        program = kitsune_mlir.compile(model, args, target="host", options={"threads": 1, "reproducer_dir": "out/opinfo"})
        got = program(*(a.clone() for a in args))
    except FrontendError as error:
        return "not importable", _first_line(error)
    except KitsuneError as error:
        return "unsupported", _first_line(error)
    if op.name in TIES:
        got, wide, plain = got[:1], wide[:1], plain[:1]
    found = problems(got, wide, plain)
    return ("wrong", "; ".join(found)[:160]) if found else ("right", "")


def try_gradients(op: Any, sample: Any) -> tuple[str, str]:
    """(outcome, detail) of one sample's results and gradients together, for random tangents."""

    from kitsune_mlir.errors import FrontendError, KitsuneError
    from test.numerics.gradients import tangents_of, with_gradients, wrong

    model, args = wrap(op, sample)
    function = (lambda *tensors: model(*tensors)[0]) if op.name in TIES else model
    try:
        tangents = tangents_of(function, args)
        if not tangents:
            return "skip", "no result has a gradient"
        with_gradients(function, args, tangents)
    except Exception as error:  # PyTorch itself has no gradient here
        return "skip", f"PyTorch: {error}"[:160]
    try:
        found = wrong(function, args)
    except FrontendError as error:
        return "not importable", _first_line(error)
    except KitsuneError as error:
        return "unsupported", _first_line(error)
    return ("wrong", "; ".join(found)[:160]) if found else ("right", "")


GRADIENTS = "float32, gradients"
"""Stands for a type in results."""


def worker() -> None:
    """Read {op, dtype, skip, samples, every} lines; answer one line a sample, then {"done": true}."""
    import warnings

    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    table = {f"{op.name}/{op.variant_test_name}": op for op in op_db}
    for line in sys.stdin:
        task = json.loads(line)
        op, dtype = table[task["op"]], getattr(torch, task["dtype"].partition(",")[0])
        attempt = try_gradients if task["dtype"] == GRADIENTS else try_sample
        torch.manual_seed(0)
        try:
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
        except Exception as error:  # a sample maker's own failure is not ours
            print(json.dumps({"n": 0, "outcome": "skip", "detail": f"no samples: {error}"[:160]}), flush=True)
            samples = []
        for n, sample in enumerate(samples[: task["samples"]]):
            if n < task["skip"] or n % task["every"]:
                continue
            print(json.dumps({"n": n, "outcome": "started"}), flush=True)
            try:
                outcome, detail = attempt(op, sample)
            except Exception as error:  # an exception of another kind than ours is what we look for
                outcome, detail = "crash", f"{type(error).__name__}: {error}"[:160]
            print(json.dumps({"n": n, "outcome": outcome, "detail": detail}), flush=True)
        print(json.dumps({"done": True}), flush=True)


class Worker:
    """One worker process and the lines it sends."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "test.opinfo", "--worker"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put(None)

    def ask(self, task: dict) -> None:
        """Send a task."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()


def serve(tasks: queue.Queue, results: list, lock: threading.Lock) -> None:
    """Work through the queue with one worker process, restarted when it dies or hangs."""
    current = Worker()
    while True:
        try:
            task = tasks.get_nowait()
        except queue.Empty:
            current.process.kill()
            return
        while True:  # again after a crash, from the sample behind it
            current.ask(task)
            started = -1
            finished = False
            while not finished:
                try:
                    line = current.lines.get(timeout=SECONDS)
                except queue.Empty:
                    line = None
                if line is None:
                    break
                answer = json.loads(line)
                if answer.get("done"):
                    finished = True
                elif answer["outcome"] == "started":
                    started = answer["n"]
                else:
                    with lock:
                        results.append({"op": task["op"], "dtype": task["dtype"], **answer})
            if finished:
                break
            current.process.kill()
            current = Worker()
            if started < 0:
                break
            with lock:
                detail = f"the process died or took over {SECONDS} s"
                results.append({"op": task["op"], "dtype": task["dtype"], "n": started, "outcome": "crash", "detail": detail})
            task = {**task, "skip": started + 1}


def collect(samples: int, every: int, workers: int, only: str) -> list[dict]:
    """All results."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    tasks: queue.Queue = queue.Queue()
    for n, op in enumerate(op_db):
        name = f"{op.name}/{op.variant_test_name}"
        if any(word in op.name for word in SKIPPED) or (only and only not in name) or n % every:
            continue
        for dtype in ("float32", "int64"):
            if op.supports_dtype(getattr(torch, dtype), "cpu"):
                tasks.put({"op": name, "dtype": dtype, "skip": 0, "samples": samples, "every": 1})
        if op.supports_autograd and op.supports_dtype(torch.float32, "cpu"):
            tasks.put({"op": name, "dtype": GRADIENTS, "skip": 0, "samples": samples, "every": 1})
    total, results, lock = tasks.qsize(), [], threading.Lock()
    threads = [threading.Thread(target=serve, args=(tasks, results, lock)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    while any(t.is_alive() for t in threads):
        threads[0].join(20)
        print(f"{total - tasks.qsize()} of {total} operators, {len(results)} samples", file=sys.stderr, flush=True)
        for t in threads:
            t.join(0.01)
    return results


def table(results: list[dict], command: str) -> str:
    """docs/coverage.md."""
    counted = [r for r in results if r["outcome"] in OUTCOMES]
    alone = [r for r in counted if r["dtype"] != GRADIENTS]
    totals = collections.Counter(r["outcome"] for r in alone)
    backward = collections.Counter(r["outcome"] for r in counted if r["dtype"] == GRADIENTS)
    imported = len(alone) - totals["not importable"]
    lines = [
        "# Coverage of PyTorch's operators",
        "",
        f"Generated by `{command}`: PyTorch's own operator samples, compiled for the host target and compared with PyTorch.",
        "",
        "| outcome | samples | with gradients |",
        "| --- | --- | --- |",
        *(f"| {outcome} | {totals[outcome]} | {backward[outcome]} |" for outcome in OUTCOMES),
        "",
        f"Of the {imported} samples that torch-mlir imports, {100 * totals['right'] / max(1, imported):.1f} % are right.",
        "",
        "Operators with anything but right samples:",
        "",
        "| operator | dtype | right | other | first reason |",
        "| --- | --- | --- | --- | --- |",
    ]
    groups: dict[tuple[str, str], list[dict]] = collections.defaultdict(list)
    for r in counted:
        groups[r["op"].rstrip("/"), r["dtype"]].append(r)
    for (op, dtype), rows in sorted(groups.items()):
        others = collections.Counter(r["outcome"] for r in rows if r["outcome"] != "right")
        if not others:
            continue
        detail = next(r["detail"] for r in rows if r["outcome"] != "right").replace("|", "\\|")
        words = ", ".join(f"{count} {outcome}" for outcome, count in others.items())
        lines.append(f"| `{op}` | {dtype} | {sum(r['outcome'] == 'right' for r in rows)} | {words} | {detail} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Command line; fails when any sample is wrong or crashes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10**6, help="at most this many samples an operator")
    parser.add_argument("--every", type=int, default=1, help="every K-th operator only")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker()
        return 0
    results = collect(given.samples, given.every, given.workers, given.only)
    text = table(results, "make opinfo" if len(sys.argv) < 2 else " ".join(["python -m test.opinfo", *sys.argv[1:]]))
    if given.out:
        given.out.write_text(text)
        given.out.with_suffix(".json").write_text(json.dumps(results))
    counts = collections.Counter(r["outcome"] for r in results)
    for r in results:
        if r["outcome"] in ("wrong", "crash"):
            print(f"{r['outcome']}: {r['op']} {r['dtype']} sample {r['n']}: {r['detail']}")
    print(", ".join(f"{outcome} {counts[outcome]}" for outcome in OUTCOMES))
    return 1 if counts["wrong"] or counts["crash"] else 0


if __name__ == "__main__":
    sys.exit(main())
