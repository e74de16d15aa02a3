"""The primitive cases, built and run on this machine's GPU (`primitives_check.py` does both by halves on two machines)."""

from __future__ import annotations

import pytest
import torch

from test.gpu import primitives_check


@pytest.mark.gpu
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs a Hopper GPU")
def test_primitives(tmp_path, capfd):
    assert primitives_check.build(tmp_path, "") == 0
    failed = primitives_check.run(tmp_path, "", 60.0)
    assert failed == 0, capfd.readouterr().out
