"""One primitive case on a device: make the tensors, launch the kernel, compare. Needs a GPU, torch and cuda-bindings."""

from __future__ import annotations

import ctypes
import json
import zlib
from pathlib import Path


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


def check_case(folder: Path, name: str) -> tuple[bool, str, bool]:
    """Run the case `name` of `folder`.

    Returns:
        Whether the results are right; a remark; and whether the process can go on (else its CUDA context is lost).
    """
    import torch

    from test.gpu import primitives_reference as reference

    case = json.loads((folder / f"{name}.json").read_text())
    torch.manual_seed(zlib.crc32(name.encode()))  # the same numbers whichever cases run before
    tensors: dict = {}
    for spec in case["tensors"]:
        if spec["name"] not in tensors:
            tensors[spec["name"]] = make_tensor(spec)
    before = {key: value.clone() for key, value in tensors.items()}
    operations = case["params"].get("operations", 0)
    time, error = 0.0, None
    try:
        time = launch(folder, case, tensors, 20 if operations else 0)
    except RuntimeError as raised:
        error = str(raised).split("\n")[0]
    if case["check"] == "starve":  # the kernel must stop itself, and say why in host memory
        record = tensors["record"].tolist()
        right = error is not None and record == case["params"]["record"]
        return right, f"{error or 'the wait ended by itself'}; record {record}", error is None
    if error is not None:
        return False, error, False
    try:
        remark = getattr(reference, case["check"])(before, tensors, case["params"]) or ""
    except AssertionError as wrong:
        return False, str(wrong), True
    if operations:
        remark = f"{remark}; {time:.3f} ms, {operations / time / 1e9:.0f} TFLOP/s"
    return True, remark, True
