"""Programs that torch.compile made or found, as artifacts of `torch.compiler.save_cache_artifacts`."""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path

from kitsune_mlir.cache.store import listeners, store_of
from kitsune_mlir.errors import PackageError
from kitsune_mlir.runtime.package import read_package

__all__ = ["register"]

KIND = "kitsune_programs"
STORED = "programs"
KEY = re.compile(r"[0-9a-f]{64}")


@functools.cache
def register() -> None:
    """Let PyTorch know of them; where this PyTorch has no artifacts, they are in the cache on disk alone."""
    try:
        from kitsune_mlir.dynamo.torch_api import register_artifacts

        record = register_artifacts(KIND, _keep)
    except ImportError:
        return

    def used(kind: str, key: str, path: Path) -> None:
        if kind == STORED:
            with contextlib.suppress(OSError):  # another process removed it
                record(key, path.read_bytes())

    listeners.append(used)


def _keep(key: str, content: bytes) -> None:
    """Into the cache that programs are looked for in, where that is on; but what is no package, or a damaged one."""
    store = store_of(None, None)
    if store is not None and KEY.fullmatch(key):  # it becomes the name of a file
        with contextlib.suppress(PackageError):
            read_package(content)
            store.write(STORED, key, content)
