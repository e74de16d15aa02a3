"""The measurement of compile time, and the models that it is made on."""

import json
import sys

import pytest
import torch

from bench import compile_time
from bench.case import BenchCase
from bench.compile_time import measured, table
from bench.whole_models import MODELS, Bert, Gpt2, ResNet, ViT


def test_a_small_case_is_measured():
    cold, kept = measured("small_layers", "host")
    assert {"plan", "lower", "codegen"} <= set(cold) and not {"plan", "lower", "codegen"} & set(kept)  # found
    assert cold["processor"] > kept["processor"] > 0
    *_, row = table([("small_layers", cold, kept)]).splitlines()
    assert row.startswith("| small_layers | 1 |")


def test_cases_are_written_to_a_file_and_missing_libraries_are_told(tmp_path, monkeypatch, capsys):
    spent = dict.fromkeys(("wall", "processor", *compile_time.PHASES), 1.0) | {"launches": 3, "kernels": 2}
    asked = []
    monkeypatch.setattr(compile_time, "measured", lambda case, target: (asked.append(case), (spent, spent))[1])
    monkeypatch.setattr(BenchCase, "missing", "timm")
    path = tmp_path / "times.json"
    monkeypatch.setattr(sys, "argv", ["compile_time", "small_layers", compile_time.OF_LIBRARY, "--json", str(path)])
    compile_time.main()
    assert asked == ["small_layers"] and json.loads(path.read_text())["cases"] == {
        "small_layers": {"cold": spent, "cached": spent}
    }
    assert f"{compile_time.OF_LIBRARY}: missing: timm" in capsys.readouterr().err


@pytest.mark.parametrize(
    "model, args, shape",
    [
        (Bert(2, 32, 2, words=50, positions=16), (torch.ones(3, 9).long(),) * 2 + (torch.ones(3, 9) > 0,), (3, 9, 32)),
        (Gpt2(2, 32, 2, words=50, positions=16), (torch.ones(3, 9).long(),), (3, 9, 50)),
        (ViT(2, 32, 2, size=32, patch=8, classes=10), (torch.randn(3, 3, 32, 32),), (3, 10)),
        (ResNet([1, 2], classes=10), (torch.randn(3, 3, 32, 32),), (3, 10)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_have_the_shapes_of_their_papers(model, args, shape):
    found = model.eval()(*args)
    assert (found[0] if isinstance(found, tuple) else found).shape == shape


def test_sizes_are_the_published_ones():
    sizes = {name: sum(p.numel() for p in MODELS[name]()[0].parameters()) / 1e6 for name in ("bert_base", "vit_s", "resnet50")}
    assert {name: round(size) for name, size in sizes.items()} == {"bert_base": 109, "vit_s": 22, "resnet50": 26}
