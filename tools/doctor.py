"""`kitsune doctor`: what is installed, which targets are usable, what is missing and how to get it."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

EXTRA = "pip install 'kitsune-mlir[{}]'"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `state`: "ok", "missing" (needed by a target), or "absent" (nobody needs it here)."""

    name: str
    state: str
    detail: str  # version, or what is wrong
    remedy: str = ""


@dataclass(frozen=True)
class Component:
    """A package: its distribution, a module to import (None: looking it up is enough), what it is for, how to get it."""

    distribution: str
    module: str | None
    purpose: str
    remedy: str


REQUIRED = [
    Component("torch-mlir", "torch_mlir.ir", "import of models, MLIR", "pip install --force-reinstall kitsune-mlir"),
    Component("llvmlite", "llvmlite.binding", "LLVM IR to object code and PTX", "pip install --force-reinstall kitsune-mlir"),
    Component("numpy", "numpy", "arrays", "pip install 'numpy>=2'"),
    Component("ml_dtypes", "ml_dtypes", "bf16 constants", "pip install ml_dtypes"),
    Component("scipy", None, "the partitioner's integer programs", "pip install scipy"),
    Component("safetensors", "safetensors", "weights in .kit files", "pip install safetensors"),
    Component("torch", "torch", "models and tensors", EXTRA.format("torch") + ", or PyTorch's own instructions for a GPU"),
]
TESTED = ("2.11", "2.13")
"""Versions of PyTorch that tests (2.13) and measurements on GPUs (2.11) are run with."""
OLDEST = (2, 9)
GPU = [
    Component("cuda-bindings", "cuda.bindings.driver", "the CUDA driver", EXTRA.format("gpu")),
    Component("nvidia-nvjitlink", None, "PTX to cubin", EXTRA.format("gpu")),
]


def examine() -> tuple[list[Finding], list[Finding]]:
    """Findings on components, and on targets."""
    python = Finding("Python", "ok" if sys.version_info >= (3, 11) else "missing", platform.python_version(), "Python 3.11+")
    own = Finding("kitsune-mlir", "ok", _version("kitsune-mlir") or "not installed (run from its folder)")
    needed = [_component(c) for c in REQUIRED]
    needed = [_of_tested_version(f) if f.name == "torch" and f.state == "ok" else f for f in needed]
    gpu = [_component(c) for c in GPU]
    tools = [_guarded("libdevice", _libdevice), _guarded("PTX code generator", _nvptx)]
    device = _guarded("GPU", _device)
    components = [own, python, *needed, *gpu, *tools, device]
    return components, [_host(needed), _assembles(needed + gpu + tools), _runs(needed + gpu + tools, device)]


def report() -> tuple[str, bool]:
    """The report as text, and whether any target is usable."""
    components, targets = examine()
    lines = ["Components"]
    lines += _rows(components)
    lines += ["", "Targets", *_rows(targets)]
    remedies = {f.remedy: None for f in [*components, *targets] if f.state == "missing" and f.remedy}
    if remedies:
        lines += ["", "To get what is missing", *(f"  {r}" for r in remedies)]
    return "\n".join(lines), any(t.state == "ok" for t in targets)


def _rows(findings: list[Finding]) -> list[str]:
    width = max(len(f.name) for f in findings)
    marks = {"ok": "ok     ", "missing": "MISSING", "absent": "-      "}
    return [f"  {f.name:<{width}}  {marks[f.state]}  {f.detail}" for f in findings]


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _component(component: Component) -> Finding:
    version = _version(component.distribution)
    name, remedy = component.distribution, component.remedy
    if version is None:
        return Finding(name, "missing", f"not installed ({component.purpose})", remedy)
    if component.module is not None:
        try:
            importlib.import_module(component.module)
        except Exception as error:  # a broken install fails in many ways
            reason = str(error).strip().split("\n")[0]
            return Finding(name, "missing", f"{version}, but '{component.module}' fails: {reason}", remedy)
    return Finding(name, "ok", f"{version} ({component.purpose})")


def _of_tested_version(found: Finding) -> Finding:
    """PyTorch, and whether its version is one that is tested, or too old."""
    version = _version("torch") or ""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if ".".join(map(str, numbers)) in TESTED:
        return found
    if numbers < OLDEST:
        remedy = next(component.remedy for component in REQUIRED if component.distribution == "torch")
        detail = f"{version}: {'.'.join(map(str, OLDEST))} is the oldest that can be"
        return dataclasses.replace(found, state="missing", detail=detail, remedy=remedy)
    return dataclasses.replace(found, detail=f"{found.detail}; not tested with this version, but with {' and '.join(TESTED)}")


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    """A check whose failure is a finding too."""
    try:
        return check()
    except Exception as error:
        return Finding(name, "missing", f"{type(error).__name__}: {error}".split("\n")[0], EXTRA.format("gpu"))


def _libdevice() -> Finding:
    from kitsune_mlir.codegen.gpu.backend.libdevice import find_libdevice

    path = find_libdevice()
    if path is None:
        remedy = "pip install nvidia-nvvm (or set CUDA_HOME to a CUDA toolkit)"
        return Finding(
            "libdevice", "absent", "not found: models with exp, tanh and the like cannot be compiled for a GPU", remedy
        )
    return Finding("libdevice", "ok", f"{path} (math functions on the GPU)")


def _nvptx() -> Finding:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return Finding("PTX code generator", "ok", f"LLVM {'.'.join(map(str, llvm.llvm_version_info))}")


def _device() -> Finding:
    """The first CUDA device, asked through the driver."""
    from kitsune_mlir.runtime.driver import call

    try:
        call("cuInit", 0)
        count = call("cuDeviceGetCount")
    except Exception as error:  # no driver library is a RuntimeError, a driver's refusal an error of the runtime
        reason = str(error).strip().split("\n")[0]
        return Finding("GPU", "absent", f"none usable: {reason}", "an NVIDIA Hopper GPU and its driver")
    if not count:
        return Finding("GPU", "absent", "the driver shows no device", "an NVIDIA Hopper GPU")
    import cuda.bindings.driver as cu

    device = call("cuDeviceGet", 0)
    name = call("cuDeviceGetName", 64, device).split(b"\0")[0].decode()
    kind = cu.CUdevice_attribute
    major, minor = (
        call("cuDeviceGetAttribute", a, device)
        for a in (kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kind.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    )
    text = f"{name}, compute capability {major}.{minor}" + (f" (first of {count})" if count > 1 else "")
    if (major, minor) != (9, 0):
        return Finding("GPU", "absent", f"{text}: programs need 9.0 (Hopper)", "an NVIDIA Hopper GPU")
    return Finding("GPU", "ok", text)


def _host(needed: list[Finding]) -> Finding:
    wrong = [f.name for f in needed if f.state != "ok"]
    if wrong:
        return Finding("host", "missing", f"needs {', '.join(wrong)}")
    return Finding("host", "ok", f"compiles and runs, {os.cpu_count()} threads ({platform.machine()})")


def _assembles(needed: list[Finding]) -> Finding:
    wrong = [f.name for f in needed if f.state == "missing"]
    if wrong:
        return Finding("sm_90a (compile)", "missing", f"needs {', '.join(wrong)}")
    return Finding("sm_90a (compile)", "ok", "cubins can be built; no GPU is needed for that")


def _runs(needed: list[Finding], device: Finding) -> Finding:
    wrong = [f.name for f in needed if f.state == "missing"]
    if wrong or device.state != "ok":
        state = "missing" if wrong else "absent"
        return Finding(
            "sm_90a (run)", state, f"needs {', '.join([*wrong, *([] if device.state == 'ok' else ['a Hopper GPU'])])}"
        )
    import torch

    if not torch.cuda.is_available():
        remedy = "install a PyTorch built for CUDA (https://pytorch.org/get-started)"
        return Finding("sm_90a (run)", "missing", "this PyTorch is built without CUDA, so there are no GPU tensors", remedy)
    return Finding("sm_90a (run)", "ok", "programs run on this GPU")
