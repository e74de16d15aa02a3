"""`compile`, `Program` and `.kit` packages on the host target."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, KitsuneError, PackageError, TargetError


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(24, 12)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": torch.relu(self.linear(x)) * scale, "rows": x.sum(1)}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    model = Net().eval()
    args, kwargs = (torch.randn(7, 24),), {"scale": torch.randn(12)}
    return model, args, kwargs, kitsune_mlir.compile(model, args, kwargs, target="host")


def check(got, model, args, kwargs) -> None:
    with torch.no_grad():
        wanted = model(*args, **kwargs)
    assert list(got) == list(wanted)
    for key in wanted:
        torch.testing.assert_close(got[key], wanted[key], rtol=1e-5, atol=1e-5)


def test_structure_of_arguments_and_outputs(net) -> None:
    model, args, kwargs, program = net
    check(program(*args, **kwargs), model, args, kwargs)


def test_weights_are_shared(net) -> None:
    model, args, kwargs, program = net
    with torch.no_grad():
        model.linear.bias.add_(1.0)
    check(program(*args, **kwargs), model, args, kwargs)


def test_strides_offsets_and_numpy(net) -> None:
    model, _, kwargs, program = net
    base = torch.randn(24, 8)[:, 1:].T
    check(program(base, **kwargs), model, (base,), kwargs)
    array = np.random.default_rng(0).standard_normal((7, 24), dtype=np.float32)
    check(program(array, **kwargs), model, (torch.from_numpy(array),), kwargs)
    odd = torch.randn(7 * 24 + 1)[1:].view(7, 24)  # not aligned to 16 bytes
    check(program(odd, **kwargs), model, (odd,), kwargs)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.randn(8, 24), r"shape \[8, 24\], compiled for \[7, 24\]"),
        (torch.randn(7, 24).double(), "float64, compiled for torch.float32"),
        ([1.0], r"argument 'x' is \[tensor\] and not tensor"),
        (torch.randn(7, 24, device="meta"), "on meta, the program runs on cpu"),
        (torch.randn(7, 24).to_sparse(), "layout"),
    ],
)
def test_arguments_that_do_not_fit(net, x, words) -> None:
    _, _, kwargs, program = net
    with pytest.raises(ArgumentError, match=words):
        program(x, **kwargs)


def test_levels_and_explain(net) -> None:
    *_, program = net
    assert "kitsune.stage" in program.ir("stages") and "kitsune.task" in program.ir("tiles")
    assert "linalg" in program.ir("linalg") and "define" in program.ir("llvm")
    with pytest.raises(ArgumentError, match="no 'ptx' form"):
        program.ir("ptx")
    with pytest.raises(ArgumentError, match="levels: "):
        program.ir("assembly")
    text = program.explain()
    assert "launch" in text and "product" in text and "Traffic" in text


def test_package_round_trip_without_the_compiler(net, tmp_path: Path) -> None:
    model, args, kwargs, program = net
    program.save(tmp_path / "m.kit")
    check(kitsune_mlir.load(tmp_path / "m.kit")(*args, **kwargs), model, args, kwargs)
    torch.save((args, kwargs), tmp_path / "args.pt")
    script = (
        "import sys, torch, kitsune_mlir\n"
        f"args, kwargs = torch.load({str(tmp_path / 'args.pt')!r})\n"
        f"kitsune_mlir.load({str(tmp_path / 'm.kit')!r})(*args, **kwargs)\n"
        "assert not any(name.startswith('torch_mlir') for name in sys.modules), 'the compiler was imported'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    program.save(tmp_path / "bare.kit", weights=False)
    with pytest.raises(ArgumentError, match="needs a weight 'linear.weight'"):
        kitsune_mlir.load(tmp_path / "bare.kit")
    again = kitsune_mlir.load(tmp_path / "bare.kit", weights={**dict(model.named_parameters()), **dict(model.named_buffers())})
    check(again(*args, **kwargs), model, args, kwargs)
    program.save(tmp_path / "short.kit", ir=False)
    short = kitsune_mlir.load(tmp_path / "short.kit")
    check(short(*args, **kwargs), model, args, kwargs)
    assert short.levels == () and (tmp_path / "short.kit").stat().st_size < (tmp_path / "m.kit").stat().st_size


def test_damaged_packages(net, tmp_path: Path) -> None:
    *_, program = net
    good = tmp_path / "m.kit"
    program.save(good)
    data = good.read_bytes()
    bad = tmp_path / "bad.kit"
    for cut in (0, 10, len(data) // 2, len(data) - 5):
        bad.write_bytes(data[:cut])
        with pytest.raises(PackageError):
            kitsune_mlir.load(bad)
    bad.write_bytes(b"\x80\x04 not a zip")
    with pytest.raises(PackageError, match="not a .kit file"):
        kitsune_mlir.load(bad)
    with zipfile.ZipFile(bad, "w") as archive:
        archive.writestr("hello", "x")
    with pytest.raises(PackageError, match="no .kit file"):
        kitsune_mlir.load(bad)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as archive:
        for name in source.namelist():
            text = source.read(name)
            archive.writestr(name, text + b" " if name == "code/host.ll" else text)
    with pytest.raises(PackageError, match="altered"):
        kitsune_mlir.load(bad)
    with pytest.raises(FileNotFoundError):
        kitsune_mlir.load(tmp_path / "none.kit")


def test_a_failed_save_keeps_the_old_file(net, tmp_path: Path, monkeypatch) -> None:
    *_, program = net
    path = tmp_path / "m.kit"
    program.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(zipfile.ZipFile, "writestr", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        program.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_gpu_code_without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    model = torch.nn.Linear(64, 96).to(torch.bfloat16)
    x = torch.randn(300, 64).to(torch.bfloat16)
    program = kitsune_mlir.compile(model, (x,), target="sm_90a")
    assert "wgmma" in program.ir("ptx") and program.artifacts["kernel.cubin"][:4] == b"\x7fELF"
    assert program.summary["kernels"][0]["spill_store_bytes"] == 0
    with pytest.raises(TargetError, match="no CUDA device"):
        program(x)


def test_a_model_without_values_compiles_and_runs_with_weights_that_are_loaded(tmp_path: Path) -> None:
    """Large models are built on the meta device, also where their target can run: the program needs no weights until then."""
    with torch.device("meta"):
        empty, shape = torch.nn.Linear(24, 12), torch.empty(7, 24)
    program = kitsune_mlir.compile(empty, (shape,), target="host")
    x = torch.randn(7, 24)
    with pytest.raises(TargetError, match="weight 'weight' is on the meta device: save the program, and load it with weights"):
        program(x)
    with pytest.raises(PackageError, match="weight 'weight' is on the meta device"):
        program.save(tmp_path / "whole.kit")
    program.save(tmp_path / "linear.kit", weights=False)
    model = torch.nn.Linear(24, 12).requires_grad_(False)
    loaded = kitsune_mlir.load(tmp_path / "linear.kit", weights=dict(model.named_parameters()))
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-5, atol=1e-5)


def test_unknown_target() -> None:
    with pytest.raises(TargetError, match="known targets: "):
        kitsune_mlir.compile(torch.nn.ReLU(), (torch.randn(2),), target="sm_75")


def test_torch_compile_backend() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Linear(5, 3))
    x = torch.randn(9, 6)
    compiled = torch.compile(model, backend="kitsune")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    compiled(x).sum().backward()
    (want,) = torch.autograd.grad(model(x).sum(), model[0].weight)
    torch.testing.assert_close(model[0].weight.grad, want)


def test_other_weights() -> None:
    model, other = torch.nn.Linear(6, 5), torch.nn.Linear(6, 5)
    x = torch.randn(9, 6)
    program = kitsune_mlir.compile(model, (x,), target="host")
    again = program.with_weights(dict(other.named_parameters()))
    torch.testing.assert_close(again(x), other(x))
    torch.testing.assert_close(program(x), model(x))
    torch.testing.assert_close(again.with_weights({"bias": model.bias})(x), other(x) - other.bias + model.bias)
    with pytest.raises(KitsuneError, match="no weight 'scale'; its weights are bias, weight"):
        program.with_weights({"scale": x})
    with pytest.raises(KitsuneError, match="compiled for f32"):
        program.with_weights({"bias": torch.randn(6)})


def test_named_tuple_outputs(tmp_path: Path) -> None:
    class Top(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            return torch.max(x, 1)

    x = torch.randn(5, 9)
    program = kitsune_mlir.compile(Top(), (x,), target="host")
    got, wanted = program(x), torch.max(x, 1)
    assert torch.equal(got.values, wanted.values) and torch.equal(got.indices, wanted.indices)
    program.save(tmp_path / "top.kit")
    again = kitsune_mlir.load(tmp_path / "top.kit")(x)
    assert isinstance(again, torch.return_types.max) and torch.equal(again.values, wanted.values)


def test_structures_of_a_users_own_class_are_not_saved(tmp_path: Path) -> None:
    class Pair:
        def __init__(self, *parts: torch.Tensor):
            self.parts = parts

    torch.utils._pytree.register_pytree_node(Pair, lambda pair: (list(pair.parts), None), lambda parts, _: Pair(*parts))

    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            return Pair(x + 1, x * 2)

    x = torch.randn(5)
    program = kitsune_mlir.compile(Both(), (x,), target="host")
    assert torch.equal(program(x).parts[1], x * 2)
    with pytest.raises(KitsuneError, match="structure"):
        program.save(tmp_path / "never.kit")


@pytest.mark.parametrize("target", ["host", "sm_90a"])
def test_a_model_that_computes_nothing(target: str, tmp_path: Path) -> None:
    class Nothing(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor):
            return x @ y, y

    args = (torch.randn(0, 7), torch.randn(7, 3))
    program = kitsune_mlir.compile(Nothing(), args, target=target)
    program.save(tmp_path / "nothing.kit")
    if target == "host" or torch.cuda.is_available():
        product, same = kitsune_mlir.load(tmp_path / "nothing.kit")(*args)
        assert product.shape == (0, 3) and torch.equal(same.cpu(), args[1])
    else:
        with pytest.raises(TargetError, match="no CUDA device"):
            program(*args)


def test_arithmetic_of_bytes() -> None:
    class Bytes(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            return x * 3, x - 1, 7 - x, x // 4

    x = torch.tensor([0, 1, 200, 255], dtype=torch.uint8)
    got = kitsune_mlir.compile(Bytes(), (x,), target="host")(x)
    assert all(torch.equal(a, b) for a, b in zip(got, Bytes()(x), strict=True))


def test_signs_of_zeros_and_lengths_beyond_the_largest_square() -> None:
    class Signs(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor):
            return torch.hypot(x, y), torch.copysign(x, y), torch.copysign(x, -2.0)

    args = (torch.tensor([0.0, 1.0, -3e30, float("inf"), 2.0]), torch.tensor([-0.0, -2.0, 4e30, 1.0, 0.0]))
    got = kitsune_mlir.compile(Signs(), args, target="host")(*args)
    for mine, wanted in zip(got, Signs()(*args), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=0)


def test_constants_are_compared_with_whole_numbers() -> None:
    """The importer's own folding gives either answer, another in each process: operands are floats before it sees them."""

    class Compared(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            low, high = torch.full((), -2.0), torch.full((), 2.0)
            return [
                torch.where(flag, x, -x) for flag in (low < 0, low > 0, high < 0, high > 0, high <= 2, high != 2, high == 2)
            ]

    x = torch.randn(5)
    program = kitsune_mlir.compile(Compared(), (x,), target="host")
    assert all(torch.equal(a, b) for a, b in zip(program(x), Compared()(x), strict=True))


def test_rows_from_the_middle_of_an_input() -> None:
    class Middle(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            return x.split([3, 4, 6]), x[1:, ::2] + 1

    x = torch.randn(13, 27)
    parts, rest = kitsune_mlir.compile(Middle(), (x,), target="host")(x)
    assert all(torch.equal(got, want) for got, want in zip(parts, x.split([3, 4, 6]), strict=True))
    assert torch.equal(rest, x[1:, ::2] + 1)
    kitsune_mlir.compile(Middle(), (x,), target="sm_90a")


def test_equal_outputs_are_tensors_of_their_own(tmp_path: Path) -> None:
    """What the model returns twice is one tensor; what it makes twice, or clones, are two."""

    def model(x):
        y = x * 2
        return y, y, x * 2, y.clone()

    x = torch.randn(3, 5)
    program = kitsune_mlir.compile(model, (x,), target="host")
    program.save(tmp_path / "m.kit")
    for one in (program, kitsune_mlir.load(tmp_path / "m.kit")):
        got, want = one(x), model(x)
        assert [[a is b for a in got] for b in got] == [[a is b for a in want] for b in want]
        for n, (a, b) in enumerate(zip(got, want, strict=True)):
            a[0, 0] = b[0, 0] = n
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_a_buffer_that_is_written_and_never_read(tmp_path: Path) -> None:
    class Kept(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("last", torch.zeros(3, 4))

        def forward(self, x):
            self.last.copy_(x)
            return x * 2

    model, x = Kept(), torch.randn(3, 4)
    program = kitsune_mlir.compile(model, (x,), target="host")
    torch.testing.assert_close(program(x), x * 2)
    torch.testing.assert_close(model.last, x)
    program.save(tmp_path / "m.kit")
    again = kitsune_mlir.load(tmp_path / "m.kit")
    again(x + 1)
    torch.testing.assert_close(again.weights["last"], x + 1)


def test_buffers_that_the_model_changes() -> None:
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1.0)
            return x + self.count

    model = Counter()
    program = kitsune_mlir.compile(model, (torch.zeros(3),), target="host")
    assert program(torch.zeros(3)).tolist() == [1.0] * 3
    assert program(torch.zeros(3)).tolist() == [2.0] * 3
    assert model.count.tolist() == [2.0] * 3
