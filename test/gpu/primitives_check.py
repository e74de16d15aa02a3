"""GPU primitives on a device, in two halves that may run on different machines.

    python test/gpu/primitives_check.py build FOLDER     compiles every case (needs the compiler, no GPU)
    python test/gpu/primitives_check.py run FOLDER       runs and checks them (needs a GPU, torch, cuda-bindings; no compiler)

`--only REGEX` selects cases by name. Inputs of products and reductions are small integers wherever that makes the exact result
representable, and then the comparison is for equality.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def build(folder: Path, only: str) -> int:
    """Compile the cases into `folder`; returns the number that failed."""
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(REPOSITORY)]
    import cases_products  # noqa: F401
    import cases_scalar  # noqa: F401
    import cases_tiles  # noqa: F401
    from case import CASES

    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, make in CASES.items():
        if not re.search(only, name):
            continue
        try:
            make().write(folder, name)
        except Exception as error:  # every other case is still worth building
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}", flush=True)
    print(f"built {sum(bool(re.search(only, name)) for name in CASES) - failed} cases into {folder}, {failed} failed")
    return failed


# --- running -------------------------------------------------------------------------------------------------------------


def check_status(result):
    """Raise on a driver error; return what came beside the status."""
    from cuda.bindings import driver as cu

    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(result[0].name)
    return result[1] if len(result) == 2 else result[1:]


def make_tensor(spec: dict):
    """The input of a tensor's description, on the device."""
    import torch

    dtypes = {
        "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16, "i8": torch.int8,
        "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    }  # fmt: skip
    dtype, shape, init = dtypes[spec["dtype"]], spec["shape"], spec["init"]
    if isinstance(init, list):
        return torch.tensor(init, dtype=dtype, device="cuda").reshape(shape)
    if init == "host":
        return torch.zeros(shape, dtype=dtype).pin_memory()
    if init == "ints":
        return torch.randint(-4, 5, shape, device="cuda").to(dtype)
    if init == "signs":
        return torch.randint(-1, 2, shape, device="cuda").to(dtype)
    if init == "normal":
        return torch.randn(shape, device="cuda", dtype=torch.float64).to(dtype)
    if init in ("zeros", "ones", "nan"):
        return torch.full(shape, {"zeros": 0, "ones": 1, "nan": float("nan")}[init], device="cuda", dtype=dtype)
    if init == "index":
        return torch.randint(0, spec["bound"], shape, device="cuda").to(dtype)
    if init == "big":
        info = torch.iinfo(dtype)
        return torch.randint(info.min + 1, info.max, shape, device="cuda", dtype=dtype)
    if init == "nonzero":
        numbers = torch.randint(1, 1000, shape, device="cuda", dtype=dtype)
        return numbers * (1 - 2 * torch.randint(0, 2, shape, device="cuda", dtype=dtype))
    if init == "ranges":
        rows = []
        for low, high in spec["ranges"]:
            uniform = torch.rand(shape[1], device="cuda", dtype=torch.float64)
            if low > 0 and high / low > 1e3:
                rows.append(low * (high / low) ** uniform)
            else:
                rows.append(low + (high - low) * uniform)
        return torch.stack(rows).to(dtype)
    raise ValueError(f"no initial value '{init}'")


def launch(folder: Path, case: dict, tensors: dict, repeats: int = 0) -> float:
    """Load the cubin, launch it once on torch's stream and wait.

    Returns:
        With `repeats`, the median time of so many further launches in milliseconds (their results are not looked at).
    """
    import numpy as np
    import torch
    from cuda.bindings import driver as cu

    from kitsune_mlir.runtime.tensormap import encode

    manifest = case["manifest"]
    module = check_status(cu.cuModuleLoadData((folder / f"{case['name']}.cubin").read_bytes()))
    function = check_status(cu.cuModuleGetFunction(module, manifest["name"].encode()))
    attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check_status(cu.cuFuncSetAttribute(function, attribute, manifest["shared_bytes"]))
    keep, addresses = [], []
    for parameter, argument in zip(manifest["parameters"], case["arguments"], strict=True):
        if parameter["kind"] == "tensor_map":
            encoded = encode(parameter["map"], tensors[argument["tensor"]].data_ptr())
            keep.append(encoded)
            addresses.append(int(encoded.getPtr()))
            continue
        if parameter["kind"] == "pointer":
            held = ctypes.c_void_p(tensors[argument["tensor"]].data_ptr())
        else:
            kinds = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "f32": ctypes.c_float, "f64": ctypes.c_double}
            held = kinds[parameter["kind"]](argument["value"])
        keep.append(held)
        addresses.append(ctypes.addressof(held))
    table = np.array(addresses, dtype=np.uint64)
    stream = torch.cuda.current_stream().cuda_stream
    grid, block = (case["blocks"], 1, 1), (manifest["threads"], 1, 1)

    def once() -> None:
        check_status(cu.cuLaunchKernel(function, *grid, *block, manifest["shared_bytes"], stream, table.ctypes.data, 0))

    once()
    torch.cuda.synchronize()
    median = 0.0
    if repeats:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for start, end in events:
            start.record()
            once()
            end.record()
        torch.cuda.synchronize()
        median = sorted(start.elapsed_time(end) for start, end in events)[repeats // 2]
    check_status(cu.cuModuleUnload(module))
    return median


def run(folder: Path, only: str) -> int:
    """Run and check the cases of `folder`; returns the number that failed."""
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(REPOSITORY)]
    import primitives_reference as reference
    import torch

    torch.manual_seed(0)
    torch.zeros(1, device="cuda")  # makes the context current
    failed, done = 0, 0
    for path in sorted(folder.glob("*.json")):
        case = json.loads(path.read_text())
        if not re.search(only, case["name"]):
            continue
        if case["check"] == "starve":  # it ends with a trap, which ends the process' context
            if only != f"^{case['name']}$":
                command = [sys.executable, __file__, "run", str(folder), "--only", f"^{case['name']}$"]
                failed += bool(subprocess.run(command, check=False).returncode)
                done += 1
                continue
            failed += starve(folder, case)
            continue
        done += 1
        tensors: dict = {}
        for spec in case["tensors"]:
            if spec["name"] not in tensors:
                tensors[spec["name"]] = make_tensor(spec)
        before = {name: value.clone() for name, value in tensors.items()}
        try:
            operations = case["params"].get("operations", 0)
            time = launch(folder, case, tensors, 20 if operations else 0)
        except RuntimeError as error:
            print(f"FAIL {case['name']}: {error}; the context is lost, stopping", flush=True)
            return failed + 1
        try:
            remark = getattr(reference, case["check"])(before, tensors, case["params"])
            if operations:
                remark = f"{remark}; {time:.3f} ms, {operations / time / 1e9:.0f} TFLOP/s"
            print(f"ok   {case['name']}{': ' + remark if remark else ''}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAIL {case['name']}: {error}", flush=True)
    print(f"{done} cases, {failed} failed")
    return failed


def starve(folder: Path, case: dict) -> int:
    """The kernel must stop itself, and say why."""
    tensors = {spec["name"]: make_tensor(spec) for spec in case["tensors"]}
    try:
        launch(folder, case, tensors)
    except RuntimeError as error:
        record = tensors["record"].tolist()
        good = record == [1, 0, 7, 2, 5, 0]
        print(f"{'ok  ' if good else 'FAIL'} {case['name']}: {error}, record {record}", flush=True)
        return int(not good)
    print(f"FAIL {case['name']}: the wait ended by itself", flush=True)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", metavar="REGEX")
    options = parser.parse_args()
    return int(bool((build if options.mode == "build" else run)(options.folder, options.only)))


if __name__ == "__main__":
    sys.exit(main())
