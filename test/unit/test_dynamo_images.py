"""Images whose height and width change: a program for each size of them, whatever the number of images."""

import pytest
import torch
from torch import nn
from torch.export import Dim

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.frontend.rows.node import WITHIN_SAMPLES
from test.programs.watched import Watched

R = torch.randn


class Net(nn.Module):
    """Convolution, norm, pooling (for which torch.export of 2.11 asks for even sizes), and a mean over an image."""

    def __init__(self, pools=True):
        super().__init__()
        self.pools = pools
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()

    def forward(self, image):
        found = torch.relu(self.norm(self.conv(image)))
        return (nn.functional.max_pool2d(found, 2) if self.pools else found).mean((2, 3))


@torch.no_grad()
def right(function, model, n, h, w):
    image = R(n, 3, h, w)
    got, want = function(image), model(image)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_number_height_and_width_through_torch_compile():
    model, watched = Net().eval(), Watched()
    torch._dynamo.reset()
    fast = torch.compile(model, backend=watched, dynamic=True)
    for n, h, w in ((2, 16, 16), (3, 20, 24), (7, 20, 24), (33, 20, 24), (5, 7, 9), (129, 7, 9), (2, 20, 24)):
        right(fast, model, n, h, w)
    assert all(WITHIN_SAMPLES in words for words in watched.made), watched.made
    of_one_size = [words for words in watched.made if "[2] = 20, " in words and "[3] = 24" in words]
    assert len(of_one_size) <= 2 and any("[0] ≤" in words for words in of_one_size), watched.made
    assert len(watched.made) <= 6, "numbers of images share programs"


def test_height_and_width_of_one_program(tmp_path):
    model = Net(pools=False).eval()
    sizes = {0: Dim("n", max=64), 2: Dim("h", min=7, max=512), 3: Dim("w", min=7, max=512)}
    program = kitsune_mlir.compile(model, (R(2, 3, 16, 12),), dynamic={"image": sizes})
    for n, h, w in ((2, 16, 12), (40, 16, 12), (3, 7, 129), (1, 7, 129)):
        right(program, model, n, h, w)
    assert WITHIN_SAMPLES in program.explain()
    assert len(program.programs) <= 4, [words for words, _ in program.compiled.programs()]
    program.save(tmp_path / "images.kit", ir=False)
    loaded = kitsune_mlir.load(tmp_path / "images.kit")
    right(loaded, model, 5, 7, 129)
    with pytest.raises(ArgumentError, match="no program for n = 2, h = 9, w = 9"):
        loaded(R(2, 3, 9, 9))
