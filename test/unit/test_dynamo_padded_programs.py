"""Which programs are made for a graph whose sizes change, and that each size is right in them."""

import functools
import random

import pytest
import torch
import torch.nn.functional as F

from kitsune_mlir.dynamo import shapes
from kitsune_mlir.dynamo.graph_options import GraphOptions
from kitsune_mlir.errors import ArgumentError
from test.programs.watched import Watched, same

pytestmark = pytest.mark.usefixtures("drawn_today")
R = torch.randn
W = R(7, 5)


def mlp(x):
    return F.layer_norm(torch.relu(x @ W), (5,))


def several(x):
    return x + 1, x.sum(1), torch.relu(x).t(), x.shape[0] * 2


def test_few_programs():
    torch._dynamo.reset()
    backend = Watched()
    compiled = torch.compile(mlp, backend=backend)
    x = R(2, 7)
    torch._dynamo.mark_dynamic(x, 0)
    compiled(x)
    for n in random.sample(range(2, 4097), 200):
        compiled(R(n, 7))
    assert len(backend.made) <= 3, backend.made


def test_a_batch_is_padded_at_once():
    """With `dynamic=True` other sizes are taken for what they are until they have changed; rows of all results are not."""
    torch._dynamo.reset()
    backend = Watched()

    def function(x):
        return torch.softmax(torch.relu(x @ W), 1)

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for n in (50, 9, 60):  # sizes that are equal in the first call are one to PyTorch
        same(compiled(x := R(n, 6, 7)), function(x))
    assert len(backend.made) == 1 and "size()[0] ≤" in backend.made[0] and "size()[1] = 6" in backend.made[0]
    same(compiled(x := R(9, 8, 7)), function(x))
    assert len(backend.made) == 2 and "size()[1] ≤" in backend.made[1]
    torch._dynamo.reset()
    backend = Watched()

    def apart(x, y):
        return torch.softmax(x, 0).sum(1) + y.sum()

    compiled = torch.compile(apart, backend=backend, dynamic=True)
    same(compiled(x := R(9, 7), y := R(4)), apart(x, y))  # nothing that is computed has rows of y
    (made,) = backend.made
    assert made.count("≤") == 1 and "size()[1] = 7" in made and "size()[0] = 4" in made


def test_programs_for_a_gpu_that_is_not_here(monkeypatch):
    """They have the variants for fewer rows that programs have where the GPU is."""
    torch._dynamo.reset()
    monkeypatch.setattr(shapes, "Specialized", functools.partial(shapes.Specialized, on_gpu=True))
    backend, x = Watched(), R(300, 7)
    same(torch.compile(lambda x: torch.relu(x @ W), backend=backend, dynamic=True)(x), torch.relu(x @ W))
    assert len(backend.made) > 4


def test_zero_and_one_rows():
    torch._dynamo.reset()
    compiled = torch.compile(several, backend=Watched(), dynamic=True)
    for n in (5, 0, 1, 8):
        x = R(n, 7)
        same(compiled(x), several(x))


def test_options():
    torch._dynamo.reset()
    backend = Watched(buckets=(10, 100))
    compiled = torch.compile(mlp, backend=backend)
    for n in (5, 50, 7):
        torch._dynamo.mark_dynamic(x := R(n, 7), 0)
        compiled(x)
    assert [made.partition("≤ ")[2] for made in backend.made] == ["10", "100"]
    torch._dynamo.reset()
    backend = Watched(pad_rows=False)
    compiled = torch.compile(mlp, backend=backend, dynamic=True)
    for n in range(8, 18):
        same(compiled(x := R(n, 7)), mlp(x))
    assert len(backend.made) == 8 and all("pad_rows" in made for made in backend.made)
    with pytest.raises(ArgumentError, match="bucket_growth"):
        GraphOptions(bucket_growth=1.0)
    with pytest.raises(ArgumentError, match="buckets"):
        GraphOptions(buckets=(0,))
