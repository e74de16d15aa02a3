"""Programs that hang: the report of a debug build names what is waited for, and the process goes on.

    python -m test.gpu.hang_programs build FOLDER    needs the compiler, no GPU
    python -m test.gpu.hang_programs run FOLDER      needs a GPU, torch and cuda-bindings, no compiler

Each program is a right one with a fault; after its report the right one runs in the same process, on the same stream.
"""

from __future__ import annotations

import re
from pathlib import Path

from test.gpu.cases import two_stages
from test.gpu.cases_layers import layers
from test.gpu.driver import program_main
from test.gpu.run_programs import error_of, make_input, poisoned
from test.gpu.tile_text import Case

SMALL = (80, 96, 72, 8)  # ten tiles


def _lost_post() -> str:
    """The last tile's post goes to the slot of the one before."""
    text = two_stages(*SMALL).text
    last = "%nine = arith.constant 8 : index\n    %lost = arith.minsi %i, %nine : index\n"
    return text.replace('    "kitsune.post"(%s, %i)', f'    {last}    "kitsune.post"(%s, %lost)')


def _wrong_count() -> str:
    """A layer waits for two posts of each tile of the layer before, which makes one."""
    text = layers(12, engine="simt").text
    return re.sub(r"(%t4, %lo_t4, %hi_t4\) \{count = )1", r"\g<1>2", text)


FAULTS: dict[str, tuple[Case, str, str]] = {
    "lost_post": (
        two_stages(*SMALL),
        _lost_post(),
        r"in stage 'product' \(generic, 10 tiles\), waits for a post that no tile of stage 'relu' makes: 0 posts seen of 1",
    ),
    "wrong_count": (
        layers(12, engine="simt"),
        _wrong_count(),
        r"in stage 'scale5' \(simt, 125 tiles\), waits for tile \(\d+\) of stage 'add4': 1 posts seen of 2 needed",
    ),
}
"""By name: the right program, the faulty one's text, and what its report says."""


def build(folder: Path, names) -> int:
    """Write the right program and the debug build of the faulty one."""
    from torch_mlir import ir

    from kitsune_mlir.codegen.gpu.compile import compile_gpu
    from kitsune_mlir.codegen.gpu.interface.plan import KernelOptions
    from kitsune_mlir.dialects import new_context

    folder.mkdir(parents=True, exist_ok=True)
    for name in names or FAULTS:
        case, faulty, _ = FAULTS[name]
        for stem, text, debug in ((name, case.text, False), (f"{name}-faulty", faulty, True)):
            with new_context(), ir.Location.unknown():
                code = compile_gpu(ir.Module.parse(text), case.name, KernelOptions(debug=debug))
            (folder / f"{stem}.cubin").write_bytes(code.cubin)
            (folder / f"{stem}.json").write_text(code.manifest.to_json())
    return 0


def run(folder: Path, names, given) -> int:
    """How many programs were not reported as expected, or left the process unable to go on."""
    import torch

    from kitsune_mlir.errors import KitsuneError
    from kitsune_mlir.runtime.cuda_executor import CudaExecutor
    from kitsune_mlir.runtime.manifest_check import read_manifest

    failed = 0
    for name in names or FAULTS:
        case, _, wanted = FAULTS[name]
        torch.zeros(1, device="cuda")
        generator = torch.Generator().manual_seed(0)
        inputs = [make_input(torch, generator, *spec).cuda() for spec in case.inputs]
        stream, told, errors = torch.cuda.current_stream().cuda_stream, "no report", []
        for stem in (f"{name}-faulty", name):
            manifest = read_manifest((folder / f"{stem}.json").read_text())
            executor = CudaExecutor(manifest, (folder / f"{stem}.cubin").read_bytes())
            results = [poisoned(torch, shape, dtype) for shape, dtype in case.results]
            executor.run([t.data_ptr() for t in (*inputs, *results)], stream)
            try:
                executor.check(stream)
            except KitsuneError as error:
                told = str(error)
            errors = [error_of(torch, a.cpu(), b.cpu()) for a, b in zip(results, case.reference(torch, *inputs), strict=True)]
        good = re.search(wanted, told) is not None and max(errors) <= case.tolerance
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {told}; then, in the same process, error {max(errors):.1e}", flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(program_main(__doc__, build, run))
