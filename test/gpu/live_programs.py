"""Programs for up to so many rows, called for fewer, on a GPU: rows as a launch argument (`codegen/gpu/kernel/live.py`).

    python -m test.gpu.live_programs build DIR               # needs the compiler, no GPU
    python -m test.gpu.live_programs run DIR [--time]        # needs a Hopper GPU; no compiler

Each case is called for several counts, with numbers behind the valid rows that would show, and from one captured graph that is
replayed for all of them: valid rows are compared with the model in float64. `--time` prints microseconds of a graph's replay
for each count.
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


class Rows(nn.Module):
    """A model whose caller wants the first rows of its result.

    Args:
        rows: that it has.
    """

    def __init__(self, model: nn.Module, rows: int):
        super().__init__()
        self.model, self.rows = model, rows

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        from kitsune_mlir.frontend.valid_rows import valid_rows

        return valid_rows(self.model(x), count, self.rows)


class Layer(nn.Module):
    """A transformer layer, of samples of 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(128), nn.Linear(128, 384), nn.Linear(128, 128)
        self.ff = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 32)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.ff(x)


def _mlp(dtype: torch.dtype, rows: int) -> tuple[nn.Module, Tensor]:
    widths = (256, 512, 512, 256)
    layers = [part for i, o in zip(widths, widths[1:], strict=False) for part in (nn.Linear(i, o), nn.GELU())]
    return nn.Sequential(*layers[:-1]).to(dtype), torch.randn(rows, 256).to(dtype)


def _chain(rows: int) -> tuple[nn.Module, Tensor]:
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    return nn.Sequential(*layers).bfloat16(), torch.randn(rows, 64).bfloat16()


def _norms(dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    layers = (nn.LayerNorm(512), nn.Linear(512, 1024), nn.Softmax(-1), nn.Linear(1024, 512), nn.LayerNorm(512))
    return nn.Sequential(*layers).to(dtype), torch.randn(1000, 512).to(dtype)


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp_512_f32": lambda: _mlp(torch.float32, 512),
    "mlp_4096_f32": lambda: _mlp(torch.float32, 4096),
    "mlp_4096_bf16": lambda: _mlp(torch.bfloat16, 4096),
    "chain_bf16": lambda: _chain(30000),
    "norms_f32": lambda: _norms(torch.float32),
    "norms_bf16": lambda: _norms(torch.bfloat16),
    "layer_f32": lambda: (Layer(), torch.randn(256, 16, 128)),
    "layer_bf16": lambda: (Layer().bfloat16(), torch.randn(256, 16, 128).bfloat16()),
    "pool_f32": lambda: (nn.Sequential(nn.Softmax(-1), nn.MaxPool1d(3), nn.Softmax(-1)), torch.randn(300, 4, 99)),
}


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile every case; how many failed."""
    import kitsune_mlir
    from kitsune_mlir.errors import KitsuneError

    bad = 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or CASES:
        torch.manual_seed(0)
        model, x = CASES[name]()
        args = (x, torch.tensor(len(x)))
        try:
            program = kitsune_mlir.compile(Rows(model.eval(), len(x)), args, target="sm_90a", options={"schedule": "temporal"})
        except KitsuneError as error:
            bad += 1
            print(f"FAIL {name}: {error}", flush=True)
            continue
        program.save(folder / f"{name}.kit", weights=False, ir=False)
        engines = [f"{e['engine']} ({e['parameters'].get('tiles end', 'every tile')})" for e in program.summary["engines"]]
        print(f"{name}: {', '.join(engines)}; {spilled_bytes(program)} bytes spilled", flush=True)
    return bad


def check(name: str, folder: Path, timed: bool) -> bool:
    """Run a case; whether all is right."""
    import kitsune_mlir

    torch.manual_seed(0)
    model, x = CASES[name]()
    model, rows = model.cuda().eval(), len(x)
    near = 3e-2 if x.dtype == torch.bfloat16 else 1e-4
    program = kitsune_mlir.load(folder / f"{name}.kit", dict(Rows(model, rows).state_dict()))
    wide = copy.deepcopy(model).double()
    count, given = torch.tensor(rows, device="cuda"), x.cuda()
    replay = graphed(lambda: program(given, count))
    worst, times = {"a call": 0.0, "a replay": 0.0}, []
    for n in (rows, 1, 7, 63, 64, 65, rows // 2, rows - 1, 1, rows):
        given.copy_(torch.randn_like(given))
        given[n:] = 100.0
        count.fill_(n)
        want = wide(given[:n].double())
        for how, call in (("a call", lambda: program(given, count)), ("a replay", replay)):
            error = float((call()[:n].double() - want).abs().max() / want.abs().max())
            worst[how] = max(worst[how], error) if error == error else float("inf")
        if timed:
            times.append(f"{n} rows {1e3 * time_calls({'replay': replay})['replay']:.1f} us")
    ok = max(worst.values()) <= near
    words = ", ".join([*(f"{how} {error:.1e} off (limit {near:.0e})" for how, error in worst.items()), *times])
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {words}", flush=True)
    return ok


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run_of(check, CASES), switches={"time": "microseconds, too"}))
