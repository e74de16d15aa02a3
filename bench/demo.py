"""`make demo`: import the NeRF model, show what the compiler did, run it on the host target, compile it for a Hopper GPU.

Run as `python -m bench.demo [--out DIR]`; needs no GPU.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from pathlib import Path

import torch

import kitsune_mlir
from bench.models import make

LIMITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def largest_error(program, model, args) -> float:
    """Largest ‖out - ref‖ / ‖ref‖ over the outputs, against the same model evaluated in float64."""
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        wanted = exact(*(a.double() if a.is_floating_point() else a for a in args))
    got = program(*args)
    pairs = zip(got, wanted, strict=True) if isinstance(got, tuple) else [(got, wanted)]
    return max(((g.double() - w).norm() / w.norm()).item() for g, w in pairs)


def main(argv: list[str] | None = None) -> int:
    """Run the demo; 0 when every error is within its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="out", help="folder for the PTX, the cubin and the package (default: out)")
    out = Path(parser.parse_args(argv).out)
    out.mkdir(parents=True, exist_ok=True)
    good = True
    for dtype in (torch.float32, torch.bfloat16):
        model, args = make("nerf", size="small", dtype=dtype)
        start = time.perf_counter()
        program = kitsune_mlir.compile(model, args, target="host")
        error = largest_error(program, model, args)
        good = good and error <= LIMITS[dtype]
        if dtype == torch.float32:
            print("NeRF's network (8 layers of a small width, skip connection, two heads), compiled for this machine:\n")
            print(program.explain())
            print("\nThe stage graph (schedule attributes of each stage):")
            for line in program.ir("stages").splitlines():
                if "sym_name" in line and "kitsune" not in line.split("sym_name")[0].split("{")[0]:
                    print("   ", line.strip()[:200])
            program.save(out / "nerf.kit")
            print(f"\nSaved to {out / 'nerf.kit'}; loaded again: {kitsune_mlir.load(out / 'nerf.kit')!r}")
        took = time.perf_counter() - start
        name = str(dtype).removeprefix("torch.")
        print(f"{name}: largest relative error against float64 {error:.1e} (limit {LIMITS[dtype]:.0e}); {took:.1f} s in all")
    model, args = make("nerf", size="full", dtype=torch.bfloat16)
    program = kitsune_mlir.compile(model, args, target="sm_90a")
    (out / "nerf.ptx").write_text(program.ir("ptx"))
    (out / "nerf.cubin").write_bytes(program.artifacts["kernel.cubin"])
    print(f"\nThe full-size model ({args[0].shape[0]} rows, bf16) compiled for Hopper:\n")
    print(program.explain())
    print(f"\nPTX: {out / 'nerf.ptx'}  cubin: {out / 'nerf.cubin'}")
    print("phases: " + ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in program.seconds.items()))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
