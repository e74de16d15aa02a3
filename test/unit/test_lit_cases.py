"""Every pass has lit tests: each of its options, what it must leave alone, and what it refuses."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kitsune_mlir.passes.registry import PASSES
from kitsune_mlir.passmanager.options import options_of
from kitsune_mlir.tools import kitsune_opt

TEXTS = {path: path.read_text() for path in (Path(__file__).parents[1] / "lit").rglob("*.mlir")}

CHECKS = ("kitsune-check-progress",)
"""Passes that never change anything."""


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


def dumps(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """The IR before a pass and after it, or "" where it refused, for each case of a lit file that gets to it."""
    lines = runs(name)[path].replace("\\\n// RUN:", "").splitlines()
    defined = dict(re.findall(r"DEFINE: (%\{\w+\}) *= *(.*)", "\n".join(lines)))
    for line in lines:
        for macro, text in defined.items():
            line = line.replace(macro, text)
        if not re.search(rf"RUN: (not )?kitsune-opt .*{name}\b", line):
            continue
        command = line.partition("kitsune-opt ")[2].partition("|")[0].replace("2>&1", "").replace("%s", str(path))
        said = io.StringIO()
        shown = [f"--mlir-print-ir-{when}={name}" for when in ("before", "after")]
        with contextlib.redirect_stderr(said):
            kitsune_opt.tool([*shlex.split(command), *shown, "-o", os.devnull, "--reproducer-dir", tempfile.gettempdir()])
        parts = re.split(r"^// -----// IR Dump (Before|After) .*?( Failed)? //----- //\n", said.getvalue(), flags=re.MULTILINE)
        found = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
        for (_, _, before), (when, failed, after) in zip(found, found[1:], strict=False):
            if when == "After":
                yield before.strip(), "" if failed else after.strip()


@pytest.mark.parametrize("name", PASSES)
def test_something_is_changed_and_something_left_alone_or_refused(name: str) -> None:
    """Found by running the lit files: the pass gives back some case as it is, or an error; and does something to another."""
    changed = kept = False
    for path in sorted(runs(name), key=lambda path: path.stem != name):
        for before, after in dumps(name, path):
            kept |= after in ("", before)
            changed |= after not in ("", before)
        if kept and (changed or name in CHECKS):
            return
    raise AssertionError(f"{name}: changes something: {changed}, leaves something alone or refuses it: {kept}")
