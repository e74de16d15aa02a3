"""`kitsune-opt` makes the kernel that a user got again, byte for byte, from its tile program and the pass's options."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from kitsune_mlir.codegen.gpu.engines.registry import ENGINES
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import Options, options_of
from kitsune_mlir.passes.to_gpu import ToGpu
from kitsune_mlir.passmanager.options import pass_text
from kitsune_mlir.runtime.program import Program
from kitsune_mlir.targets import kernel_options
from kitsune_mlir.tools.kitsune_opt import tool
from test.gpu.sanitizer_cases import CASES, compiled
from test.gpu.unassembled import unassembled

BY_ENGINE = {
    "attention": ("causal", "decode"),
    "attention_gradient": ("trained",),
    "chain": ("chain", "chain_wide"),
    "conv": ("convolution", "convolution_f32", "convolution_tf32"),
    "depthwise": ("depthwise",),
    "gemv": ("gemv_7",),
    "generic": ("generic",),
    "histogram": ("histogram",),
    "mma": ("split", "product_f32", "product_tf32", "separate", "rings", "debug", "timestamps"),
    "ordered": ("ordered",),
    "pairs": ("pairs",),
    "pairwise": ("pairwise",),
    "radix_sort": ("sort_radix",),
    "recurrence": ("recurrence",),
    "scan": ("scan_pieces",),
    "scatter": ("scatter", "scatter_largest"),
    "simt": ("map", "norm_staged"),
    "sort": ("sort",),
}


def arguments(name: str, folder: Path) -> tuple[Program, list[str]]:
    """A case's program, and what `kitsune-opt` is called with to make its PTX, in `folder`."""
    with unassembled():
        program = compiled(name)
    source = folder / "tiles.mlir"
    source.write_text(program.ir("tiles"))
    step = ToGpu(**dataclasses.asdict(kernel_options(find_target("sm_90a"), options_of(CASES[name].options))))
    pipeline = f"builtin.module({pass_text(step)},kitsune-finalize-nvvm)"
    return program, [str(source), f"--pass-pipeline={pipeline}", "--emit=ptx", "-o", str(folder / "out.ptx")]


def test_every_engine_has_a_case():
    assert BY_ENGINE.keys() == ENGINES.keys()


@pytest.mark.rotated(6)
@pytest.mark.filterwarnings("ignore::kitsune_mlir.errors.PerformanceWarning")
@pytest.mark.parametrize("engine, name", [(engine, name) for engine, names in BY_ENGINE.items() for name in names])
def test_the_same_ptx(engine: str, name: str, tmp_path: Path) -> None:
    program, given = arguments(name, tmp_path)
    assert engine in [choice["engine"] for choice in program.summary["engines"]]
    assert tool(given) == 0
    assert (tmp_path / "out.ptx").read_text() == program.ir("ptx")


def test_the_same_ptx_of_another_process(tmp_path: Path) -> None:
    program, given = arguments("product_tf32", tmp_path)
    subprocess.run([sys.executable, "-m", "kitsune_mlir.tools.kitsune_opt", *given], check=True)
    assert (tmp_path / "out.ptx").read_text() == program.ir("ptx")


def test_precisions_make_other_code(tmp_path: Path) -> None:
    exact, tf32 = (arguments(name, tmp_path)[0].ir("ptx") for name in ("product_f32", "product_tf32"))
    assert exact != tf32


@pytest.mark.parametrize(
    "options, why",
    [
        ({"matmul_precision": "exact"}, "'matmul_precision' is one of highest, high, medium, not exact"),
        ({"convolution_precision": "low"}, "'convolution_precision' is one of highest, high, medium, not low"),
        ({"ptxas_seconds": 0.0}, "'ptxas_seconds' is a number of seconds above 0, or None for no limit, not 0.0"),
    ],
)
def test_options_that_do_not_exist_are_named(options: dict, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        kernel_options(find_target("sm_90a"), Options(**options))


def test_ptx_needs_lowered_kernels(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.mlir").write_text("module {}")
    assert tool([str(tmp_path / "empty.mlir"), "--emit=ptx"]) == 1
    assert "holds no gpu.module to write PTX of" in capfd.readouterr().err
