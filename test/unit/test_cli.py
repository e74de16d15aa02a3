"""The `kitsune` command: a user's file to a package, running it, explaining it, and errors without tracebacks."""

import io
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console
from safetensors.torch import load_file, save_file

import kitsune_mlir
from kitsune_mlir.cache.store import Store
from kitsune_mlir.errors import KitsuneError, TargetError
from kitsune_mlir.tools.kitsune import main
from kitsune_mlir.tools.progress import Progress
from kitsune_mlir.tools.user_code import UserCodeError, load_model, parse_arguments

SOURCE = """
import torch
from beside import WIDTH

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(16, WIDTH)

    def forward(self, x, scale=None, twice=False):
        y = torch.relu(self.linear(x))
        y = y if scale is None else y * scale
        return {"y": y, "z": y + y} if twice else y

def make():
    return Model(), (torch.ones(4, 16),)

def one_tensor():
    return Model(), torch.ones(4, 16)

def keywords():
    return Model(), (torch.ones(4, 16),), {"scale": torch.ones(8), "twice": True}

model = Model()
number = 3

def broken():
    return helper()

def helper():
    return [][3]

class Scan(torch.nn.Module):
    def forward(self, x):
        return x.cumsum(0)

def scan():
    return Scan(), (torch.ones(131072),)

def text():
    return "model"

class Dynamic(torch.nn.Module):
    def forward(self, x):
        return torch.nonzero(x)

class Same(torch.nn.Module):
    def forward(self, x):
        return x, x, x + 1

def dynamic():
    return Dynamic(), (torch.ones(3),)
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user code")
    (folder / "beside.py").write_text("WIDTH = 8\n")
    (folder / "models.py").write_text(SOURCE)
    (folder / "wrong.py").write_text("def f(:\n")
    (folder / "fails.py").write_text("import torch\nraise RuntimeError('no licence')\n")
    return folder


def kitsune(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def package(user: Path) -> Path:
    path = user / "m.kit"
    done = kitsune("compile", f"{user}/models.py:keywords", "-o", path, "--target", "host")
    assert done.exit_code == 0, done.output
    assert re.search(r"m\.kit: \d+\.\d MB for host \(import \d", done.output)
    return path


def test_run_on_random_inputs(package: Path):
    done = kitsune("run", package, "--random", "--repeat", 3)
    assert done.exit_code == 0, done.output
    first, second, timing = done.output.splitlines()[-3:]
    assert re.fullmatch(r"output 0: float32\[4, 8\]  min \S+  max \S+  mean \S+", first)
    assert second.startswith("output 1: float32[4, 8]")
    assert re.fullmatch(r"3 calls: fastest \d+\.\d{3} ms, median \d+\.\d{3} ms", timing)


def test_run_on_given_inputs(package: Path, user: Path, tmp_path: Path):
    x, scale = torch.randn(4, 16), torch.randn(8)
    save_file({"x": x, "scale": scale}, tmp_path / "in.safetensors")
    done = kitsune("run", package, "--inputs", tmp_path / "in.safetensors", "--outputs", tmp_path / "out.safetensors")
    assert done.exit_code == 0, done.output
    got = load_file(tmp_path / "out.safetensors")
    with torch.no_grad():
        want = load_model(f"{user}/models.py:make", None)[0](x, scale, True)
    torch.testing.assert_close(got["output0"], want["y"])
    torch.testing.assert_close(got["output1"], want["z"])


def test_inputs_that_do_not_fit(package: Path, tmp_path: Path):
    path = tmp_path / "in.safetensors"
    save_file({"x": torch.zeros(4, 16)}, path)
    done = kitsune("run", package, "--inputs", path)
    assert done.exit_code == 1 and "holds x; the program's inputs are x, scale" in done.output
    save_file({"x": torch.zeros(4, 15), "scale": torch.zeros(8)}, path)
    assert "input 'x' has shape [4, 15], compiled for [4, 16]" in kitsune("run", package, "--inputs", path).output
    path.write_bytes(b"no tensors")
    assert "not a safetensors file" in kitsune("run", package, "--inputs", path).output
    done = kitsune("run", package)
    assert done.exit_code == 1 and "pass --random, or --inputs FILE.safetensors with: x f32[4, 16], scale f32[8]" in done.output


def test_outputs_that_share_memory_are_written(user: Path, tmp_path: Path):
    done = kitsune("compile", f"{user}/models.py:Same", "--args", "f32[3,5]", "-o", tmp_path / "s.kit", "--target", "host")
    assert done.exit_code == 0, done.output
    done = kitsune("run", tmp_path / "s.kit", "--random", "--outputs", tmp_path / "out.safetensors")
    assert done.exit_code == 0, done.output
    written = load_file(tmp_path / "out.safetensors")
    assert torch.equal(written["output0"], written["output1"]) and not torch.equal(written["output0"], written["output2"])


def test_a_gpu_package_where_there_is_no_gpu(user: Path, tmp_path: Path):
    """It can be looked at and simulated; running it says what is needed."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    path, inputs = tmp_path / "g.kit", tmp_path / "in.safetensors"
    assert kitsune("compile", f"{user}/models.py:make", "-o", path, "--target", "sm_90a").exit_code == 0
    save_file({"x": torch.ones(4, 16)}, inputs)
    needed = r"kitsune: no CUDA device is usable here.*: the program is GPU code, and runs on a Hopper GPU only\n"
    for how in (["--random"], ["--inputs", inputs]):
        done = kitsune("run", path, *how)
        assert done.exit_code == 1 and re.search(needed + r"\Z", done.output), done.output
    program = kitsune_mlir.load(path)
    for call in (lambda: program(torch.ones(4, 16)), lambda: program.device, program.timeline):
        with pytest.raises(TargetError, match="no CUDA device is usable here"):
            call()
    assert kitsune("explain", path).exit_code == 0 and kitsune("simulate", path).exit_code == 0
    done = kitsune("explain", path, "--timeline", tmp_path / "t.html")
    assert done.exit_code == 0 and "not measured: no CUDA device is usable here" in done.output


def test_slow_stages_are_warned_of(user: Path, tmp_path: Path, without_scans):
    done = kitsune("compile", f"{user}/models.py:scan", "--target", "sm_90a", "-o", tmp_path / "m.kit")
    assert done.exit_code == 0
    assert "warning: kitsune: 1 stage of this program will be far slower than the chip needs to be:" in done.stderr
    assert f"{user}/models.py:" in done.stderr and "engine generic, 1 tile" in done.stderr
    assert "PerformanceWarning" not in done.stderr
    assert "will be far slower" in kitsune("explain", tmp_path / "m.kit").stdout


def test_compile_tuned(user: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("KITSUNE_CACHE_DIR", str(tmp_path / "cache"))
    command = (
        "compile",
        f"{user}/models.py:Model",
        "--args",
        "f32[2,16]",
        "--target",
        "host",
        "-o",
        tmp_path / "t.kit",
        "--tune",
    )
    done = kitsune(*command)
    assert done.exit_code == 0 and "tune" in done.output, done.output
    assert list((tmp_path / "cache" / "tuning").rglob("*.json"))


def test_explain_what_torch_compile_makes(user: Path):
    (user / "graphs.py").write_text("""
import torch
from torch import nn

def function(x, w):
    return torch.linalg.qr(torch.relu(x @ w) + 1)[1] * 2

def pair():
    return function, (torch.ones(4, 4), torch.ones(4, 4))

def broken(x):
    y = torch.relu(x)
    print(y.sum().item() > 0)
    return y + 1

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)
""")
    done = kitsune("explain", "--torch-compile", f"{user}/graphs.py:function", "--args", "f32[5,4] f32[4,3]")
    assert done.exit_code == 0 and "1 graph" in done.output and "graphs.py:6: aten.linalg_qr.default" in done.output
    assert kitsune("explain", "--torch-compile", f"{user}/graphs.py:pair").output.count("aten.linalg_qr.default") >= 1
    done = kitsune("explain", "--torch-compile", f"{user}/graphs.py:broken", "--args", "f32[4]")
    assert "2 graphs" in done.output and "graph break (1 x)" in done.output and "launch" in done.output
    done = kitsune("explain", "--torch-compile", "--backward", f"{user}/graphs.py:Net", "--args", "f32[5,4]")
    assert "forward graph" in done.output and "backward graph" in done.output
    done = kitsune("explain", "--torch-compile", f"{user}/graphs.py:Net", "--args", "f32[5,4]")
    assert "inference graph" in done.output and "backward" not in done.output
    done = kitsune("explain", f"{user}/graphs.py:function", "--args", "f32[5,4] f32[4,3]")
    assert done.exit_code == 1 and "a torch.nn.Module or (model, args) was expected" in done.output or "fails" in done.output
    for more in (["--ir", "tiles", "--torch-compile"], ["--backward"]):
        assert kitsune("explain", f"{user}/graphs.py:pair", *more).exit_code == 2


def test_explain_a_package_and_a_model(package: Path, user: Path):
    done = kitsune("explain", package)
    assert done.exit_code == 0 and "launch" in done.output
    assert done.output == kitsune_mlir.load(package).explain() + "\n"
    assert "func.func" in kitsune("explain", package, "--ir", "linalg").output
    accesses = kitsune("explain", package, "--accesses").output.splitlines()
    assert len(accesses) == len(kitsune_mlir.load(package).accesses) and accesses[-1].startswith("result ")
    done = kitsune("explain", f"{user}/models.py:Model", "--args", "f32[2,16]", "--target", "host", "--remarks")
    assert done.exit_code == 0 and "launch" in done.output and "remark: " in done.output
    done = kitsune("explain", package, "--ir", "ptx")
    assert done.exit_code == 1 and "has no 'ptx' form" in done.output


@pytest.mark.parametrize(
    "name, message",
    [
        ("models.py:nothing", "models.py has no 'nothing'; it defines Model, make, one_tensor, keywords, model, broken"),
        ("models.py:broken", "models.py:32: "),
        ("models.py:broken", "models.py:broken fails: IndexError: list index out of range"),
        ("models.py:text", "gave a str; a torch.nn.Module or (model, args) was expected"),
        ("models.py:number", "models.py:number is a int; a function or a model was expected"),
        ("models.py:model", "return (model, args), or pass --args such as 'f32[4,64]'"),
        ("models.py:dynamic", "'aten.nonzero.default'"),
        ("models.py", "does not name a model: write path/to/file.py:function"),
        ("missing.py:f", "no file '"),
        ("wrong.py:f", "wrong.py:1: "),
        ("fails.py:f", "fails.py:2: "),
        ("fails.py:f", "fails on import: RuntimeError: no licence"),
    ],
)
def test_errors_in_the_users_file(user: Path, name: str, message: str):
    done = kitsune("compile", f"{user}/{name}", "-o", user / "x.kit", "--target", "host")
    assert done.exit_code == 1, done.output
    assert message in done.output and "Traceback" not in done.output and "internal error" not in done.output
    assert not (user / "x.kit").exists()


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        (["compile", "m.py:f"], 2, "Missing option '-o'"),
        (["compile", "m.py:f", "-o", "x.kit", "--target", "abacus"], 2, "'abacus' is not one of 'auto', 'host'"),
        (["compile", "m.py:f", "-o", "/no/such/x.kit"], 1, "no folder '/no/such' to write x.kit to"),
        (["compile", "no.such.module:f", "-o", "x.kit"], 1, "no module 'no'"),
        (["run", "missing.kit", "--random"], 1, "kitsune: missing.kit: No such file or directory"),
        (["run", __file__, "--random"], 1, "not a .kit file"),
        (["run", "x.kit", "--random", "--outputs", "/no/such/y"], 1, "no folder '/no/such' to write y to"),
        (["run", "x.kit", "--random", "--seed", str(1 << 70)], 2, "is not in the range"),
        (["run", "x.kit", "--inputs", "/"], 2, "is a directory"),
        (["explain", "missing.kit"], 1, "missing.kit: No such file or directory"),
        (["fly"], 2, "No such command 'fly'"),
    ],
)
def test_wrong_command_lines(arguments: list[str], status: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = kitsune(*arguments)
    assert done.exit_code == status and message in done.output and "Traceback" not in done.output


def test_debug_shows_the_traceback(user: Path):
    done = kitsune("--debug", "compile", f"{user}/models.py:broken", "-o", user / "x.kit")
    assert done.exit_code == 1 and "Traceback" in done.output and "in helper" in done.output


def test_internal_errors_say_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kitsune_mlir, "load", lambda path: {}["nothing"], raising=False)
    done = kitsune("explain", "x.kit")
    assert done.exit_code == 1 and "internal error: KeyError: 'nothing'" in done.output and "--debug" in done.output


def test_models_come_in_several_ways(user: Path):
    for name in ("make", "one_tensor"):
        model, args, kwargs = load_model(f"{user}/models.py:{name}", None)
        assert model(*args, **kwargs).shape == (4, 8)
    for name in ("Model", "model", "make"):
        model, args, kwargs = load_model(f"{user}/models.py:{name}", "f32[3,16]")
        assert model(*args, **kwargs).shape == (3, 8) and kwargs == {}


def test_arguments_written_as_text():
    a, b, c, d, e, f = parse_arguments("f32[4, 64] bf16[]; i64[3] bool[2,0] 7 0.5")
    assert (a.shape, a.dtype, b.shape, b.dtype) == ((4, 64), torch.float32, (), torch.bfloat16)
    assert (c.shape, c.dtype, d.shape, d.dtype) == ((3,), torch.int64, (2, 0), torch.bool)
    assert set(c.tolist()) <= {0, 1} and (e, f) == (7, 0.5)
    assert parse_arguments("") == ()
    for wrong in ("f32[4", "f33[4]", "f32", "f32[a]"):
        with pytest.raises(KitsuneError):
            parse_arguments(wrong)


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KITSUNE_CACHE_DIR", str(tmp_path / "cache"))
    empty = kitsune("cache").output
    assert "programs       0 whole programs" in empty and "graphs         0 graphs of Dynamo" in empty
    store = Store()
    store.write("cubins", "k", bytes(2500))
    store.write("programs", "p", bytes(100))
    shown = kitsune("cache").output
    assert str(tmp_path / "cache") in shown and "cubins         1 assembled kernels    2.5 kB" in shown and "4.29 GB" in shown
    assert "1 entry removed" in kitsune("cache", "clear", "--kind", "cubins").output
    assert [entry.kind for entry in store.entries()] == ["programs"]
    assert "1 entry removed" in kitsune("cache", "clear").output and not store.entries()
    assert "0 entries removed" in kitsune("cache", "--folder", tmp_path / "none", "clear").output
    assert kitsune("cache", "clear", "--kind", "nothing").exit_code == 2


def test_version():
    done = kitsune("--version")
    assert done.output.strip().endswith(kitsune_mlir.__version__) and done.exit_code == 0


def test_progress_speaks_after_a_while():
    out = io.StringIO()
    progress = Progress(Console(file=out), patience=0.3, interval=0.4)
    with progress.running("quick"):
        pass
    assert out.getvalue() == ""
    with progress.running("first"):
        time.sleep(0.5)
        progress.phase("second")
        time.sleep(1.2)
    assert re.fullmatch(r"first \.\.\. \d s\n(second \.\.\. \d s\n){2,3}", out.getvalue())


def test_an_error_of_the_user_is_a_user_code_error(user: Path):
    with pytest.raises(UserCodeError, match="no licence") as caught:
        load_model(f"{user}/fails.py:f", None)
    assert caught.value.location and caught.value.location.endswith("fails.py:2")


def test_the_command_starts_without_torch():
    code = "import sys; import kitsune_mlir.tools.kitsune; print([m for m in ('torch', 'torch_mlir') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
