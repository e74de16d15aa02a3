"""The list of PTX hashes is what the compiler emits: some of all in turn, and the command says what differs."""

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from test.gpu import ptx_hashes
from test.rotation import in_turn

LISTED = json.loads(ptx_hashes.LIST.read_text())
CASES = sorted(name for name in LISTED["cases"] if name.startswith(("bench/small_", "operator_programs/")))
FIXED = ["bench/small_nerf_f32", "mma_programs/square", "operator_programs/linear_gelu_tanh"]


def same_versions() -> bool:
    return LISTED["versions"] == {name: importlib.metadata.version(name) for name in ptx_hashes.VERSIONS}


@pytest.mark.skipif(not same_versions(), reason="the list is of other versions of torch, torch-mlir or llvmlite")
@pytest.mark.parametrize("case", [*FIXED, *in_turn(CASES, 4)])
def test_listed_ptx_is_what_is_emitted(case: str) -> None:
    kind, _, name = case.partition("/")
    assert ptx_hashes.hashes_of(kind, [name]) == {case: LISTED["cases"][case]}


def test_what_differs_is_said(tmp_path, monkeypatch, capsys) -> None:
    case = "operator_programs/mm_bf16_3x7x13"
    other = {**LISTED, "cases": {case: "0" * 16 + " 1"}}
    (tmp_path / "list.json").write_text(json.dumps(other))
    monkeypatch.setattr(ptx_hashes, "LIST", tmp_path / "list.json")
    monkeypatch.setattr(ptx_hashes, "computed", lambda wanted, jobs: dict.fromkeys(wanted, "1" * 16 + " 1"))
    monkeypatch.setattr(sys, "argv", ["ptx_hashes", "check", case])
    assert ptx_hashes.main() == 1
    assert f"{case}: {'0' * 16} 1 -> {'1' * 16} 1" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["ptx_hashes", "write", case])
    assert ptx_hashes.main() == 0
    monkeypatch.setattr(sys, "argv", ["ptx_hashes", "check", case])
    assert ptx_hashes.main() == 0


def test_what_cannot_be_built_is_no_hash(monkeypatch) -> None:
    monkeypatch.setattr("bench.suite.build", lambda folder, cases: 1)
    assert ptx_hashes.hashes_of("bench", ["small_nerf_bf16"]) == {"bench/small_nerf_bf16": "not built"}
