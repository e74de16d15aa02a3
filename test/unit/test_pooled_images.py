"""Pooling of images in either order of memory: one stage, cut along the image, wide accesses."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kitsune_mlir
from kitsune_mlir.dynamo.backend import compiled_graph
from kitsune_mlir.dynamo.graph_options import options_of_backend
from kitsune_mlir.dynamo.report import GraphReport

LAST = torch.channels_last


def compiled(model, x, target="sm_90a"):
    return kitsune_mlir.compile(model, (x,), target=target)


@pytest.mark.rotated(4)
@pytest.mark.parametrize(
    "model",
    [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(2), nn.MaxPool2d(2, dilation=2), nn.AdaptiveAvgPool2d(1)],
    ids=["max", "average", "windows apart", "dilated", "global"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_stage_that_reads_channels_last_images_as_they_are(model, dtype):
    """Padding and widening are no stages of their own, and no image changes its order."""
    x = torch.randn(8, 64, 57, 57, dtype=dtype).contiguous(memory_format=LAST)
    program = compiled(model, x)
    (choice,) = program.summary["engines"]
    assert choice["engine"] == "simt" and choice["tiles"] >= 8
    assert choice["parameters"]["width"] == 16 // dtype.itemsize
    assert program.signature.inputs[0].order == (0, 2, 3, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_windows_are_cut_along_the_image(dtype):
    """One image of one channel has several tiles."""
    program = compiled(nn.MaxPool2d(3, 2, 1), torch.randn(1, 1, 1024, 1024, dtype=dtype))
    (choice,) = program.summary["engines"]
    assert choice["tiles"] > 32


@pytest.mark.rotated(3)
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
@pytest.mark.parametrize(
    "model",
    [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(3)],
    ids=["max", "average", "global", "to three"],
)
def test_right_on_the_host(model, layout):
    x = torch.randn(2, 5, 13, 11).contiguous(memory_format=layout)
    torch.testing.assert_close(compiled(model, x, "host")(x), model(x))


def test_a_restatement_of_a_tensor_is_no_gather():
    """Pooling a channels-last image to one pixel exports an `as_strided` that changes nothing but a stride of one element."""
    x = torch.randn(4, 16, 7, 7).contiguous(memory_format=LAST)
    assert not compiled(nn.AdaptiveAvgPool2d(1), x).signature.weights


def test_another_view_is_still_one():
    x = torch.arange(12.0).reshape(3, 4)

    class Diagonals(nn.Module):
        def forward(self, x):
            return torch.as_strided(x, (3, 4), (1, 2)) * 2

    torch.testing.assert_close(compiled(Diagonals(), x, "host")(x), Diagonals()(x))


def test_its_gradient_is_no_scatter():
    """The gradient of that `as_strided` writes through one into zeros."""
    x = torch.randn(4, 16, 7, 7).contiguous(memory_format=LAST).requires_grad_()
    seen: list[GraphReport] = []

    @torch.compile(backend=lambda gm, x: compiled_graph(gm, x, *options_of_backend(None, {"threads": 1}), keep=seen.append))
    def step(x):
        return (F.adaptive_avg_pool2d(x, 1) ** 2).sum()

    (found,) = torch.autograd.grad(step(x), x)
    (expected,) = torch.autograd.grad((F.adaptive_avg_pool2d(x, 1) ** 2).sum(), x)
    torch.testing.assert_close(found, expected)
    assert not [island for report in seen for island in report.islands]


UNEQUAL = {
    "means": (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), (2, 3, 13, 11)),
    "means, more than there are": (lambda x: F.adaptive_avg_pool2d(x, (9, 7)), (1, 1, 5, 4)),
    "means of volumes": (lambda x: F.adaptive_avg_pool3d(x, (4, 4, 3)), (2, 3, 7, 6, 5)),
    "maxima": (lambda x: F.adaptive_max_pool2d(x, (4, 3)), (2, 3, 13, 11)),
    "maxima of volumes": (lambda x: F.max_pool3d(x, 3, 2, 1), (2, 3, 7, 6, 5)),
    "maxima of volumes, dilated": (lambda x: F.max_pool3d(x, 2, (1, 2, 1), dilation=(2, 1, 1)), (2, 7, 6, 5)),
    "a window over most of a small image": (lambda x: F.max_pool2d(x, 7, 1, 3), (2, 3, 13, 11)),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_windows_of_small_images_are_one_launch(name):
    """They are read where they lie: tables of places are no stages, and no hand-off is between two directions."""
    pool, shape = UNEQUAL[name]
    x = torch.randn(shape)
    program = compiled(pool, x)
    assert len(program.summary["stages"]) == 1 and program.summary["engines"][0]["engine"] == "simt"
    torch.testing.assert_close(compiled(pool, x, "host")(x).double(), pool(x.double()), rtol=1e-6, atol=1e-6)
