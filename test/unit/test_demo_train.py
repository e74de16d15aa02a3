"""`make demo-train` at a tiny size, and the scene that it trains on."""

from pathlib import Path

import pytest
import torch

from bench.demo_train import main
from bench.radiance import RadianceField, camera, composite, scene, seen


def test_the_demo_trains_and_writes_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    assert main(["--size", "tiny", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "step graph" in said and "1 program" in said and "30 steps" in said
    first, last = (float(x) for x in said.split("loss ")[-1].split("\n")[0].split(" -> "))
    assert last < 0.8 * first
    for name in ("train-loss.png", "train-picture.png"):
        height, width, _ = pyplot.imread(tmp_path / name).shape
        assert height > 300 and width > 600


def test_rays_see_what_is_in_front_of_them():
    origins, directions = camera(0.0, 9, torch.device("cpu"))
    assert torch.allclose(directions.norm(dim=1), torch.ones(81), atol=1e-6)
    colours = seen(origins, directions).reshape(9, 9, 3)
    assert (colours[0] > 0.95).all()  # white above
    assert colours[4, 4].min() < 0.7  # a ball in the middle
    rgb, density = scene(torch.tensor([[-0.45, -0.25, 0.1], [0.0, 0.0, 2.0]]))
    assert density[0] > 20 and density[1] < 1e-3 and rgb[0].argmax() == 0


def test_compositing_is_that_of_layers_one_behind_the_other():
    colours, densities = torch.rand(3, 5, 3, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64)
    wanted, left = torch.zeros(3, 3, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)
    for n in range(5):
        opacity = 1 - torch.exp(-0.3 * densities[:, n : n + 1])
        wanted, left = wanted + left * opacity * colours[:, n], left * (1 - opacity)
    assert torch.allclose(composite(colours, densities, 0.3), wanted + left)
    field = RadianceField(8, 5, 2)
    made = field(torch.rand(3, 3), torch.rand(3, 3), torch.rand(3, 5))
    assert made.shape == (3, 3) and (made >= 0).all() and (made <= 1).all()
