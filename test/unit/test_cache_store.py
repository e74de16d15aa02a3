"""What is kept on disk: bounded, shared by processes, whole files only; and the digest of this project's sources."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kitsune_mlir.cache import sources
from kitsune_mlir.cache.store import STALE_SECONDS, Store, cache_folder, store_of
from kitsune_mlir.errors import ArgumentError


def test_what_was_not_used_for_long_goes_first(tmp_path):
    store = Store(tmp_path, limit=1000)
    now = time.time()
    for number in range(10):
        store.write("cubins", f"k{number}", bytes(100))
        os.utime(tmp_path / "cubins" / f"k{number}", (now - 100 + number, now - 100 + number))
    assert store.read("cubins", "k0") == bytes(100)  # used now
    store.write("programs", "p", bytes(150))
    left = {entry.path.name for entry in store.entries()}
    assert left == {"k0", "k4", "k5", "k6", "k7", "k8", "k9", "p"}
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "t.json").write_bytes(bytes(5000))  # does not count
    store.write("cubins", "k", b"")
    assert len(store.entries()) == 10


def test_what_a_process_left_behind_goes(tmp_path):
    store = Store(tmp_path)
    store.write("cubins", "k", b"1")
    for name, age in ((".old", STALE_SECONDS + 60), (".new", 0)):
        (tmp_path / "cubins" / name).write_bytes(b"")
        os.utime(tmp_path / "cubins" / name, (time.time() - age, time.time() - age))
    assert [entry.path.name for entry in store.entries()] == ["k"]
    assert not (tmp_path / "cubins" / ".old").exists() and (tmp_path / "cubins" / ".new").exists()


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path):
    store = Store(tmp_path)
    store.write("cubins", "k", b"1")

    def fails(path: Path) -> None:
        path.write_bytes(b"2")
        raise ValueError

    with pytest.raises(ValueError):
        store.put("cubins", "k", fails)
    assert store.read("cubins", "k") == b"1" and len(list((tmp_path / "cubins").iterdir())) == 1


WRITER = """
import sys
from pathlib import Path
from types import SimpleNamespace
from kitsune_mlir.cache.store import Store
store = Store(sys.argv[1], limit=20_000)
for number in range(200):
    store.write("cubins", f"k{number % 7}", bytes([number]) * 5000)
    data = store.read("cubins", f"k{(number + 3) % 7}")
    assert data is None or (len(data) == 5000 and len(set(data)) == 1), data
"""


def test_processes_share_a_folder(tmp_path):
    running = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert sum(entry.bytes for entry in Store(tmp_path).entries()) <= 20_000


def test_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("KITSUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("KITSUNE_CACHE")
    assert cache_folder() == tmp_path and store_of(False, None) is None
    found = store_of(None, None)
    assert found is not None and found.folder == tmp_path and found.limit == 4 << 30
    monkeypatch.setenv("KITSUNE_CACHE_MB", "2")
    assert Store().limit == 2 << 20
    monkeypatch.setenv("KITSUNE_CACHE_MB", "two")
    with pytest.raises(ArgumentError, match="KITSUNE_CACHE_MB"):
        Store()


def test_sources_are_read_once_until_one_changes(tmp_path, monkeypatch):
    folder, store = tmp_path / "project", Store(tmp_path / "cache")
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("1")
    (folder / "inner" / "b.py").write_text("2")
    monkeypatch.setattr(sources, "FOLDERS", ("project",))
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[folder]))
    own, read = sources._read, []
    monkeypatch.setattr(sources, "_read", lambda files: read.append(len(files)) or own(files))

    def digest(store: Store | None) -> str:
        monkeypatch.setattr(sources, "_found", [])
        return sources.sources(store)

    first = digest(store)
    assert len(first) == 64 and digest(store) == first and read == [2]
    assert digest(None) == first and read == [2, 2]
    (file,) = (tmp_path / "cache" / "sources").iterdir()
    file.write_text("damaged")
    assert digest(store) == first and len(read) == 3
    (folder / "inner" / "b.py").write_text("3")  # as long as before
    changed = digest(store)
    assert changed != first and len(read) == 4
    (folder / "inner" / "b.py").rename(folder / "b.py")
    assert digest(store) not in (first, changed)
