"""How long ptxas may take for a kernel, and what is compiled instead of code that takes it longer."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import kitsune_mlir
from kitsune_mlir.cheaper_plans import MOST_PLANS
from kitsune_mlir.codegen.gpu.backend import assembling, cubin, ptxas
from kitsune_mlir.codegen.gpu.backend.assembling import Assembling
from kitsune_mlir.codegen.gpu.backend.cubin import assemble, assemble_best, find_ptxas
from kitsune_mlir.codegen.gpu.backend.divisions import FEW, NARROW, without_branches
from kitsune_mlir.codegen.gpu.backend.to_llvm import Text
from kitsune_mlir.errors import ArgumentError, AssemblyTimeout, CompileError, TargetError
from test.programs.layers import Layers

EMPTY = ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k() {\n ret;\n}\n"

FAKE = """#!{python}
import os, re, subprocess, sys, time
text = open(sys.argv[-3]).read()
if {slow}:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open({pids!r}, "a").write(f"{{os.getpid()}} {{child.pid}} ")
    time.sleep(600)
os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


class Fake:
    """A ptxas that hangs, with a child, where `slow`, a Python expression of the PTX `text` and of `sys.argv`, says so."""

    def __init__(self, folder: Path, slow: str):
        self.path, self.pids = folder / "ptxas", folder / "pids"
        self.pids.touch()
        real = str(find_ptxas())
        self.path.write_text(FAKE.format(python=sys.executable, slow=slow, pids=str(self.pids), real=real))
        self.path.chmod(0o755)

    def runs(self) -> list[int]:
        """The processes of all runs that hung."""
        return [int(word) for word in self.pids.read_text().split()]


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and was not waited for does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> None:
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:  # whoever adopts it may be slow to see its end
        time.sleep(0.05)
    assert not alive(pid)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Puts a slow ptxas in the place of the real one."""

    def make(slow: str) -> Fake:
        made = Fake(tmp_path, slow)
        monkeypatch.setattr(cubin, "find_ptxas", lambda: made.path)
        return made

    yield make


def compiled(model: nn.Module, rows: int = 4096, width: int = 64, inputs: int = 1, **options) -> kitsune_mlir.Program:
    args = tuple(torch.zeros(rows, width, dtype=torch.bfloat16) for _ in range(inputs))
    return kitsune_mlir.compile(model.bfloat16(), args, target="sm_90a", options=options)


def products_of(program: kitsune_mlir.Program) -> list[int]:
    """How many products each stage holds."""
    return [stage["ops"].get("product", 0) for stage in program.summary["stages"]]


# --- the limit ------------------------------------------------------------------------------------------------------------


def test_ptxas_and_its_children_are_ended(fake):
    made = fake("True")
    begun = time.monotonic()
    with pytest.raises(
        AssemblyTimeout, match=r"kernel 'k' was not assembled in 1\.\d s; option 'ptxas_seconds' allows 1 s"
    ) as caught:
        assemble_best(EMPTY, seconds=1.0)
    assert 1 <= time.monotonic() - begun < 10
    assert (caught.value.kernel, caught.value.limit) == ("k", 1.0) and caught.value.seconds >= 1
    for pid in made.runs():
        wait_for_end(pid)


def test_an_error_meanwhile_ends_what_is_being_assembled(fake, monkeypatch):
    """Kernels are assembled while the next are emitted: an error there waits for none of them."""
    made = fake("True")
    monkeypatch.setattr(assembling, "find_ptxas", lambda: made.path)
    monkeypatch.setattr(assembling, "to_assembly", lambda text: EMPTY)
    begun = time.monotonic()
    with pytest.raises(ValueError), Assembling("sm_90a", 600) as kernels:
        waiting = [kernels.submit(Text("", "sm_90a", False)) for _ in range(20)]
        while len(made.runs()) < 2:
            time.sleep(0.01)
        raise ValueError
    assert time.monotonic() - begun < 60 and all(one.done() for one in waiting)
    for pid in made.runs():
        wait_for_end(pid)


def test_kernels_are_assembled_side_by_side(monkeypatch):
    together = threading.Barrier(2)

    def both(ptx: str, *_: object) -> str:
        together.wait(30)
        return ptx

    monkeypatch.setattr(assembling, "_count", lambda: 2)
    monkeypatch.setattr(assembling, "to_assembly", lambda text: text.llvm_ir)
    monkeypatch.setattr(assembling, "assemble_best", both)
    with Assembling("sm_90a", None) as kernels:
        found = [kernels.submit(Text(name, "sm_90a", False)) for name in "ab"]
        assert [one.result() for one in found] == [("a", "a"), ("b", "b")]


def test_an_interrupt_ends_ptxas(fake, monkeypatch):
    made = fake("True")

    def interrupt(self, **_):
        while len(made.runs()) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        assemble(EMPTY, seconds=600)
    assert not alive(made.runs()[0])


@pytest.mark.parametrize("seconds", [None, 100.0])
def test_code_within_the_limit_is_the_same(fake, seconds):
    fake("False")
    assert assemble_best(EMPTY, seconds=seconds).data == assemble(EMPTY).data


def test_what_is_there_stays_where_a_better_one_takes_too_long(fake):
    """Code that spills for the sake of several blocks is assembled again for fewer: here that hangs."""
    many = "".join(f"ld.global.f32 %f{i}, [%rd1+{4 * i}];\nadd.f32 %f100, %f100, %f{i};\n" for i in range(100))
    many += "".join(f"mul.f32 %f{i}, %f{i}, %f100;\nst.global.f32 [%rd1+{4 * i}], %f{i};\n" for i in range(100))
    text = (
        ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry k(.param .u64 p)\n.reqntid 512\n.minnctapersm 2\n"
        f"{{\n.reg .f32 %f<101>; .reg .b64 %rd<2>;\nld.param.u64 %rd1, [p];\nmov.f32 %f100, 0f00000000;\n{many}ret;\n}}\n"
    )
    fake("'minnctapersm 1' in text or '-O1' in sys.argv")
    found = assemble_best(text, seconds=3.0)
    assert found.kernels["k"].spills
    with pytest.raises(AssemblyTimeout):
        assemble(text.replace("minnctapersm 2", "minnctapersm 1"), seconds=0.5)


def test_nvjitlink_has_the_limit_too(monkeypatch):
    limited, free = (assemble(EMPTY, assembler="nvjitlink", seconds=seconds) for seconds in (60.0, None))
    assert limited.data == free.data and limited.kernels == free.kernels
    with pytest.raises(CompileError, match=r"adx(.|\n)*5: adx\.f32"):
        assemble(EMPTY.replace(" ret;", " adx.f32 %f1, %f1;"), assembler="nvjitlink", seconds=60.0)
    with pytest.raises(AssemblyTimeout, match="kernel 'k'"):
        assemble(EMPTY, assembler="nvjitlink", seconds=0.01)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvjitlink", None)
    with pytest.raises(TargetError, match="nvidia-nvjitlink"):
        assemble(EMPTY, assembler="nvjitlink", seconds=60.0)


# --- cheaper plans --------------------------------------------------------------------------------------------------------


def test_a_chain_that_takes_too_long_is_cut(fake):
    whole = compiled(Layers(4))
    assert products_of(whole) == [4] and "replanned" not in whole.summary
    made = fake("text.count('wgmma.mma_async') > 8")  # 4 in a layer
    remarks: list = []
    program = compiled(Layers(4), ptxas_seconds=3.0, on_remark=remarks.append)
    assert products_of(program) == [2, 2] and len(made.runs()) == 2
    (sentence,) = program.summary["replanned"]
    assert (
        sentence == "kernel 'main_p0' took ptxas more than 3 s: planned again with at most 2 products in stages like product_0"
    )
    assert sentence in program.explain()
    (remark,) = [remark for remark in remarks if remark.message == sentence]
    assert remark.severity == "remark" and Path(remark.file).name == "layers.py"
    assert program.seconds["codegen"] > 3, "the time that was lost is shown"
    assert {engine["engine"] for engine in program.summary["engines"]} == {"chain"}


def test_several_stages_are_launched_apart_before_any_is_cut(fake):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Layers(2), Layers(2)

        def forward(self, x, y):
            return self.first(x), self.second(y)

    whole = compiled(Two(), inputs=2)
    assert products_of(whole) == [2, 2] and whole.summary["launches"] == 1
    fake("text.count('wgmma.mma_async') > 8")
    program = compiled(Two(), inputs=2, ptxas_seconds=3.0)
    assert products_of(program) == [2, 2] and program.summary["launches"] == 2
    (sentence,) = program.summary["replanned"]
    assert re.search(r"planned again with launches for its \d+ stages", sentence)
    # A mode that was asked for is kept.
    with pytest.raises(AssemblyTimeout, match="at most 1 product in stages like"):
        compiled(Two(), inputs=2, ptxas_seconds=3.0, schedule="temporal")


def test_a_program_that_is_too_slow_in_every_plan_is_an_error(fake):
    fake("True")
    with pytest.raises(AssemblyTimeout) as caught:
        compiled(Layers(2), ptxas_seconds=1.0)
    first, *before = str(caught.value).splitlines()
    ending = r"was not assembled in 1\.\d s; option 'ptxas_seconds' allows 1 s"
    assert re.fullmatch(rf"kernel '\w+' \(stages \w+\) {ending}", first), "one stage, of one op, is left"
    begun = "  before: kernel 'main_p0' took ptxas more than 1 s: planned again with at most 1 product in stages like product_0"
    assert before[0] == begun and 1 < len(before) < MOST_PLANS


def test_a_limit_is_a_time():
    with pytest.raises(ArgumentError, match="'ptxas_seconds' is a number of seconds above 0, or None for no limit, not 0"):
        compiled(Layers(1), ptxas_seconds=0)


def test_the_child_of_nvjitlink_imports_nothing_of_the_project():
    """It starts quickly then, and this folder's names do not hide other packages'."""
    loaded = "[m for m in sys.modules if m.startswith('kitsune_mlir') or m == 'torch']"
    code = f"import runpy, sys; runpy.run_path({ptxas.__file__!r}); print({loaded})"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# --- divisions ------------------------------------------------------------------------------------------------------------


def divisions(count: int, columns: int, factor: str = "{%r1, %r1, %r1, %r1}", terms: int = 16) -> str:
    """Lines of PTX with three kinds of divisions, so many each, and a product."""
    lines = [f"{name}.rn.f32 %f1, {operands};" for name, operands in DIVISIONS for _ in range(count)]
    product = f"wgmma.mma_async.sync.aligned.m64n{columns}k{terms}.f32.bf16.bf16 {{%f0, %f1}}, {factor}, %rd1, 1, 1, 1, 0;"
    return "\n".join([*lines, "fma.rn.f32 %f1, %f2, %f3, %f4;", product])


DIVISIONS = (("rcp", "%f2"), ("div", "%f2, %f3"), ("sqrt", "%f2"))


def test_divisions_lose_their_branches_only_where_they_cost_minutes():
    many, wide = FEW // len(DIVISIONS) + 1, NARROW + 8
    changed = without_branches(divisions(many, wide))
    words = [line.split()[0] for line in changed.splitlines()]
    assert words[:-1] == [*["rcp.approx.f32"] * many, *["div.full.f32"] * many, *["sqrt.approx.f32"] * many, "fma.rn.f32"]
    for same in (
        divisions(many - 1, wide),
        divisions(many, NARROW),
        divisions(many, wide, factor="%rd2"),  # in shared memory: there are registers
        divisions(many, wide, terms=8),  # f32
    ):
        assert without_branches(same) == same


class Gated(Layers):
    """x + silu(layer(x)), again and again."""

    def forward(self, x):
        for layer in self.layers:
            x = x + nn.functional.silu(layer(x))
        return x


def test_chains_of_bf16_have_short_divisions():
    text = compiled(Gated(2, 64), 4096, 64).ir("ptx")
    assert "rcp.rn.f32" not in text and "div.full.f32" in text


@pytest.mark.slow
def test_a_wide_residual_network_compiles_within_the_limit():
    """ptxas took 80 s for three of these layers, and several minutes for four."""
    begun = time.monotonic()
    program = compiled(Gated(4, 256), 65536, 256, ptxas_seconds=20.0)
    assert time.monotonic() - begun < 150
    assert sum(products_of(program)) == 4 and not any(kernel["spill_store_bytes"] for kernel in program.summary["kernels"])
