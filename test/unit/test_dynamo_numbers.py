"""torch.compile(backend="kitsune") with integers that change from call to call: as indices, starts, lengths and factors."""

import pytest
import torch
import torch.nn.functional as F

FROM_FRONT, FROM_END = (2, 3, 4, 1), (2, -1, -3, -2)


def put_row(x, n):
    x = x.clone()
    x[n] = -1.0
    return x


def put_column(x, n):
    x = x.clone()
    x[:, n] = 3 * x[:, 0]
    return x


def put_rows(x, n):
    x = x.clone()
    x[n : n + 2] = 5.0
    return x


CASES = {
    "put a row": (put_row, FROM_FRONT),
    "put a row from the end": (put_row, FROM_END),
    "put a column from the end": (put_column, FROM_END),
    "put rows": (put_rows, FROM_FRONT),
    "take a row from the end": (lambda x, n: x[n] * 2, FROM_END),
    "take two elements": (lambda x, n: x.view(-1)[n * 2] + x.view(-1)[-n], FROM_FRONT),
    "rows from a number on": (lambda x, n: x[n:] * 2, FROM_END),
    "as many rows, from a number on": (lambda x, n: x[n : n + 3] * 2, FROM_FRONT),
    "narrow": (lambda x, n: torch.narrow(x, 0, n, 2) * 2, FROM_FRONT),
    "split": (lambda x, n: [part * 2 for part in x.split(n)], FROM_FRONT),
    "slice_scatter": (lambda x, n: torch.slice_scatter(x, torch.ones(1, 5), 0, n, n + 1), FROM_FRONT),
    "as_strided": (lambda x, n: torch.as_strided(x.clone(), (2, 2), (n, 1), n) * 2, FROM_FRONT),
    "roll": (lambda x, n: torch.roll(x, n, 0) + 1, FROM_END),
    "addmm": (lambda x, n: torch.addmm(x[:5], x[:5], x[:5], beta=n, alpha=n + 1), FROM_FRONT),
    "pad": (lambda x, n: F.pad(x, (1, n % 3, 0, 2)) * 2, FROM_FRONT),
    "pool": (lambda x, n: F.avg_pool1d(x[None], n), FROM_FRONT),
    "resize": (lambda x, n: F.interpolate(x[None], size=n, mode="linear"), FROM_FRONT),
}


@pytest.mark.rotated(4)
@pytest.mark.parametrize("name", CASES)
def test_numbers(name, recwarn):
    function, numbers = CASES[name]
    torch.compiler.reset()
    compiled = torch.compile(function, backend="kitsune", fullgraph=True)
    x = torch.randn(7, 5)
    for n in numbers:
        wanted, given = function(x, n), compiled(x, n)
        torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)
    assert not [warning for warning in recwarn if str(warning.message).startswith("kitsune")], "a graph runs in PyTorch"
