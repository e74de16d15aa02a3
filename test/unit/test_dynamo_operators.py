"""Operators in forms that PyTorch's own tests call them in, through torch.compile: values, strides and types as eager's."""

import pytest
import torch
import torch.nn.functional as F

import kitsune_mlir

aten, R = torch.ops.aten, torch.randn


def strided(x, stride):
    out = torch.empty_strided(x.shape, stride)
    out[:] = x + x
    return out


def new_strided(x):
    return x.new_empty_strided(x.shape, (1, 33), dtype=torch.bool).copy_(x > 0)


def masked(x):
    mask = x > 0
    y = x.clone()
    y[mask] = x.flip(0)[mask]
    return y * 2


CASES = {
    "pooling with one number for all dimensions": lambda x: aten.max_pool2d_with_indices(x.view(1, 1, 8, 8), [3], [2], [1]),
    "pooling volumes so": lambda x: aten.max_pool3d_with_indices(x.view(1, 1, 4, 4, 4), [2], [1], [1], ceil_mode=True),
    "pooling to nothing": lambda x: F.adaptive_avg_pool2d(x.view(1, 1, 8, 8), 0) * 2,
    "a view of a convolution of volumes": lambda x: F.conv3d(x.view(1, 2, 4, 4, 2), x[:4].view(2, 2, 2, 2, 2)).view(1, -1) * 2,
    "a view of one of patches": lambda x: F.conv2d(x.view(1, 1, 8, 8), x[:1].view(2, 1, 2, 2), stride=2).view(1, -1),
    "a tensor with strides of its own": lambda x: strided(x, (20, 1)),
    "one in another order": new_strided,
    "values through a mask": masked,
    "as many as there are": lambda x: torch.nonzero(x > 0).sum(0) + 1,
    "sizes of data around islands": lambda x: torch.nonzero(torch.relu(x * 2) + x > 0) * 2 + 1,
}


@pytest.mark.rotated(7)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gradients", [False, True])
def test_as_eager(name, gradients, recwarn):
    torch.compiler.reset()
    x = R(8, 8, requires_grad=gradients)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        given = torch.compile(CASES[name], backend="kitsune", fullgraph=name != "values through a mask")(x)
    torch.testing.assert_close(given, CASES[name](x), check_stride=True)
    assert not [warning for warning in recwarn if str(warning.message).startswith("kitsune")], "a graph runs in PyTorch"


def test_what_a_bag_of_embeddings_notes_is_eager_s():
    def bags(x):
        return aten._embedding_bag(x, torch.tensor([1, 5, 1, 0]), torch.tensor([0, 3]))

    x = R(8, 8)
    torch.testing.assert_close(torch.compile(bags, backend="kitsune")(x), bags(x), check_stride=True)


@pytest.mark.parametrize("exponent", [5, 37, 1000, -11])
def test_powers_of_whole_numbers(exponent):
    x = 1 + 0.02 * R(500).clamp(-4, 4)  # further from 1 some powers have few digits in f32
    program = kitsune_mlir.compile(lambda x: torch.pow(x, exponent), (x,), target="host")
    exact = x.double() ** exponent
    assert ((program(x) - exact).abs() / exact).max() < 2e-7


def test_long_sums_are_added_up_in_parts():
    a, b = R(64, 6000), R(6000, 64)
    exact = a.double() @ b.double()
    error = (kitsune_mlir.compile(torch.mm, (a, b), target="host")(a, b) - exact).square().mean().sqrt()
    assert error < 5e-5


@pytest.mark.parametrize("slopes", [(0.2, 0.2), (0.1, 0.3)])
def test_gradients_of_slopes_that_are_drawn(slopes):
    torch.compiler.reset()
    x, weight, found = R(9, 7), R(9, 7), []
    for call in (lambda t: F.rrelu(t * 2, *slopes, training=True), None):
        call = call or torch.compile(lambda t: F.rrelu(t * 2, *slopes, training=True), backend="kitsune")
        given = x.clone().requires_grad_()
        torch.manual_seed(5)
        (call(given) * weight).sum().backward()
        found.append(given.grad)
    torch.testing.assert_close(found[1], found[0])
