"""Object files of the host: LLVM's instruction selection has no way around some vectors of bf16."""

from __future__ import annotations

import subprocess
import sys

import pytest

COPY = """
from kitsune_mlir.runtime.host_object import emit_object
emit_object('''define void @copy(ptr %a, ptr %b) {
  %x = load <N x TYPE>, ptr %a, align 2
  store <N x TYPE> %x, ptr %b, align 2
  ret void
}''')
"""


@pytest.mark.parametrize("lanes", [9, 17, 33])
def test_a_vector_of_one_element_more_than_a_register_is_copied(lanes: int) -> None:
    """In a process of its own: LLVM ended it on processors with instructions for bf16."""
    code = COPY.replace("N x", f"{lanes} x").replace("TYPE", "bfloat")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
