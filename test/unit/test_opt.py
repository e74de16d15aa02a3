"""`kitsune-opt`: command line, inputs, exit status. In one process where a crash is not what is tested."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch_mlir import ir

from kitsune_mlir.dialects import new_context
from kitsune_mlir.tools.expected import check, expectations
from kitsune_mlir.tools.kitsune_opt import normalized, tool
from kitsune_mlir.tools.opt_input import MAX_NESTING, Source, chunks_of, too_deep

GOOD = "func.func @f(%x: i32) -> i32 {\n  %a = arith.addi %x, %x : i32\n  return %a : i32\n}\n"
TOOL = [sys.executable, "-m", "kitsune_mlir.tools.kitsune_opt"]


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good file.mlir"
    path.write_text(GOOD)
    return str(path)


def test_it_writes_what_it_read(good: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert tool([good]) == 0
    out, err = capfd.readouterr()
    assert "func.func @f" in out and err == ""
    assert tool([good, "-o", str(tmp_path / "out.mlir")]) == 0
    assert (tmp_path / "out.mlir").read_text() == out
    assert tool([f"-o={tmp_path / 'out2.mlir'}", good]) == 0
    assert (tmp_path / "out2.mlir").read_text() == out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--canonicalise"], "kitsune-opt: Unknown command line argument '--canonicalise'.  Try: 'kitsune-opt --help'"),
        (["-verify-diagnostic"], "Did you mean '--verify-diagnostics'?"),
        (["--kitsune-form-stages=targat=host"], "has no option 'targat'; did you mean 'target'?"),
        (["--canonicalize=foo=1"], "no such option foo"),
        (["--canonicalize={foo=1"], "'}' is missing"),
        (["--pass-pipeline=builtin.module(func.func(cse)"], "')' is missing"),
        (["--pass-pipeline=builtin.module(func.func(kitsune-normalize))"], "cannot be nested in 'func.func'"),
        (["--cse", "--pass-pipeline=cse"], "cannot be used together with flags of single passes (--cse)"),
        (["--target=abacus"], "kitsune-opt: unknown target 'abacus'; known targets: host"),
        (["more.mlir"], "Unknown command line argument 'more.mlir'"),
        (["-o", "/nonexistent/out.mlir"], "cannot open output file '/nonexistent/out.mlir': No such file or directory"),
        (["--run-reproducer"], "not a reproducer"),
        (["--pass-pipeline"], "kitsune-opt: argument --pass-pipeline: expected one argument.  Try: 'kitsune-opt --help'"),
    ],
)
def test_wrong_command_lines(good: str, arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]):
    assert tool([good, *arguments]) == 1
    out, err = capfd.readouterr()
    assert message in err and "Traceback" not in err and out == ""


@pytest.mark.parametrize("name, reason", [("missing.mlir", "No such file"), (".", "Is a directory"), ("a\0b", "null byte")])
def test_unreadable_inputs(name: str, reason: str, capfd: pytest.CaptureFixture[str]):
    assert tool([name]) == 1
    assert f"cannot open input file '{name}': " in (err := capfd.readouterr().err) and reason in err


def test_a_closed_pipe_is_no_traceback(good: str):
    first = subprocess.Popen([*TOOL, good], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert first.stdout and first.stderr
    first.stdout.close()
    assert "Traceback" not in first.stderr.read().decode()
    first.stderr.close()
    first.wait()


def test_it_starts_without_torch(good: str):
    code = "import sys; from kitsune_mlir.tools.kitsune_opt import tool; tool([sys.argv[1], '--kitsune-normalize']); "
    code += "print([m for m in ('torch', 'scipy', 'rich') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, good], capture_output=True, text=True)
    assert done.stderr == "[]\n"


BAD_INPUTS = {
    "binary": bytes(range(256)) * 20,
    "not utf-8": b'func.func @f() { "\xff\xfe" }',
    "nul": GOOD.encode().replace(b"arith", b"ari\0th"),
    "truncated": GOOD.encode()[:50],
    "bytecode header": b"ML\xefR",
    "bytecode of a later version": b"ML\xefR" + b"z" * 100,
    "brackets": b"(" * 100_000,
    "regions": b"module {" * 5_000,
    "types": b"func.func @f(" + b"tuple<" * 100_000,
    "lists": b"module attributes {a = " + b"[" * 100_000,
    "locations": b"module {} loc(" + b"fused[" * 100_000,
    "maps": b"module attributes {a = affine_map<(d0) -> (" + b"(" * 100_000,
    "signs": b"module attributes {a = affine_map<(d0) -> (" + b"-" * 100_000 + b"d0)>} {}",
    "sums": b"module attributes {a = affine_map<(d0) -> (" + b"d0+" * 20_000 + b"d0)>} {}",
    "string": b'module attributes {a = "' + b"x" * 1_000_000,
    "verifier": b'"kitsune.task"() ({}) {sym_name = 3, grid = "x"} : () -> ()',
    "wrong dialect": b"foo.bar",
}


def test_bad_input_is_an_error_and_no_crash(tmp_path: Path):
    """In one process of its own: a crash of the native parser must not take the tests along."""
    for number, data in enumerate(BAD_INPUTS.values()):
        (tmp_path / f"{number}.mlir").write_bytes(data)
    code = (
        "import sys\nfrom kitsune_mlir.tools.kitsune_opt import tool\n"
        "for name in sys.argv[1:]: print(tool([name]), tool([name, '--split-input-file']), flush=True)"
    )
    files = [str(tmp_path / f"{n}.mlir") for n in range(len(BAD_INPUTS))]
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, errors="replace")
    got = dict(zip(BAD_INPUTS, done.stdout.splitlines(), strict=False))
    assert got == dict.fromkeys(BAD_INPUTS, "1 1"), done.stderr[-2000:]
    assert "Traceback" not in done.stderr and done.stderr.count("error: ") >= 2 * len(BAD_INPUTS)


def test_a_crash_of_native_code_is_an_error(tmp_path: Path):
    """A known one of the transpose parser; when MLIR mends it, this input is a plain parse error."""
    path = tmp_path / "crash.mlir"
    path.write_text(
        "func.func @f(%w: tensor<32x16xf32>, %e: tensor<16x32xf32>) {\n"
        "  %t = linalg.transpose ins(%w : tensor<32x16xf32>) outs(%e : tensor<16x32xf32>) permutation =, [1, 0]\n  return\n}\n"
    )
    done = subprocess.run([*TOOL, str(path)], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert "kitsune-opt: MLIR's native code ended the process (SIGSEGV)" in done.stderr or "error: " in done.stderr


def test_the_empty_input_is_an_empty_module(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "e.mlir").write_text("")
    assert tool([str(tmp_path / "e.mlir")]) == 0
    assert capfd.readouterr().out.split() == ["module", "{", "}"]


def test_bytecode_is_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with (tmp_path / "m.mlirbc").open("wb") as file:
        ir.Module.parse(GOOD, new_context()).operation.write_bytecode(file)
    assert tool([str(tmp_path / "m.mlirbc"), "--cse"]) == 0
    assert "arith.addi" in capfd.readouterr().out


def test_truncated_bytecode_is_an_error(tmp_path: Path):
    path = tmp_path / "m.mlirbc"
    with path.open("wb") as file:
        ir.Module.parse(GOOD, new_context()).operation.write_bytecode(file)
    path.write_bytes(path.read_bytes()[:-20])
    assert subprocess.run([*TOOL, str(path)], capture_output=True).returncode == 1


def test_nesting_is_limited_where_brackets_count(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    def nested(depth: int) -> str:
        return "module {" * depth + "}" * depth

    assert too_deep(nested(MAX_NESTING).encode()) is None
    assert too_deep(("\n " + nested(MAX_NESTING + 1)).encode()) == (2, 1 + 8 * (MAX_NESTING + 1))
    assert too_deep(b'module { // ((((\n "((((" -> ->' * (MAX_NESTING - 1)) is None
    path = tmp_path / "deep.mlir"
    path.write_text(nested(MAX_NESTING))
    assert tool([str(path), "--cse"]) == 0
    path.write_text(nested(MAX_NESTING + 1))
    assert tool([str(path)]) == 1
    assert f"deep.mlir:1:{8 * (MAX_NESTING + 1)}: error: nested deeper than {MAX_NESTING} brackets" in capfd.readouterr().err


def test_chunks_keep_their_lines():
    text = "a\n// -----\nb\n// ----- again\nc"
    chunks = chunks_of(Source("x", None, text.encode()))
    assert chunks == ["a\n", "\n\nb\n", "\n\n\n\nc"]


def test_a_reproducer_is_replayed(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "bad.mlir"
    path.write_text("func.func @f(%x: tensor<?xf32>) -> tensor<?xf32> {\n  return %x : tensor<?xf32>\n}\n")
    line = f"// configuration: kitsune-opt {path} '--pass-pipeline=builtin.module(func.func(cse))' --target=sm_90a\n"
    path.write_text(line + path.read_text())
    assert tool([str(path), "--run-reproducer", "--mlir-print-ir-after-all"]) == 0
    assert "IR Dump After func.func(cse)" in capfd.readouterr().err


def test_one_dash_is_enough():
    assert normalized(["-canonicalize", "-o", "x", "-o=y", "-", "--cse", "-target=host", "file-a.mlir"]) == [
        *("--canonicalize", "-o", "x", "-oy", "-", "--cse", "--target=host", "file-a.mlir")
    ]


def test_show_passes(capfd: pytest.CaptureFixture[str]):
    assert tool(["--show-passes"]) == 0
    assert "--kitsune-normalize" in capfd.readouterr().out


def test_expected_diagnostics_speak_of_lines():
    text = "\n".join(
        [
            "a // expected-error {{one}}",
            "// expected-note@+2 {{two}}",
            "// expected-warning@below {{three}}",
            "b",
            "// expected-remark@above {{four}}",
            "// expected-error@unknown {{five}}",
            "// expected-error-re@-3 {{si{{x+}}.}}",
        ]
    )
    assert [(e.kind, e.line, e.text) for e in expectations(text)] == [
        ("error", 1, "one"),
        ("note", 4, "two"),
        ("warning", 4, "three"),
        ("remark", 4, "four"),
        ("error", 0, "five"),
        ("error", 4, "si{{x+}}."),
    ]
    assert expectations('"expected-error {{no comment}}"') == []


def test_expected_diagnostics_are_met_once():
    from kitsune_mlir.passmanager.diagnostics import Diagnostic

    def wrong(text: str, *found: Diagnostic) -> list[str]:
        return [d.render() for d in check(expectations(text), found, "f")]

    one = Diagnostic("error", "it is bad", "f", 1, 3)
    assert wrong("x // expected-error {{is bad}}", one) == []
    assert wrong("x // expected-error {{is bad}}", one, one) == ["f:1:3: error: unexpected error: it is bad"]
    assert wrong("x // expected-error {{is good}}", one) == [
        "f:1:3: error: unexpected error: it is bad",
        'f:1:6: error: expected error "is good" was not produced',
    ]
    assert wrong("x // expected-warning {{is bad}}", one)[0] == "f:1:3: error: unexpected error: it is bad"
    assert wrong("x // expected-error-re {{it {{i.}} bad}}", one) == []
    note = Diagnostic("error", "it is bad", "f", 1, 3, (Diagnostic("note", "see current operation: x", "f", 1, 3),))
    assert wrong("x // expected-error {{is bad}}", note) == []
    assert wrong("x // expected-remark {{bad}}") == ['f:1:6: error: expected remark "bad" was not produced']
