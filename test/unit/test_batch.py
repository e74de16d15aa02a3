"""`Program.batch`: several calls of a program as one launch, on the host."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError, KitsuneError
from kitsune_mlir.runtime.pieces import pieces_of
from kitsune_mlir.runtime.program import Program
from test.numerics.compare import exact, problem


class Tower(nn.Module):
    """Layers of odd widths with a softmax between: several tasks, intermediates, and waits."""

    def __init__(self, width: int = 37):
        super().__init__()
        self.first, self.second = nn.Linear(width, 129), nn.Linear(129, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.softmax(self.first(x), -1))


class Counter(nn.Module):
    total: Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.total.add_(x)
        y.mul_(2)
        return x @ y.T


class Lookup(nn.Module):
    def forward(self, table: Tensor, index: Tensor) -> Tensor:
        return table[index] + 1


def compiled(model: nn.Module, args: tuple[Any, ...], **options: Any) -> Program:
    return kitsune_mlir.compile(model, args, target="host", options=options)


@pytest.fixture(scope="module")
def models() -> list[Tower]:
    return [Tower() for _ in range(64)]


@pytest.fixture(scope="module", params=[1, 2])
def program(request: pytest.FixtureRequest, models: list[Tower]) -> Program:
    return compiled(models[0], (torch.randn(3, 37),), threads=request.param)


@pytest.mark.rotated(6)
@pytest.mark.parametrize("count", [1, 2, 7, 64])
@pytest.mark.parametrize("own", [False, True])
def test_results_are_those_of_single_calls(program: Program, models: list[Tower], count: int, own: bool):
    programs = [program.with_weights(dict(model.named_parameters())) for model in models[:count]] if own else None
    inputs = [torch.randn(3, 37) for _ in range(count)]
    outputs = program.batch(64)([(x,) for x in inputs], programs)
    for n, (x, y) in enumerate(zip(inputs, outputs, strict=True)):
        model, one = (models[n], programs[n]) if programs else (models[0], program)
        assert problem(y, exact(model, (x,))) is None
        assert torch.equal(y, one(x))


def test_no_weight_is_copied(program: Program, models: list[Tower]):
    model = copy.deepcopy(models[1])
    other, x = program.with_weights(dict(model.named_parameters())), torch.randn(3, 37)
    together = program.batch(2)
    before = together([(x,), (x,)], [program, other])
    with torch.no_grad():
        model.second.bias += 1
    after = together([(x,), (x,)], [program, other])
    assert torch.equal(before[0], after[0]) and torch.allclose(before[1] + 1, after[1])


def test_any_number_after_another(program: Program):
    together = program.batch(9)
    for count in (9, 1, 0, 5, 8, 3):
        inputs = [torch.randn(3, 37) for _ in range(count)]
        outputs = together([(x,) for x in inputs])
        assert len(outputs) == count
        assert all(torch.equal(y, program(x)) for x, y in zip(inputs, outputs, strict=True))


def test_batches_of_several_threads(program: Program):
    together, failures = program.batch(8), []

    def caller() -> None:
        for _ in range(20):
            inputs = [torch.randn(3, 37) for _ in range(5)]
            outputs = together([(x,) for x in inputs])
            if not all(torch.equal(y, program(x)) for x, y in zip(inputs, outputs, strict=True)):
                failures.append(inputs)

    threads = [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_arguments_are_converted_as_in_a_call(program: Program):
    strided, odd = torch.randn(37, 3).T, torch.randn(3 * 37 + 1)[1:].view(3, 37)
    outputs = program.batch(3)([(strided,), (odd,), ()], kwargs=[{}, {}, {"x": odd}])
    assert torch.equal(outputs[0], program(strided)) and torch.equal(outputs[1], program(odd))
    assert torch.equal(outputs[2], outputs[1])


def test_results_in_place():
    models = [Counter() for _ in range(3)]
    program = compiled(models[0], (torch.randn(3, 4), torch.randn(5, 4)))
    programs = [program.with_weights({"total": model.total}) for model in models]
    pairs = [(torch.randn(3, 4), torch.randn(5, 4)) for _ in models]
    wanted = [(x @ (2 * y).T, 2 * y) for x, y in pairs]
    for round in (1, 2):
        versions = [model.total._version for model in models]
        outputs = program.batch(3)([(x, y.clone()) for x, y in pairs], programs)
        for model, (x, _), output, (result, _), version in zip(models, pairs, outputs, wanted, versions, strict=True):
            assert torch.allclose(output, result, atol=1e-5) and torch.allclose(model.total, round * x)
            assert model.total._version > version
    y = torch.randn(5, 4)
    with pytest.raises(ArgumentError, match=r"request 2: weight 'total' shares memory with weight 'total' of request 0"):
        program.batch(3)([(x, y.clone()) for x, y in pairs], [programs[0], programs[1], programs[0]])
    with pytest.raises(ArgumentError, match=r"request 1: input 'x' shares memory with weight 'total' of request 0"):
        program.batch(3)([(pairs[0][0], y), (models[0].total, y.clone())], programs[:2])
    outputs = program.batch(3)([(x, y) for x, _ in pairs[:2]], programs[:2], return_exceptions=True)
    assert isinstance(outputs[0], Tensor) and "shares memory with input 'y' of request 0" in str(outputs[1])


def test_errors_name_request_and_argument(program: Program, models: list[Tower]):
    together, x = program.batch(2), torch.randn(3, 37)
    with pytest.raises(ArgumentError, match="3 requests were given; the batch takes at most 2"):
        together([(x,)] * 3)
    with pytest.raises(ArgumentError, match=r"request 1: input 'x' has shape \[3, 36\], compiled for \[3, 37\]"):
        together([(x,), (torch.randn(3, 36),)])
    with pytest.raises(ArgumentError, match="request 0: .*float64"):
        together([(x.double(),), (x,)])
    with pytest.raises(ArgumentError, match="1 programs were given for 2 requests"):
        together([(x,), (x,)], [program])
    with pytest.raises(ArgumentError, match="request 1: .* has other code"):
        together([(x,), (x,)], [program, compiled(Tower(37).double(), (x.double(),))])
    with pytest.raises(ArgumentError, match="its arguments are a generator"):
        together([(x for _ in range(1))])  # type: ignore[list-item]
    for limit in (0, -1, 2.0, True):
        with pytest.raises(ArgumentError, match="at least 1 request"):
            program.batch(limit)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="compiled for at most"):
        program.batch(1 << 40)


def test_an_error_of_one_request_leaves_the_others_alone():
    program = compiled(Lookup(), (torch.randn(10, 4), torch.tensor([1, 2, 3])))
    tables = [torch.randn(10, 4) for _ in range(5)]
    indices = [torch.tensor([n, 9 if n != 2 else 11, 0]) for n in range(5)]
    requests = list(zip(tables, indices, strict=True))
    with pytest.raises(KitsuneError, match="request 2: .*index"):
        program.batch(5)(requests)
    outputs = program.batch(6)([*requests, (tables[0], tables[1])], return_exceptions=True)
    assert isinstance(outputs[2], KitsuneError) and isinstance(outputs[5], ArgumentError)
    for n in (0, 1, 3, 4):
        assert torch.equal(outputs[n], tables[n][indices[n]] + 1)


def test_a_stored_program_takes_batches(tmp_path, models: list[Tower], program: Program):
    program.save(tmp_path / "tower.kit")
    loaded = kitsune_mlir.load(tmp_path / "tower.kit")
    inputs = [torch.randn(3, 37) for _ in range(3)]
    outputs = loaded.batch(3)([(x,) for x in inputs])
    assert all(problem(y, exact(models[0], (x,))) is None for x, y in zip(inputs, outputs, strict=True))


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.layer(x)
        return y, y > 0, y.sum().double(), y.T.contiguous().half()


def test_results_of_several_calls_in_one_piece_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: they are what results are elsewhere, but for the memory that they share."""
    model = Several().eval()
    program = compiled(model, (torch.randn(5, 7),))
    call = program.direct
    assert call is not None and call._pieces is None  # allocating is cheap on the host
    monkeypatch.setattr(call, "_pieces", pieces_of(call.results))
    together, inputs = program.batch(64), [torch.randn(5, 7) for _ in range(9)]
    outputs = together([(x,) for x in inputs])
    for x, output in zip(inputs, outputs, strict=True):
        for found, wanted in zip(output, model(x), strict=True):
            assert not problem(found, wanted.detach(), limit=1e-3)  # half the digits of the f16 one
            assert found.stride() == wanted.stride() and not found._is_view() and found.data_ptr() % 16 == 0
    assert len({output[0].untyped_storage().data_ptr() for output in outputs}) == 1
    outputs[0][0].fill_(7)
    assert outputs[1][0]._version == 0 and not (outputs[1][0] == 7).all()
    assert pieces_of([((1 << 20,), (1,), torch.float32)]) is None  # that would keep too much
