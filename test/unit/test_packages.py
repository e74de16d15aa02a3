"""Damaged `.kit` files: whatever happened to one, it loads as it was written, or it is a PackageError that says what is wrong.

A mutant is a package with something changed. Where its digests are those of before, what loads must be the same to the bit;
where they are made anew, as by whoever writes packages, what contradicts itself or its code must be refused.
"""

import json
import random
import resource
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

import kitsune_mlir
from kitsune_mlir.errors import PackageError
from kitsune_mlir.runtime.archive import SPARE, Archive, write_archive
from kitsune_mlir.runtime.package import DIGEST, MANIFEST
from test.programs.packages import Damage, call, loaded, members_of, package, zipped
from test.rotation import turn

PER_KIND = 152
"""Of eleven kinds and two targets, in each of three turns others: 10,032."""

MOST_GROWTH = 600 << 20
"""Bytes by which the process may grow: what small files may unpack to (`archive.SPARE`), and again in a program."""


@pytest.fixture(params=["host", "sm_90a"])
def data(request: pytest.FixtureRequest) -> bytes:
    """A package for each target."""
    return package(request.param)


DAMAGES = {name: getattr(Damage, name) for name in vars(Damage) if not name.startswith("_")}


@pytest.mark.rotated(9)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_package_is_refused_or_loads_as_it_was(data: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.kit"
    want = loaded(path, data)
    runs = want.target == "host"
    wanted = torch.utils._pytree.tree_leaves(want(*call()[0], **call()[1])) if runs else []
    rng = random.Random(f"{kind} {turn() % 3}")
    refused, before = 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(PER_KIND):
        mutant = DAMAGES[kind](data, rng)
        program = loaded(path, mutant)
        if program is None:
            refused += 1
            continue
        assert program.signature == want.signature and program.target == want.target and program.summary == want.summary
        assert program.artifacts == want.artifacts and {n: program.ir(n) for n in program.levels} == {
            n: want.ir(n) for n in want.levels
        }
        for name, tensor in program.weights.items():
            assert name == "count" or torch.equal(tensor, want.weights[name])
        got = torch.utils._pytree.tree_leaves(program(*call()[0], **call()[1])) if runs else []
        for a, b in zip(got, wanted, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        if runs:
            assert program.weights["count"].tolist() == [1.0]
    assert refused >= PER_KIND // 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_GROWTH >> 10


def test_a_package_loads_as_it_was_written(data: bytes, tmp_path: Path) -> None:
    program = loaded(tmp_path / "m.kit", data)
    program.save(tmp_path / "again.kit")
    again = kitsune_mlir.load(tmp_path / "again.kit")
    assert again.signature == program.signature and again.artifacts == program.artifacts
    assert members_of((tmp_path / "again.kit").read_bytes()) == members_of(data)


def test_what_a_zip_is_said_to_unpack_to_is_checked_before(data: bytes, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "m.kit"
    members = members_of(data)
    lying = bytearray(zipped(members))
    at = lying.index(b"PK\1\2")
    lying[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFFF0)  # bytes of the first member when it is unpacked
    path.write_bytes(lying)
    with pytest.raises(PackageError, match="is said to have 4294967280 bytes in"):
        kitsune_mlir.load(path)
    monkeypatch.setattr("kitsune_mlir.runtime.archive.SPARE", 0)
    path.write_bytes(zipped(members | {"code/zeros.bin": bytes(SPARE >> 3)}))
    tracemalloc.start()
    with pytest.raises(PackageError, match=f"is said to unpack to {(SPARE >> 3) + sum(map(len, members.values()))}"):
        kitsune_mlir.load(path)
    assert tracemalloc.get_traced_memory()[1] < SPARE >> 5
    tracemalloc.stop()


def test_texts_of_any_size_are_saved_so_that_they_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("kitsune_mlir.runtime.archive.SPARE", 1000)
    write_archive(tmp_path / "m.zip", {"a": bytes(1 << 20), "b": b"b"}, stored="b")
    with Archive(tmp_path / "m.zip") as archive:
        assert archive.read("a") == bytes(1 << 20)


def test_what_the_system_says_of_a_file_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kitsune_mlir.load(tmp_path / "none.kit")
    with pytest.raises(IsADirectoryError):
        kitsune_mlir.load(tmp_path)


def test_a_file_of_the_first_format(data: bytes, tmp_path: Path) -> None:
    members = members_of(data)
    manifest = json.loads(members[MANIFEST]) | {"format": 1}
    manifest["members"] = {name: entry["sha256"] for name, entry in manifest["members"].items()}
    del members[DIGEST]
    (tmp_path / "m.kit").write_bytes(zipped(members | {MANIFEST: json.dumps(manifest).encode()}))
    with pytest.raises(PackageError, match="package format 1, this version reads 4; compile the model again"):
        kitsune_mlir.load(tmp_path / "m.kit")
