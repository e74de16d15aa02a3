"""The runner of pass pipelines: order, verification, failures, reproducers, instrumentation."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.dialects.verify import walk
from kitsune_mlir.errors import CompileError, UnsupportedError
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.options import Options
from kitsune_mlir.passes.base import Pass, PassFailure
from kitsune_mlir.passes.registry import PASSES
from kitsune_mlir.passes.remarks import remark
from kitsune_mlir.passmanager.instrumentation import IRPrinting, Timing
from kitsune_mlir.passmanager.manager import PassPipelineError, implicitly_nested, plan, run_pipeline
from kitsune_mlir.passmanager.pipeline_text import PipelineError
from kitsune_mlir.passmanager.reproducer import read_reproducer
from kitsune_mlir.targets import run_passes

SOURCE = """func.func @f(%x: i32) -> i32 {
  %a = arith.addi %x, %x : i32
  %b = arith.addi %x, %x : i32
  %c = arith.muli %a, %b : i32
  return %c : i32
}
"""


def named(module: ir.Operation, name: str) -> list[ir.Operation]:
    return [op for op in walk(module) if op.name == name]


@dataclass(frozen=True)
class Count(Pass):
    """Write how many additions there are on the module."""

    name: ClassVar[str] = "kitsune-count"
    target: str = "none"
    key: str = "count"

    def run(self, module: ir.Operation) -> None:
        number = len(named(module, "arith.addi"))
        with module.context:
            module.attributes[f"test.{self.key}"] = ir.Attribute.parse(f'"{number} {self.target}"')


@dataclass(frozen=True)
class Refuse(Pass):
    """Refuse every multiplication."""

    name: ClassVar[str] = "kitsune-refuse"

    def run(self, module: ir.Operation) -> None:
        for op in named(module, "arith.muli"):
            remark(op, "is about to be refused")
            raise PassFailure(op, "is too hard")


@dataclass(frozen=True)
class Break(Pass):
    """Leave a module that does not verify."""

    name: ClassVar[str] = "kitsune-break"

    def run(self, module: ir.Operation) -> None:
        for op in named(module, "func.return"):
            op.erase()


@dataclass(frozen=True)
class Bug(Pass):
    """Fail by mistake."""

    name: ClassVar[str] = "kitsune-bug"

    def run(self, module: ir.Operation) -> None:
        raise KeyError("nothing there")


@dataclass(frozen=True)
class Unsupported(Pass):
    """Refuse what the user wrote."""

    name: ClassVar[str] = "kitsune-unsupported"

    def run(self, module: ir.Operation) -> None:
        raise UnsupportedError("arith.addi", "no sums", location="here")


@pytest.fixture(autouse=True)
def passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cls in (Count, Refuse, Break, Bug, Unsupported):
        monkeypatch.setitem(PASSES, cls.name, cls)
    monkeypatch.setenv("KITSUNE_REPRODUCER_DIR", str(tmp_path / "reproducers"))


@pytest.fixture
def module() -> ir.Module:
    return ir.Module.parse(SOURCE, new_context())


def attribute(module: ir.Module, key: str = "count") -> str:
    return ir.StringAttr(module.operation.attributes[f"test.{key}"]).value


def test_python_and_upstream_passes_run_in_order(module: ir.Module):
    run_pipeline(module, "builtin.module(kitsune-count{key=before},func.func(cse),kitsune-count{key=after})")
    assert (attribute(module, "before"), attribute(module, "after")) == ("2 none", "1 none")


def test_passes_as_objects_and_text(module: ir.Module):
    run_pipeline(module.operation, [Count(key="before"), "cse,canonicalize", Count(key="after")])
    assert (attribute(module, "before"), attribute(module, "after")) == ("2 none", "1 none")


def test_the_target_reaches_passes_that_have_the_option(module: ir.Module):
    run_pipeline(module, "kitsune-count{key=a},kitsune-count{key=b target=h100}", target="sm_90a")
    assert (attribute(module, "a"), attribute(module, "b")) == ("2 sm_90a", "2 h100")


def test_neighbouring_upstream_passes_are_one_step():
    with new_context():
        steps = plan("cse,func.func(cse,canonicalize),kitsune-count,cse")
        assert [s.text for s in steps] == ["cse,func.func(cse,canonicalize)", "kitsune-count", "cse"]
        alone = plan("cse,func.func(cse,canonicalize),kitsune-count,cse", merge=False)
        assert [s.text for s in alone] == ["cse", "func.func(cse)", "func.func(canonicalize)", "kitsune-count", "cse"]


def test_a_failing_pass_is_a_diagnostic_at_its_op(module: ir.Module):
    with pytest.raises(PassPipelineError) as caught:
        run_pipeline(module, "cse,kitsune-refuse,canonicalize{max-iterations=3}", target="host")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.render() == "-:4:8: error: 'arith.muli' op is too hard"
    assert isinstance(caught.value, CompileError) and isinstance(caught.value.__cause__, PassFailure)
    assert caught.value.reproducer and caught.value.reproducer in str(caught.value)


def test_a_reproducer_replays_the_failure(module: ir.Module, tmp_path: Path):
    with pytest.raises(PassPipelineError) as caught:
        run_pipeline(module, "cse,kitsune-refuse,canonicalize{max-iterations=3}", target="host")
    path = Path(caught.value.reproducer or "")
    assert path.parent == tmp_path / "reproducers" and path.name.startswith("kitsune-refuse-")
    text = path.read_text()
    assert read_reproducer(text) == [
        "--pass-pipeline=builtin.module(kitsune-refuse,canonicalize{max-iterations=3})",
        "--target=host",
    ]
    again = ir.Module.parse(text, new_context())
    assert len(named(again.operation, "arith.addi")) == 1  # the input of the failing pass: cse had run
    with pytest.raises(PassPipelineError, match="is too hard"):
        run_pipeline(again, read_reproducer(text)[0].partition("=")[2], reproducer_dir=False)


def test_the_folder_of_reproducers_can_be_given_or_left_out(module: ir.Module, tmp_path: Path):
    with pytest.raises(PassPipelineError) as caught:
        run_pipeline(module, "kitsune-refuse", reproducer_dir=tmp_path / "a" / "b")
    assert Path(caught.value.reproducer or "").parent == tmp_path / "a" / "b"
    with pytest.raises(PassPipelineError) as caught:
        run_pipeline(module, "kitsune-refuse", reproducer_dir=False)
    assert caught.value.reproducer is None
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(PassPipelineError, match="is too hard") as caught:
        run_pipeline(module, "kitsune-refuse", reproducer_dir=file / "no folder")
    assert caught.value.reproducer is None  # not writable: the failure itself is what is reported


def test_a_crash_reproducer_lies_there_while_passes_run(module: ir.Module, tmp_path: Path):
    file = tmp_path / "crash.mlir"
    seen = []

    @dataclass(frozen=True)
    class Look(Pass):
        name: ClassVar[str] = "kitsune-count"

        def run(self, module: ir.Operation) -> None:
            seen.append(read_reproducer(file.read_text()))

    run_pipeline(module, [Look(), "cse"], crash_reproducer=file)
    assert seen == [["--pass-pipeline=builtin.module(kitsune-count,cse)"]]
    assert not file.exists()


def test_invalid_ir_after_a_pass_is_an_error(module: ir.Module):
    with pytest.raises(PassPipelineError, match="block with no terminator"):
        run_pipeline(module, "kitsune-break")


def test_a_compile_verifies_once_and_names_the_pass_that_went_wrong(module: ir.Module, tmp_path: Path, monkeypatch):
    looked: list[ir.Operation] = []
    monkeypatch.setattr("kitsune_mlir.passmanager.manager.misplaced", lambda root: looked.append(root) or [])
    run_passes(module, [Count(), Count(), Count()], find_target("sm_90a"), Options())
    assert len(looked) == 1
    remarks: list[object] = []
    options = Options(reproducer_dir=tmp_path, on_remark=remarks.append)
    with pytest.raises(PassPipelineError, match="block with no terminator") as caught:
        run_passes(module, [Count(), PASSES["kitsune-break"](), Count()], find_target("sm_90a"), options)
    assert caught.value.pass_name == "kitsune-break"
    text = Path(caught.value.reproducer or "").read_text()
    assert "return %" in text  # the input of the pass
    assert read_reproducer(text)[0].startswith("--pass-pipeline=builtin.module(kitsune-break")
    with pytest.raises(PassPipelineError, match="is too hard"):
        run_passes(ir.Module.parse(SOURCE, new_context()), [PASSES["kitsune-refuse"]()], find_target("sm_90a"), options)
    assert len(remarks) == 1  # what is run again says nothing


def test_verification_can_be_left_out(module: ir.Module):
    run_pipeline(module, "kitsune-break", verify_each=False)
    assert not named(module.operation, "func.return")


def test_a_mistake_in_a_pass_keeps_its_traceback(module: ir.Module):
    with pytest.raises(PassPipelineError, match="internal error in pass 'kitsune-bug': KeyError: 'nothing there'") as caught:
        run_pipeline(module, "kitsune-bug")
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.reproducer


def test_what_a_pass_does_not_support_passes_through(module: ir.Module):
    with pytest.raises(UnsupportedError, match="here: 'arith.addi' is not supported here: no sums"):
        run_pipeline(module, "kitsune-unsupported")


def test_a_failing_upstream_pass_is_a_diagnostic():
    source = "func.func @f(%x: tensor<4xf32>) {\n  return\n}"
    module = ir.Module.parse(source, new_context())
    with pytest.raises(PassPipelineError) as caught:
        run_pipeline(
            module, "one-shot-bufferize{test-analysis-only=true bufferize-function-boundaries=true copy-before-write=true}"
        )
    assert caught.value.diagnostics[0].severity == "error"
    assert caught.value.pass_name == "one-shot-bufferize"


@pytest.mark.parametrize(
    "pipeline, message",
    [
        ("func.func(kitsune-count)", "'kitsune-count' runs on 'builtin.module', it cannot be nested in 'func.func'"),
        ("kitsune-cuont", "'kitsune-cuont' does not refer to a registered pass; did you mean 'kitsune-count'?"),
        ("canonicalise", "'canonicalise' does not refer to a registered pass"),
        ("func.func(cse,canonicalise)", "'canonicalise' does not refer to a registered pass"),
        ("canonicalize{foo=1}", "no such option foo"),
        ("kitsune-count{kez=1}", "did you mean 'key'?"),
        ("promote-buffers-to-stack", "restricted to 'func.func'"),
    ],
)
def test_a_wrong_pipeline_is_refused_before_anything_runs(module: ir.Module, pipeline: str, message: str):
    with pytest.raises(PipelineError) as caught:
        run_pipeline(module, f"builtin.module(cse,kitsune-count,{pipeline})")
    assert message in str(caught.value)
    assert "test.count" not in module.operation.attributes and len(named(module.operation, "arith.addi")) == 2


def test_flags_are_nested_in_the_operation_they_need():
    with new_context():
        assert implicitly_nested("promote-buffers-to-stack") == "func.func(promote-buffers-to-stack)"
        assert implicitly_nested("convert-gpu-to-nvvm") == "gpu.module(convert-gpu-to-nvvm)"
        assert implicitly_nested("cse") == "cse"
        assert implicitly_nested("kitsune-count", "key=x") == "kitsune-count{key=x}"


def test_remarks_and_warnings_go_to_the_listener(module: ir.Module):
    heard = []
    with pytest.raises(PassPipelineError):
        run_pipeline(module, "kitsune-refuse", on_diagnostic=heard.append)
    assert [d.render() for d in heard] == ["-:4:8: remark: 'arith.muli' op is about to be refused"]


def test_dumps_name_the_passes_asked_for(module: ir.Module):
    out = io.StringIO()
    run_pipeline(
        module,
        "canonicalize,kitsune-count,func.func(cse)",
        print_ir_before=["cse"],
        print_ir_after=["kitsune-count", "cse"],
        printing=IRPrinting(out),
    )
    titles = [line for line in out.getvalue().splitlines() if line.startswith("// -----//")]
    assert titles == [
        "// -----// IR Dump After Count (kitsune-count) //----- //",
        "// -----// IR Dump Before func.func(cse) //----- //",
        "// -----// IR Dump After func.func(cse) //----- //",
    ]
    dumps = out.getvalue().split("// -----//")
    assert [d.count("arith.addi") for d in dumps[1:]] == [2, 2, 1]


def test_a_failing_pass_dumps_what_it_left(module: ir.Module):
    out = io.StringIO()
    with pytest.raises(PassPipelineError):
        run_pipeline(module, "kitsune-break", printing=IRPrinting(out, after_failure=True))
    assert "IR Dump After Break (kitsune-break) Failed" in out.getvalue() and '"func.func"' in out.getvalue()


def test_timing_lists_every_pass(module: ir.Module):
    timing = Timing()
    run_pipeline(module, "cse,func.func(canonicalize,cse),kitsune-count", timing=timing)
    assert [label for label, _ in timing.entries] == [
        "cse",
        "func.func(canonicalize)",
        "func.func(cse)",
        "Count (kitsune-count)",
    ]
    assert all(seconds >= 0 for _, seconds in timing.entries) and timing.total > 0
    assert timing.report().splitlines()[-1].split() == [f"{timing.total:.4f}", "(100.0%)", "Total"]


def test_long_source_lines_are_cut_round_the_caret():
    from kitsune_mlir.passmanager.diagnostics import Diagnostic

    line = "a" * 500 + "X" + "b" * 500
    shown = Diagnostic("error", "m", "f", 1, 501).render({"f": [line]}).split("\n")
    assert len(shown[1]) == 200 and shown[1][shown[2].index("^")] == "X"
    tabbed = Diagnostic("error", "m", "f", 1, 3).render({"f": ["\t\tX"]}).split("\n")
    assert tabbed[1:] == ["\t\tX", "\t\t^"]
