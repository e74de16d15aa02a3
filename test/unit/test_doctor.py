"""`kitsune doctor`: what this machine has, what is missing and how to get it."""

import importlib.metadata
import re

import pytest
from click.testing import CliRunner

from kitsune_mlir.tools import doctor
from kitsune_mlir.tools.kitsune import main


def test_doctor_on_this_machine():
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 0, done.output
    assert f"torch-mlir          ok       {importlib.metadata.version('torch-mlir')}" in done.output
    assert re.search(r"^  host +ok +compiles and runs", done.output, re.MULTILINE)
    assert "sm_90a (compile)" in done.output and "sm_90a (run)" in done.output


def test_doctor_names_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    real = importlib.metadata.version

    def without(name: str) -> str:
        if name in ("nvidia-nvjitlink", "llvmlite"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", without)
    text, usable = doctor.report()
    assert not usable
    assert re.search(r"^  llvmlite +MISSING +not installed", text, re.MULTILINE)
    assert re.search(r"^  host +MISSING +needs llvmlite", text, re.MULTILINE)
    assert re.search(r"^  sm_90a \(compile\) +MISSING +needs llvmlite, nvidia-nvjitlink", text, re.MULTILINE)
    assert "  pip install 'kitsune-mlir[gpu]'" in text.split("To get what is missing")[1]
    assert CliRunner().invoke(main, ["doctor"]).exit_code == 1


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("2.13.1+cpu", "2.13.1+cpu (models and tensors)\n"),
        ("2.11.0", "2.11.0 (models and tensors)\n"),
        ("2.12.0a0+git1", "(models and tensors); not tested with this version, but with 2.11 and 2.13\n"),
        ("2.9.1", "not tested with this version"),
        ("2.8.0", "2.8.0: 2.9 is the oldest that can be\n"),
    ],
)
def test_doctor_says_whether_this_pytorch_is_tested(version: str, says: str, monkeypatch: pytest.MonkeyPatch):
    own = importlib.metadata.version
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: version if name == "torch" else own(name))
    text, usable = doctor.report()
    assert says in text and usable is not version.startswith("2.8")


def test_doctor_survives_a_broken_install(monkeypatch: pytest.MonkeyPatch):
    def broken(name: str) -> object:
        raise OSError("libfoo.so.1: cannot open shared object file\nmore")

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    text, usable = doctor.report()
    assert not usable and "but 'torch' fails: libfoo.so.1: cannot open shared object file\n" in text
