"""Every pass has lit tests: each of its options, what it must leave alone, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kitsune_mlir.passes.registry import PASSES
from kitsune_mlir.passmanager.options import options_of

TEXTS = {path: path.read_text() for path in (Path(__file__).parents[1] / "lit").rglob("*.mlir")}


def runs(name: str) -> dict[Path, str]:
    """The RUN and DEFINE lines of the files that run a pass, with everything that belongs to it."""
    found = {}
    for path, text in TEXTS.items():
        lines = "\n".join(line for line in text.splitlines() if re.match(r"// (RUN|DEFINE):", line))
        if re.search(rf"{name}\b", lines):
            found[path] = lines
    return found


@pytest.mark.parametrize("name", PASSES)
def test_every_option_is_used(name: str) -> None:
    lines = "\n".join(runs(name).values())
    for option in options_of(PASSES[name]):
        written = option.name.replace("-", "[-_]")
        # `--target` of the tool is the option of every pass that has one.
        given = rf"{name}\S*?[={{\"' ](\S+ )*?{written}\b" if option.name != "target" else r"target[= ]"
        assert re.search(given, lines), f"no lit test of {name} gives '{option.name}'"


@pytest.mark.parametrize("name", PASSES)
def test_something_is_left_alone_or_refused(name: str) -> None:
    texts = [TEXTS[path] for path in runs(name)]
    assert any(re.search(r"-NOT:|expected-error|RUN: not kitsune-opt", text) for text in texts), name
