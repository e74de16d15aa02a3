"""The command line that the programs of this folder share: `build` where the compiler is, `run` where the GPU is.

`run` may start processes of its own for some cases each (`part`), so that one that hangs costs only itself.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["program_main"]

Build = Callable[[Path, Sequence[str]], int | None]
Run = Callable[[Path, Sequence[str], Namespace], int | None]


def program_main(
    description: str | None, build: Build, run: Run, part: Run | None = None, switches: Mapping[str, str] | None = None
) -> int:
    """Parse the command line `build|run|part FOLDER [NAME...] [--SWITCH...] [--json FILE]` and do what it says.

    Args:
        description: the program's docstring.
        build, run, part: for each mode; they return how many cases failed, or None. `run` and `part` also get the switches, and
            `json`, the file that figures go to, or None.
        switches: names of flags, with their help.

    Returns:
        The exit status: 1 if something failed.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run", *(["part"] if part else [])], help="'part' is what 'run' starts")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path, help="where figures go")
    for name, help in (switches or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=help)
    given = parser.parse_intermixed_args()
    if given.mode == "build":
        return min(1, build(given.folder, given.names) or 0)
    work = part if given.mode == "part" and part else run
    return min(1, work(given.folder, given.names, given) or 0)
