"""Arguments that a model changes, written where they lie on a GPU; and results written where the caller says.

    python -m test.gpu.in_place_programs build DIR               # needs the compiler, no GPU
    python -m test.gpu.in_place_programs run DIR [--time]        # needs a Hopper GPU; no compiler

Each case runs ten steps beside eager, the last five of them from a captured graph with `run(into=...)`; values, addresses and
the counts of changes must be eager's. `--time` prints microseconds of a step of both from graphs.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.timing import graphed, time_calls
from test.gpu.driver import program_main, run_of, spilled_bytes

STEPS = 10
ROWS, HEADS, LENGTH, WIDTH = 8, 8, 2048, 128


class Cache(nn.Module):
    """A step of attention over a cache; `write` is how the cache is written."""

    def __init__(self, write: str, dtype: torch.dtype):
        super().__init__()
        self.write = write
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(ROWS, HEADS, LENGTH, WIDTH).to(dtype))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, position: Tensor) -> Tensor:
        for cache, new in ((self.keys, k), (self.values, v)):
            assert isinstance(cache, Tensor)
            if self.write == "index_copy":
                cache.index_copy_(2, position, new)
            elif self.write == "index_put":
                cache[:, :, position] = new
            else:
                cache[:, :, 77:78] = new
        return nn.functional.scaled_dot_product_attention(q, self.keys, self.values)  # type: ignore[arg-type]


class Adam(nn.Module):
    """A step of an optimizer: a parameter and its two states."""

    def __init__(self, rows: int, columns: int):
        super().__init__()
        for name in ("parameter", "mean", "square"):
            self.register_buffer(name, torch.rand(rows, columns))

    def forward(self, gradient: Tensor) -> Tensor:
        p, m, v = self.parameter, self.mean, self.square
        assert isinstance(p, Tensor) and isinstance(m, Tensor) and isinstance(v, Tensor)
        m.mul_(0.9).add_(gradient, alpha=0.1)
        v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        p.addcdiv_(m, v.sqrt() + 1e-8, value=-1e-3)
        return gradient.sum(1)


class Parts(nn.Module):
    """Slices of a buffer: added to, assigned, and shifted."""

    def __init__(self, rows: int):
        super().__init__()
        self.register_buffer("state", torch.randn(rows, 64))

    def forward(self, x: Tensor) -> Tensor:
        state = self.state
        assert isinstance(state, Tensor)
        state[2:5].add_(x[2:5])
        state[7] = x[0] * 2
        state[:, 8:16] = x[:, :8]
        state[1:] = state[:-1].clone()
        return state.sum(1)


def _cache(write: str, dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor, ...]]:
    new = [torch.randn(ROWS, HEADS, 1, WIDTH).to(dtype) for _ in range(3)]
    return Cache(write, dtype), (*new, torch.tensor([77]))


CASES: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    **{
        f"cache_{write}_{name}": lambda write=write, dtype=dtype: _cache(write, dtype)
        for write in ("index_copy", "index_put", "slice")
        for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32))
    },
    **{
        f"adam_{rows}_{columns}": lambda rows=rows, columns=columns: (Adam(rows, columns), (torch.rand(rows, columns),))
        for rows, columns in ((4096, 4096), (1000, 129), (1009, 64), (7, 1))
    },
    "parts": lambda: (Parts(129), (torch.randn(129, 64),)),
}


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile every case; how many spill."""
    import kitsune_mlir

    bad = 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or CASES:
        torch.manual_seed(0)
        program = kitsune_mlir.compile(*CASES[name](), target="sm_90a")
        program.save(folder / f"{name}.kit", weights=False, ir=False)
        spilled = spilled_bytes(program)
        bad += spilled > 0
        there = [output.mutates for output in program.signature.outputs if output.in_place]
        print(
            f"{'BAD  ' if spilled else ''}{name}: in place {', '.join(map(str, there)) or 'nothing'}; {spilled} bytes spilled"
        )
    return bad


def check(name: str, folder: Path, timed: bool) -> bool:
    """Run a case; whether all is right."""
    import kitsune_mlir

    torch.manual_seed(0)
    module, args = CASES[name]()
    model, args = module.cuda(), tuple(x.cuda() for x in args)
    eager = copy.deepcopy(model)
    mine = dict(model.named_buffers())
    program = kitsune_mlir.load(folder / f"{name}.kit", mine)
    places = {key: tensor.data_ptr() for key, tensor in mine.items()}
    near = 2e-2 if args[0].dtype == torch.bfloat16 else 1e-4
    into = torch.empty_like(program(*args))
    eager(*args)
    replay = graphed(lambda: program.run(*args, into=into))
    for key, tensor in eager.named_buffers():
        mine[key].copy_(tensor)  # recording a graph runs some steps
    worst = 0.0
    for step in range(STEPS):
        for x in args:
            if x.is_floating_point():
                x.copy_(torch.rand_like(x))
        versions = [tensor._version for tensor in mine.values()]
        got = program(*args) if step < STEPS // 2 else (replay(), into)[1]
        want = eager(*args)
        torch.cuda.synchronize()
        pairs = [(got, want), *((mine[key], tensor) for key, tensor in eager.named_buffers())]
        worst = max(worst, *(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs))
        if step < STEPS // 2 and any(t._version <= old for t, old in zip(mine.values(), versions, strict=True)):
            worst = float("inf")
    moved = [key for key, tensor in mine.items() if tensor.data_ptr() != places[key]]
    ok = worst <= near and not moved
    words = f"error {worst:.1e} (limit {near:.0e})"
    if timed:
        times = time_calls({"kitsune": replay, "eager": graphed(lambda: eager(*args))})
        words += "; " + ", ".join(f"{form} {1e3 * time:.1f} us" for form, time in times.items())
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {words}", flush=True)
    return ok


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run_of(check, CASES), switches={"time": "microseconds, too"}))
