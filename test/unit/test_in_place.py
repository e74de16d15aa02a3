"""Arguments that a model changes are written where they lie, where nobody can see a difference; and what a program touches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from test.emulators.atomics import AtomicBlock
from test.programs import emulated
from test.programs.changes import AT, B, Cache, D, H, Of, S, compiled, in_place, step
from test.programs.compiled import planned

GPU = pytest.mark.parametrize("gpu", [False, True], ids=["host", "gpu-plan"])


@pytest.mark.rotated(4)
@GPU
@pytest.mark.parametrize("write", ["index_copy", "index_put", "slice"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_is_written_where_it_lies(write: str, dtype: torch.dtype, gpu: bool) -> None:
    torch.manual_seed(0)
    model, args = Cache(write, dtype), step(dtype)
    eager = copy.deepcopy(model)
    program = compiled(model, args, gpu)
    assert in_place(program) == ["k", "v"]
    assert not {"result 0", "result 1"} & {access.tensor for access in program.accesses}
    places = model.k.data_ptr(), model.v.data_ptr()
    for pos in (AT, AT) if write == "slice" else (AT, 0, S - 1):
        args = step(dtype, pos)
        near = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(program(*args), eager(*args), rtol=near, atol=near)
        torch.testing.assert_close((model.k, model.v), (eager.k, eager.v), rtol=0, atol=0)
    assert (model.k.data_ptr(), model.v.data_ptr()) == places


def test_only_rows_that_are_named_are_touched() -> None:
    """Between two launches of a step the rest of the cache may be anybody's: nothing but the rows is written."""
    program = planned(Cache("index_copy"), *step(), target="sm_90a")
    tiles = program.ir("tiles")
    assert tiles.count("kitsune.atomic_scatter") == 2
    assert "_start" not in tiles, "the cache is copied first"
    text = next(line for line in tiles.splitlines() if "kitsune.program" in line)
    assert "kitsune.overwrites = array<i64: 0, 1, -1>" in text


def test_indices_outside_are_errors_on_the_host() -> None:
    model = Cache("index_copy")
    program = kitsune_mlir.compile(model, step(), target="host")
    with pytest.raises(kitsune_mlir.errors.KitsuneError, match="index out of range"):
        program(*step(pos=S))


def adam(p: Tensor, m: Tensor, v: Tensor, g: Tensor) -> None:
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def half_new(x: Tensor, y: Tensor) -> Tensor:
    x[3:4] = y[0:1]
    x[7:9] = y[1:3]
    return x.sum(1)


def part_changed(x: Tensor, y: Tensor) -> None:
    x[2:5].add_(y[2:5])
    x[0].mul_(2)


def stacked(x: Tensor, y: Tensor) -> Tensor:
    x.view(4, 16, 64)[2, 5:7] = y[:2]
    return x * 1


def old_and_new(x: Tensor, y: Tensor) -> Tensor:
    before = x * 2
    x.add_(y)
    return before


def reduced_before(x: Tensor, y: Tensor) -> Tensor:
    total = x.sum(0)
    x.relu_()
    return total


def exchanged(x: Tensor, y: Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


def kept(x: Tensor, y: Tensor) -> Tensor:
    before = x.clone()
    x.add_(y)
    return before


def shifted(x: Tensor, y: Tensor) -> None:
    x[1:] = x[:-1].clone()


def turned(x: Tensor, y: Tensor) -> None:
    x.copy_(x.t().clone() + y)


def normalized(x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.layer_norm(x.add_(y), (64,))


FORMS: dict[str, tuple[Callable[..., Any], list[str] | None]] = {
    "add_": (lambda x, y: x.add_(y), ["args_0"]),
    "mul_": (lambda x, y: (x.mul_(y), None)[1], ["args_0"]),
    "copy_": (lambda x, y: (x.copy_(y @ y), None)[1], ["args_0"]),
    "product": (lambda x, y: (x.add_(y @ y), None)[1], ["args_0"]),
    "both": (lambda x, y: (x.add_(y), y.add_(x), None)[2], ["args_0", "args_1"]),
    "fill": (lambda x, y: (x[:, 5:9].fill_(3.0), x[2].zero_(), None)[2], None),
    "columns": (lambda x, y: (x[:, 8:16].copy_(y[:, :8]), None)[1], None),
    "steps": (lambda x, y: (x[3::4].copy_(y[:16]), None)[1], None),
    "half": (half_new, ["args_0"]),
    "part": (part_changed, None),
    "stacked": (stacked, None),
    "old": (old_and_new, ["args_0"]),
    "reduced": (reduced_before, ["args_0"]),
    "duplicates": (lambda x, y: (x.index_add_(0, torch.tensor([1, 1, 5]), y[:3].clone()), None)[1], None),
    # What must not be written over itself, or is a tensor of its own.
    "kept": (kept, []),
    "turned": (turned, []),
    "returned": (lambda x, y: (lambda z: (x.copy_(z), z)[1])(x + 1), []),
    "normalized": (normalized, None),
    "shifted": (shifted, None),
    "exchanged": (exchanged, None),
}
"""What is done to x and y, and which of them have to be written where they lie; None where either is right."""


@pytest.mark.rotated(14)
@GPU
@pytest.mark.parametrize("name", FORMS)
def test_values_aliases_and_identity_are_eager_s(name: str, gpu: bool) -> None:
    torch.manual_seed(0)
    function, wanted = FORMS[name]
    x, y = torch.randn(64, 64), torch.randn(64, 64)
    program = compiled(Of(function), (x.clone(), y.clone()), gpu)
    if wanted is not None:
        assert in_place(program) == wanted
    mine, eager = [x, y], [x.clone(), y.clone()]
    for _ in range(3):
        got, want = program(*mine), function(*eager)
        for a, b in zip(mine, eager, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        if isinstance(want, Tensor):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            assert got.stride() == want.stride()
            assert [got is t for t in mine] == [want is t for t in eager]
            before = [t.clone() for t in mine]
            if not any(want is t for t in eager):
                got.fill_(7.0)  # write through: a tensor of its own changes no other
                for a, b in zip(mine, before, strict=True):
                    torch.testing.assert_close(a, b, rtol=0, atol=0)
        else:
            assert got is None


@pytest.mark.rotated(10)
@GPU
@pytest.mark.parametrize("rows", [1, 7, 64, 129, 1000])
@pytest.mark.parametrize("columns", [1, 7, 64])
def test_an_optimizer_s_state(rows: int, columns: int, gpu: bool) -> None:
    torch.manual_seed(0)
    mine = [torch.rand(rows, columns) for _ in range(4)]
    eager = [t.clone() for t in mine]
    program = compiled(Of(adam), [t.clone() for t in mine], gpu)
    for _ in range(3):
        program(*mine)
        adam(*eager)
        for a, b in zip(mine, eager, strict=True):
            torch.testing.assert_close(a, b)
    if (rows, columns) == (1000, 64):
        assert in_place(program) == ["args_0", "args_1", "args_2"]
        modes = {access.tensor: access.mode for access in program.accesses}
        assert modes == {"args_0": "both", "args_1": "both", "args_2": "both", "args_3": "read"}


@GPU
def test_arguments_that_are_not_as_the_program_wants_them_are_copied(gpu: bool) -> None:
    """Strides, alignment, and two arguments in one memory: what is in place then is a copy, and the caller's has its values."""
    program = compiled(Of(lambda x, y: (x.add_(y), None)[1]), (torch.randn(8, 16), torch.randn(8, 16)), gpu)
    assert in_place(program) == ["args_0"]
    turned_, wide = torch.randn(16, 8).t(), torch.randn(8, 32)[:, 3:19]
    late = torch.randn(8 * 16 + 1)[1:].view(8, 16)
    for x in (turned_, wide, late):
        y, before = torch.randn(8, 16), x.clone()
        program(x, y)
        torch.testing.assert_close(x, before + y)
    x = torch.randn(8, 16)
    before = x.clone()
    program(x, x)
    torch.testing.assert_close(x, 2 * before)
    memory = torch.randn(9, 16)
    before = memory.clone()
    program(memory[1:], memory[:8])
    torch.testing.assert_close(memory[1:], before[1:] + before[:8], msg="y is read as it was before the call")
    numpy = torch.randn(8, 16).numpy()
    numpy.flags.writeable = False
    with pytest.raises(ArgumentError, match="args_0"):
        program(numpy, torch.randn(8, 16))


def test_a_buffer_in_another_place_is_kept_in_step() -> None:
    """A buffer that is not aligned is placed apart; a step changes both."""
    model = Cache("index_copy")
    model.k = torch.randn(B * H * S * D + 1)[1:].view(B, H, S, D)
    eager = copy.deepcopy(model)
    program = kitsune_mlir.compile(model, step(), target="host")
    for pos in (1, 2):
        args = step(pos=pos)
        torch.testing.assert_close(program(*args), eager(*args))
        torch.testing.assert_close(model.k, eager.k)
    model.k.zero_()
    eager.k.zero_()
    args = step()
    torch.testing.assert_close(program(*args), eager(*args))


def test_accesses_are_exact_where_loads_are() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x[:16] + 1, y[4:8, :] * w

    program = kitsune_mlir.compile(Of(function), (torch.randn(64, 32), torch.randn(16, 64), torch.randn(64)), target="host")
    found = {access.tensor: (access.offset, access.bytes, access.mode) for access in program.accesses}
    assert found == {
        "args_0": (0, 16 * 32 * 4, "read"),
        "args_1": (4 * 64 * 4, 4 * 64 * 4, "read"),
        "args_2": (0, 64 * 4, "read"),
        "result 0": (0, 16 * 32 * 4, "write"),
        "result 1": (0, 4 * 64 * 4, "write"),
    }


def test_packages_have_them(tmp_path: Path) -> None:
    model = Cache("slice")
    program = kitsune_mlir.compile(model, step(), target="host")
    program.save(tmp_path / "step.kit")
    again = kitsune_mlir.load(tmp_path / "step.kit")
    assert again.accesses == program.accesses
    assert in_place(again) == ["k", "v"]
    args = step()
    torch.testing.assert_close(again(*args), program(*args))
    torch.testing.assert_close(again.weights["k"], model.k)


def test_explain_says_what_is_written_in_place() -> None:
    text = kitsune_mlir.compile(Cache("slice"), step(), target="host").explain()
    assert "Written where they lie: k, v." in text


def test_torch_compile() -> None:
    @torch.compile(backend="kitsune", options={"threads": 1})
    def function(cache: Tensor, new: Tensor, pos: Tensor) -> Tensor:
        cache.index_copy_(0, pos, new)
        return cache.sum(0)

    cache, new, pos = torch.randn(32, 8), torch.randn(1, 8), torch.tensor([3])
    want = cache.clone().index_copy_(0, pos, new)
    place = cache.data_ptr()
    with torch.no_grad():
        out = function(cache, new, pos)
    torch.testing.assert_close(out, want.sum(0))
    torch.testing.assert_close(cache, want)
    assert cache.data_ptr() == place


@pytest.mark.parametrize("name", ["added", "rows", "state"])
def test_emulated_kernels(name: str) -> None:
    """The GPU's code, thread by thread: loads of what is changed are no loads of constants, and nothing is changed twice."""
    torch.manual_seed(0)
    functions: dict[str, Callable[..., Any]] = {
        "added": lambda x, y: (x.add_(y).mul_(2), None)[1],
        "rows": lambda x, y, i: (x.index_add_(0, i, y[:3].clone()), None)[1],
        "state": lambda x, y: (x.mul_(0.5).add_(y), y.add_(x), None)[2],
    }
    args = [torch.randn(60, 33), torch.randn(60, 33), *([torch.tensor([1, 1, 5])] if name == "rows" else [])]
    program = emulated.compiled(functions[name], [t.clone() for t in args])
    changed = in_place(program)
    assert changed
    like = [torch.empty(shape) for shape, _ in program.signature.results]
    found = emulated.emulated(program, args, like, block=AtomicBlock)
    functions[name](*args)
    for output in program.signature.outputs:
        if output.mutates:
            number = [i.name for i in program.signature.inputs].index(output.mutates)
            torch.testing.assert_close(found[output.index or 0], args[number])
