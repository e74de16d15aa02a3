"""Options of `compile`: names and types are checked before any work; messages list what there is."""

from pathlib import Path
from typing import Any

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import ArgumentError
from kitsune_mlir.options import Options, options_of

KNOWN = {"schedule": "separate", "threads": 2, "ptxas_seconds": 5, "tune_seconds": 1.5, "cache": False}
KNOWN |= {"passes": {"kitsune-form-stages": ""}}


def test_known_options_are_taken(tmp_path: Path) -> None:
    for name, value in KNOWN.items():
        assert getattr(options_of({name: value}), name) == value
    assert options_of(None) == options_of({}) == Options()
    assert options_of({"reproducer_dir": False, "cache_dir": tmp_path, "on_phase": print}).cache_dir == tmp_path
    assert options_of({"reproducer_dir": tmp_path, "on_remark": None}).reproducer_dir == tmp_path


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "options are an Options or a mapping from names to values, not 3"),
        ("tune", "options are an Options or a mapping from names to values, not 'tune'"),
        ({"thread": 1}, "unknown option thread; options are threads, debug, "),
        ({"thread": 1, 2: 3}, "unknown options thread, 2; options are threads, debug, "),
        ({"mode": "temporal"}, "option 'mode' is called 'schedule'"),
        ({"schedule": "fast"}, "option 'schedule' is auto or temporal or spatial or separate, not 'fast'"),
        ({"threads": "4"}, "option 'threads' is a whole number or None, not '4'"),
        ({"threads": True}, "option 'threads' is a whole number or None, not True"),
        ({"debug": "yes"}, "option 'debug' is True or False, not 'yes'"),
        ({"deterministic": 1}, "option 'deterministic' is True or False or None, not 1"),
        ({"ptxas_seconds": "long"}, "option 'ptxas_seconds' is a number or None, not 'long'"),
        ({"passes": ["kitsune-form-stages"]}, "option 'passes' is a mapping of texts, not ['kitsune-form-stages']"),
        ({"passes": {"kitsune-form-stages": 3}}, "option 'passes' is a mapping of texts, not {'kitsune-form-stages': 3}"),
        ({"passes": {"form-stages": ""}}, "option 'passes' names form-stages; passes are kitsune-"),
        ({"on_remark": "print"}, "option 'on_remark' is a function or None, not 'print'"),
        ({"reproducer_dir": True}, "option 'reproducer_dir' is a text or a path or False or None, not True"),
        ({"cache_dir": 3}, "option 'cache_dir' is a text or a path or None, not 3"),
    ],
)
def test_what_is_no_option(given: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        kitsune_mlir.compile(torch.nn.ReLU(), (torch.randn(2, 3),), target="host", options=given)
    assert str(caught.value).startswith(words)
