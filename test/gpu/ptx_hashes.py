"""The baseline of the GPU code: a hash of the PTX of everything that `make gpu-kits` and the benchmark build.

    python -m test.gpu.ptx_hashes check [PATTERN...] [--sample N] [--jobs N]    which cases' PTX is not that of the list
    python -m test.gpu.ptx_hashes write [PATTERN...] [--jobs N]                 write the list, test/gpu/ptx_hashes.json

A case is `KIND/NAME`, as in `python -m test.gpu.checks`, or `bench/NAME`, as in `python -m bench.suite list`; patterns are with
`*` and `?`. A commit that moves or merges code keeps all hashes; one that means to change code writes the list again, so that
its diff says which kernels became others. Nothing is assembled and no GPU is needed: about 15 minutes of one processor core.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import importlib.metadata
import io
import json
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from unittest import mock

from test.gpu.checks import KINDS

__all__ = ["LIST", "hashes_of"]

LIST = Path(__file__).with_suffix(".json")
VERSIONS = ("torch", "torch-mlir", "llvmlite")
CHUNK = 6
"""Cases that a process builds in a row."""
TASKS = 12
"""Chunks after which a process is replaced: compiling takes memory that it does not give back."""
ALL = "all"
"""The name of a kind that has no cases of its own."""
ARGUMENTS = {"graphs": lambda name: ["--count", "120", "--only", name], "simt_programs": lambda name: ["--only", f"^{name}$"]}
"""How `build` of some kinds is asked for one case; others take its name."""


def cases() -> dict[str, list[str]]:
    """Names of cases by kind; what measures breadth is there to change."""
    from bench.breadth.operators.table import GROUPS as OPERATORS
    from bench.cases import select

    built = {kind.name: kind for kind in KINDS if not kind.folder}
    found = {name: list(kind.cases()) if kind.cases is not None else [ALL] for name, kind in built.items()}
    return {
        **found,
        "bench": [case.name for case in select(["*"]) if case.group not in ("breadth", "library", "random", *OPERATORS)],
    }


def hashes_of(kind: str, names: Sequence[str]) -> dict[str, str]:
    """A hash for each case: of its kernels' PTX in order, or what went wrong."""
    from test.gpu.unassembled import unassembled

    texts: list[str] = []
    found: dict[str, str] = {}
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, unassembled(texts.append):
        for name in names:
            texts.clear()
            said = io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                problem = _built(kind, name, folder)
            digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
            found[f"{kind}/{name}"] = problem or (f"{digest} {len(texts)}" if texts else "nothing")
    return found


def _built(kind: str, name: str, folder: str) -> str:
    """Build a case; what went wrong, if it raised an error."""
    try:
        if kind == "bench":
            from bench.cases import select
            from bench.suite import build

            return "not built" * bool(build(Path(folder), select([name])))
        chosen = [] if name == ALL else ARGUMENTS.get(kind, lambda name: [name])(name)
        command = [f"test.gpu.{kind}", "build", str(Path(folder, kind)), *chosen]
        with mock.patch.object(sys, "argv", command):
            runpy.run_module(command[0], run_name="__main__")
    except SystemExit as end:
        return "not built" * bool(end.code)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return ""


def computed(wanted: Iterable[str], jobs: int) -> dict[str, str]:
    """Hashes of the cases asked for, which processes compute side by side."""
    kinds: dict[str, list[str]] = {}
    for case in wanted:
        kind, _, name = case.partition("/")
        kinds.setdefault(kind, []).append(name)
    # Large ones first, so that none is alone at the end.
    chunks = [(kind, names[at : at + CHUNK]) for kind, names in kinds.items() for at in range(0, len(names), CHUNK)]
    chunks.sort(key=lambda chunk: (chunk[0] != "bench", chunk[0] != "zoo"))
    found: dict[str, str] = {}
    # Not concurrent.futures: its pool can wait for ever where processes are replaced (CPython issue 115634).
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=TASKS) as pool:
        for done in pool.imap_unordered(_hashes_of, chunks):
            found |= done
    return found


def _hashes_of(chunk: tuple[str, list[str]]) -> dict[str, str]:
    return hashes_of(*chunk)


def main() -> int:
    """The command line; 1 where a case differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["check", "write"])
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--sample", type=int, default=1, help="only every N-th case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    given = parser.parse_intermixed_args()
    known = [f"{kind}/{name}" for kind, names in cases().items() for name in names]
    wanted = [case for case in known if not given.patterns or any(fnmatch.fnmatch(case, p) for p in given.patterns)]
    wanted = wanted[:: given.sample]
    if not wanted:
        parser.error(f"no case is named {' or '.join(given.patterns)}")
    start, kept = time.monotonic(), json.loads(LIST.read_text()) if LIST.exists() else {"cases": {}}
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    found = computed(wanted, given.jobs)
    seconds = time.monotonic() - start
    if given.mode == "write":
        held = {name: value for name, value in kept["cases"].items() if given.patterns and name in known}
        written = {"versions": versions, "cases": dict(sorted({**held, **found}.items()))}
        LIST.write_text(json.dumps(written, indent=0) + "\n")
        print(f"{LIST}: {len(found)} cases in {seconds:.0f} s")
        return 0
    if versions != kept.get("versions"):
        print(f"the list is of {kept.get('versions')}, here are {versions}: the PTX may differ for that")
    differ = {name: (kept["cases"].get(name, "not in the list"), value) for name, value in sorted(found.items())}
    differ = {name: pair for name, pair in differ.items() if pair[0] != pair[1]}
    for name, (before, now) in differ.items():
        print(f"{name}: {before} -> {now}")
    print(f"{len(found) - len(differ)} of {len(found)} cases as in the list, {len(differ)} not, in {seconds:.0f} s")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
