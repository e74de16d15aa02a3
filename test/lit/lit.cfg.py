"""lit's configuration: `kitsune-opt` and `FileCheck` of the Python that runs lit, whatever PATH says."""

import os
import re
import sys
import tempfile

import lit.formats

# `config` is put here by lit.
config.name = "kitsune-mlir"  # noqa: F821
config.test_format = lit.formats.ShTest(execute_external=False)  # noqa: F821  (lit's own shell: fast, and quotes work)
config.suffixes = [".mlir"]  # noqa: F821
config.test_source_root = os.path.dirname(__file__)  # noqa: F821
config.test_exec_root = os.environ.get("KITSUNE_LIT_OUT") or os.path.join(tempfile.gettempdir(), "kitsune-lit")  # noqa: F821

# A failing pass is what many tests want; its reproducer belongs with the test's other output.
config.environment["KITSUNE_REPRODUCER_DIR"] = config.test_exec_root  # noqa: F821
config.environment["PYTHONIOENCODING"] = "utf-8"  # noqa: F821
if "PYTHONPATH" in os.environ:  # another checkout than the installed one
    config.environment["PYTHONPATH"] = os.environ["PYTHONPATH"]  # noqa: F821


def tool(name: str, code: str) -> tuple[str, str]:
    """A substitution for a tool's name as a whole word (not inside a path or an option)."""
    return rf"(?<![\w./-]){re.escape(name)}(?![\w./-])", f'"{sys.executable}" {code}'


server = os.environ.get("KITSUNE_LIT_SERVER")  # a socket of tools.py
served = f'-I -S "{os.path.join(config.test_source_root, "tools.py")}" "{server}"'  # noqa: F821
config.substitutions += [  # noqa: F821
    tool("kitsune-opt", f"{served} kitsune-opt" if server else "-m kitsune_mlir.tools.kitsune_opt"),
    tool("FileCheck", f"{served} FileCheck" if server else "-m filecheck"),
]
# Paths may hold spaces: quote the test's own file and its temporary file, unless the test does.
config.substitutions += [(rf'(?<!")%{c}(?!\w)', f'"%{c}"') for c in "st"]  # noqa: F821
