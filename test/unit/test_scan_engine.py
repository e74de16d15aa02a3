"""The scan engine: which scans it takes, and its kernels on emulated blocks."""

import pytest
import torch

from test.programs.emulated import compiled, emulated, engines

BF16, F32, F64, I64 = torch.bfloat16, torch.float32, torch.float64, torch.int64


def numbers(shape, dtype):
    torch.manual_seed(0)
    if not dtype.is_floating_point:
        return torch.randint(-99, 99, shape).to(dtype)
    return torch.randn(shape, dtype=F64).to(dtype)


def check(function, x, blocks=3, **options):
    """The kernel's results beside torch's in float64."""
    program = compiled(function, [x], **options)
    assert engines(program) == ["scan"]
    like = function(x)
    want = function(x.double()) if x.dtype.is_floating_point else like
    (found,) = emulated(program, [x], [like], blocks)
    limit = {BF16: 4e-3, F32: 1e-6, F64: 1e-14}.get(x.dtype, 0.0)
    error = float((found.double() - want.double()).norm() / want.double().norm().clamp(min=1e-30))
    assert error <= limit, error
    return program


@pytest.mark.rotated(10)
@pytest.mark.parametrize("dtype", [F32, BF16, I64])
@pytest.mark.parametrize(
    "shape, dim",
    [
        ((40, 13), 1),
        ((7, 2), 1),
        ((3, 129), 1),
        ((2, 1000), 1),
        ((5, 4100), 1),
        ((1000,), 0),
        ((3, 40, 65), 1),
        ((70, 33), 0),
        ((6, 5, 3), 0),
        ((2, 3, 20, 5), 2),
    ],
)
def test_sums_along_a_dimension(shape, dim, dtype):
    check(lambda x: x.cumsum(dim), numbers(shape, dtype))


@pytest.mark.parametrize("shape, dim", [((20011,), 0), ((2, 9000), 1), ((3001, 4), 0), ((1, 30000), 1)])
def test_blocks_share_long_lines(shape, dim):
    """Each takes a chunk after the other, and adds what those between them give."""
    x = numbers(shape, F32)
    program = check(lambda x: x.cumsum(dim), x, 4)
    assert program.summary["engines"][0]["pieces"] > 1


@pytest.mark.rotated(3)
@pytest.mark.parametrize("dtype", [F32, BF16, I64])
@pytest.mark.parametrize("blocks", [1, 3, 8])
def test_blocks_go_on_from_their_last_chunk(dtype, blocks):
    """Of two lines: what a block knows of one is not for the other."""
    program = check(lambda x: x.cumsum(1), numbers((2, 30011), dtype), blocks)
    assert program.summary["engines"][0]["pieces"] > 3


@pytest.mark.parametrize("blocks", [1, 3])
def test_other_stages_wait_for_all_chunks(blocks):
    x = numbers((30011,), I64)
    program = compiled(lambda x: x.cumsum(0).flip(0).cumsum(0), [x])
    assert engines(program)[0] == "scan" and len(engines(program)) > 1
    want = x.cumsum(0).flip(0).cumsum(0)
    (found,) = emulated(program, [x], [want], blocks)
    assert torch.equal(found, want)


def test_flags_are_counted():
    check(lambda x: x.cumsum(1), torch.rand(3, 4100) < 0.5)


def test_products():
    check(lambda x: x.cumprod(1), numbers((20, 77), F32) * 0.1 + 1)


@pytest.mark.parametrize("shape, dim", [((7, 1), 1), ((3, 129), 1), ((5, 1000), 1), ((70, 33), 0), ((1, 30000), 1)])
def test_logarithms_of_sums_are_scanned_by_the_operations_own_body(shape, dim):
    x = 5 * numbers(shape, F32)
    x[..., 0] = float("-inf")
    x[0, -1] = 200.0
    program = compiled(lambda x: x.logcumsumexp(dim), [x])
    assert engines(program) == ["scan"]
    (found,) = emulated(program, [x], [x], 4)
    torch.testing.assert_close(found.double(), x.double().logcumsumexp(dim), rtol=2e-6, atol=2e-6)


def test_maps_before_and_after_are_done_on_the_way():
    """One of them reads a vector for all rows, one turns its operand."""
    scale = torch.rand(100)
    other = torch.randn(100, 30)

    def model(x, scale, other):
        return (x * scale).exp().cumsum(1) * 0.5 + other.t()

    x = torch.randn(30, 100)
    program = compiled(model, [x, scale, other])
    assert engines(program) == ["scan"]
    want = model(x.double(), scale.double(), other.double())
    (found,) = emulated(program, [x, scale, other], [model(x, scale, other)])
    assert float((found - want).norm() / want.norm()) < 1e-6


def test_what_it_does_not_do_on_the_way_has_stages_of_its_own():
    program = compiled(lambda x: x.softmax(1).cumsum(1), [torch.randn(300, 500)])
    assert engines(program) == ["simt", "scan"]


def test_operands_of_a_scan_are_made_on_the_way():
    """A product of a row's and a column's numbers, which is as large as the scan, is in no memory; sums are rounded at once."""
    torch.manual_seed(0)
    x, y, z = (torch.randn(shape).bfloat16() for shape in ((3, 40), (7, 16), (3, 40, 7, 16)))

    def function(x, y, z):
        sums = torch.cumsum(x.exp()[:, :, None, None] * y, 1)
        return (sums * z).sum(-1), x.exp()

    program = compiled(function, [x, y, z])
    (scan,) = (stage for stage in program.summary["stages"] if stage["engine"] == "scan")
    assert scan["ops"]["generic"] >= 2, "its operand's product"
    exact = function(x.double(), y.double(), z.double())
    own = function(x, y, z)
    for found, plain, want in zip(emulated(program, [x, y, z], list(own)), own, exact, strict=True):
        assert (found.double() - want).norm() <= 2 * (plain.double() - want).norm() + 1e-6 * want.norm()
