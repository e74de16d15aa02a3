"""Several requests in one launch (`Program.batch`) on a GPU.

    python -m test.gpu.request_programs build DIR               # needs the compiler, no GPU
    python -m test.gpu.request_programs run DIR [--time]        # needs a Hopper GPU; no compiler

Each case runs 1, 2, 7 and 64 requests, with weights of their own and shared ones, twice, from a captured graph, and through an
engine (`kitsune_mlir.serve`); results are compared with the model in float64. `--time` prints microseconds of a graph's replay
for 64 requests with own weights, and of eager calls one after the other from a graph.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.timing import graphed, time_calls
from test.gpu.driver import program_main, run_of, spilled_bytes

LIMIT = 64
COUNTS = (1, 2, 7, LIMIT)
EXACT = {"matmul_precision": "highest", "convolution_precision": "highest"}


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 32)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)) + x


class Counter(nn.Module):
    """A buffer that the model changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(33, 65))

    def forward(self, x: Tensor) -> Tensor:
        total = self.total
        assert isinstance(total, Tensor)
        total.add_(x)
        return torch.softmax(total, -1)


class Sums(nn.Module):
    """Long sums, which blocks may share, sorting, running sums and a gather."""

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        rows = torch.relu(x).sum(0, keepdim=True) + x
        return torch.cumsum(torch.sort(rows, -1)[0], -1)[index]


def _tower(dtype: torch.dtype, rows: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    widths = (512, 1024, 512, 256)
    layers = [part for i, o in zip(widths, widths[1:], strict=False) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 1)).to(dtype), (torch.randn(rows, 512).to(dtype),)


def _images() -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (torch.randn(2, 3, 33, 33),)


def _norm(dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    layers = (nn.LayerNorm(256), nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256))
    return nn.Sequential(*layers).to(dtype), (torch.randn(129, 256).to(dtype),)


CASES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "tower_bf16": lambda: _tower(torch.bfloat16, 1),
    "tower_f32": lambda: _tower(torch.float32, 1),
    "tower_rows_bf16": lambda: _tower(torch.bfloat16, 100),
    "product_f32": lambda: (Product(), (torch.randn(256, 1152), torch.randn(1152, 128))),
    "product_bf16": lambda: (Product(), (torch.randn(256, 1152).bfloat16(), torch.randn(1152, 128).bfloat16())),
    "norm_bf16": lambda: _norm(torch.bfloat16),
    "norm_f32": lambda: _norm(torch.float32),
    "attention_bf16": lambda: (Attention().bfloat16(), (torch.randn(2, 65, 128).bfloat16(),)),
    "attention_f32": lambda: (Attention(), (torch.randn(2, 65, 128),)),
    "images": _images,
    "counter": lambda: (Counter(), (torch.randn(33, 65),)),
    "sums": lambda: (Sums(), (torch.randn(500, 129), torch.randint(0, 500, (77,)))),
    "lstm": lambda: (nn.LSTM(64, 48), (torch.randn(9, 3, 64),)),
}


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile every case; how many failed or spill much."""
    import kitsune_mlir
    from kitsune_mlir.cheaper_plans import SPILLED
    from kitsune_mlir.errors import KitsuneError

    bad = 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or CASES:
        torch.manual_seed(0)
        try:
            program = kitsune_mlir.compile(*CASES[name](), target="sm_90a", options={**EXACT, "requests": LIMIT})
        except KitsuneError as error:
            bad += 1
            print(f"FAIL {name}: {error}", flush=True)
            continue
        program.save(folder / f"{name}.kit", weights=False, ir=False)
        spilled = spilled_bytes(program)
        bad += spilled >= SPILLED
        engines = ", ".join(f"{engine['engine']}" for engine in program.summary["engines"])
        print(f"{'BAD  ' if spilled >= SPILLED else ''}{name}: {engines}; {spilled} bytes spilled", flush=True)
    return bad


def check(name: str, folder: Path, timed: bool) -> bool:
    """Run a case; whether all is right."""
    import kitsune_mlir

    torch.manual_seed(0)
    model, args = CASES[name]()
    models = [copy.deepcopy(model).cuda() for _ in range(LIMIT)]
    with torch.no_grad():
        for one in models:
            for parameter in one.parameters():
                parameter.uniform_(-0.1, 0.1)
    near = 2e-2 if args[0].dtype == torch.bfloat16 else 1e-4

    def fresh(x: Tensor) -> Tensor:
        return torch.randn_like(x).cuda() if x.is_floating_point() else torch.randint_like(x, 0, 500).cuda()

    def tensors(one: nn.Module) -> dict[str, Tensor]:
        return {**dict(one.named_parameters()), **dict(one.named_buffers())}

    program = kitsune_mlir.load(folder / f"{name}.kit", tensors(models[0]))
    programs = [program.with_weights(tensors(one)) for one in models]
    together = program.batch(LIMIT)
    changes = bool(list(model.named_buffers()))
    worst: dict[str, float] = {}
    eager = 0.0
    for count in (*COUNTS, 3):
        for own in (True, False) if not changes else (True,):
            used = list(range(count)) if own else [0] * count
            for _ in range(2):
                requests = [tuple(map(fresh, args)) for _ in range(count)]
                exact = [copy.deepcopy(models[n]).double() for n in used]
                if not changes:
                    plain = [models[n](*one) for n, one in zip(used, requests, strict=True)]
                    eager = max(eager, _error(exact, requests, plain))
                outputs = together(requests, [programs[n] for n in used])
                how = f"{count} requests with {'own' if own else 'shared'} weights"
                worst[how] = max(worst.get(how, 0.0), _error(exact, requests, outputs))
    requests = [tuple(map(fresh, args)) for _ in range(LIMIT)]
    outputs: list[Any] = []
    replay = graphed(lambda: outputs.__setitem__(slice(None), together(requests, programs)))
    if not changes:
        for x in (x for request in requests for x in request if x.is_floating_point()):
            x.copy_(torch.randn_like(x))
        replay()
        worst["a graph"] = _error([copy.deepcopy(one).double() for one in models], requests, outputs)
        worst["an engine"] = _served(dict(zip(map(str, range(LIMIT)), programs, strict=True)), models, requests)
    near = max(near, 2 * eager)  # one number alone, as a tower gives, may be a difference of large ones
    ok = max(worst.values()) <= near
    words = f"error {max(worst.values()):.1e} (limit {near:.0e}, eager's {eager:.1e})"
    words += "".join(f"; {how} {error:.1e}" for how, error in worst.items() if error > near)
    if timed:
        eager = graphed(lambda: [one(*request) for one, request in zip(models, requests, strict=True)])
        times = time_calls({"kitsune": replay, "eager": eager})
        words += "; " + ", ".join(f"{form} {1e3 * time:.1f} us" for form, time in times.items())
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {words}", flush=True)
    return ok


def _served(programs: dict[str, Any], models: Sequence[nn.Module], requests: Sequence[tuple[Tensor, ...]]) -> float:
    """The error of answers of an engine, asked by four threads at once."""
    import kitsune_mlir

    torch.cuda.synchronize()
    answers: list[Any] = [None] * len(models)
    with kitsune_mlir.serve(programs, limit=16) as engine:

        def ask(first: int) -> None:
            mine = range(first, len(models), 4)
            futures = {n: engine.submit(str(n), requests[n], deadline=20.0) for n in mine}
            for n, future in futures.items():
                answers[n] = future.result(30)

        threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        joined = sum(one["joined"] for one in engine.stats()["models"].values())
    if any(answer is None for answer in answers) or not joined:
        return float("inf")
    return _error([copy.deepcopy(model).double() for model in models], requests, answers)


def _error(models: Sequence[nn.Module], requests: Sequence[Sequence[Tensor]], outputs: Sequence[Any]) -> float:
    """The relative error, by norm, of all requests' first tensors; larger than any limit where one alone is wrong."""
    torch.cuda.synchronize()
    wrong, scale = 0.0, 0.0
    for model, request, output in zip(models, requests, outputs, strict=True):
        want = model(*(x.double() if x.is_floating_point() else x for x in request))
        got, want = (one[0] if isinstance(one, tuple) else one for one in (output, want))
        wrong, scale = wrong + float((got.double() - want).square().sum()), scale + float(want.square().sum())
    error = (wrong / scale) ** 0.5
    return error if error == error else float("inf")


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run_of(check, CASES), switches={"time": "microseconds, too"}))
