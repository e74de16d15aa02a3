"""Plans after the first one."""

from __future__ import annotations

import torch
from torch import nn

from kitsune_mlir.cheaper_plans import Planning
from kitsune_mlir.dialects import new_context
from kitsune_mlir.frontend import import_model
from kitsune_mlir.machine.target import find_target
from kitsune_mlir.passes.normalize import Normalize
from kitsune_mlir.pipeline import plan


def test_what_stages_are_formed_of_is_found_once_for_all_plans(monkeypatch):
    run, runs = Normalize.run, []
    monkeypatch.setattr(Normalize, "run", lambda self, module: (runs.append(self), run(self, module)) and None)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())
    imported = import_model(model, (torch.randn(256, 64),), context=new_context())
    machine, formed = find_target("sm_90a"), {}
    name = next(one["name"] for one in plan(imported, machine, formed=formed).summary["stages"] if one["ops"]["generic"] > 1)
    cut = Planning("auto", cut=(f"{name}:1",))
    kept = plan(imported, machine, planning=cut, formed=formed)
    assert len(runs) == 1
    anew = plan(imported, machine, planning=cut)
    assert len(runs) == 2 and str(kept.module) == str(anew.module)
    assert str(kept.module) != str(plan(imported, machine, formed=formed).module)
