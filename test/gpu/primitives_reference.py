"""What the kernels of the primitive cases must compute, in torch; each function raises AssertionError or returns a remark.

Arguments: the tensors before the launch, the tensors after it, the case's parameters.
"""

from __future__ import annotations

import torch


def equal(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Bit-wise equal values (NaN equals NaN)."""
    expected = expected.to(actual.dtype)
    wrong = ~((actual == expected) | (actual.isnan() & expected.isnan()))
    if wrong.any():
        place = tuple(int(i) for i in wrong.nonzero()[0])
        count = int(wrong.sum())
        found = f"{actual[place].item()} instead of {expected[place].item()}"
        raise AssertionError(f"{what}: {count} of {wrong.numel()} wrong, first at {place}: {found}")


def close(actual: torch.Tensor, expected: torch.Tensor, relative: float, absolute: float, what: str) -> float:
    """|actual - expected| <= absolute + relative * |expected|, infinities and NaN alike; returns the largest relative error."""
    rounded = expected.to(actual.dtype)
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    difference = (actual.double() - expected.double()).abs()
    bound = absolute + relative * expected.double().abs()
    wrong = ~(same | (difference <= bound))
    if wrong.any():
        place = tuple(int(i) for i in wrong.nonzero()[0])
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} off, first at {place}: {actual[place].item()!r} instead of "
            f"{expected[place].item()!r}; largest difference {difference[wrong].max().item():.3e}"
        )
    error = difference / (expected.double().abs() + absolute)
    finite = error[error.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def product(before, after, params) -> None:
    a, b = before["A"].double(), before["B"].double()
    a = a.T if params["a_transposed"] else a
    b = b if params["b_transposed"] else b.T
    equal(after["D"], a @ b, "D")


def chain(before, after, params) -> None:
    order = torch.tensor(params["order"], device="cuda")
    positions = before["A"].double() @ before["B1"].double().T
    hidden = torch.empty_like(positions)
    hidden[:, order] = positions
    hidden += before["bias"].double()
    if params["relu"]:
        hidden = hidden.relu()
    b2 = before["B2"].double()
    expected = hidden[:, order] @ b2.T if params["through"] == "registers" else hidden @ b2.T
    equal(after["D"], expected, "D")


def matmul_bf16(before, after, params) -> str:
    expected = before["A"].double() @ before["B"].double().T
    close(after["D"], expected, 2**-8, 1e-3, "D")
    error = (after["D"].double() - expected).abs().max() / expected.abs().max()
    return f"largest error {error.item():.1e} of the largest element"


def roles(before, after, params) -> None:
    product = before["A"].double() @ before["B"].double().T
    x = before["X"].double()
    equal(after["D"], -x if params["between"] else x - 2 * product, "D")


def statistics(before, after, params) -> None:
    x = before["X"].double()
    close(after["rows"][:, 0], x.sum(1), 1e-5, 1e-4, "row sum")
    equal(after["rows"][:, 1], x.amax(1), "row max")
    equal(after["rows"][:, 2], x.amin(1), "row min")
    close(after["cols"][0], x.sum(0), 1e-5, 1e-4, "column sum")
    equal(after["cols"][1], x.amax(0), "column max")
    close(after["total"][0], x.sum(), 1e-5, 1e-3, "total")
    close(after["Y"], x - x.mean(1, keepdim=True), 1e-5, 1e-5, "centred")


def bounded_copy(before, after, params) -> None:
    rows = params["rows"]
    expected = (before["X"].double() + before["bias"].double()) * before["scale"].double()[:, None]
    equal(after["Y"][:rows], expected, "Y")
    assert bool(after["Y"][rows:].isnan().all()), "a row beyond the matrix was written"


def gather_scatter(before, after, params) -> None:
    target = before["target"].long()
    rows = before["X"].double()[before["source"]]
    columns = torch.arange(rows.shape[1], device=rows.device) - params["first"]
    rows = rows * ((columns >= 0) & (columns < params["cols"]))
    expected = before["Y"].double().index_add(0, target[target >= 0], rows[target >= 0])
    equal(after["Y"], expected, "Y")


def copies(before, after, params) -> None:
    equal(after["M"], before["X"], "stored by TMA")
    equal(after["Y"], before["X"], "loaded by TMA")


def _overlap(at, box, shape) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of a box at `at` that lies in a tensor: where in the box, where in the tensor."""
    inside = [slice(max(0, a), min(extent, a + size)) for a, size, extent in zip(at, box, shape, strict=True)]
    return tuple(slice(s.start - a, s.stop - a) for s, a in zip(inside, at, strict=True)), tuple(inside)


def tma_box(before, after, params) -> None:
    x, box = before["X"], after["Y"].shape
    loaded = torch.full(box, float("nan") if params["fill"] == "nan" else 0.0, dtype=x.dtype, device=x.device)
    local, inside = _overlap(params["at"], box, x.shape)
    loaded[local] = x[inside]
    equal(after["Y"], loaded, "loaded box")
    added, stored = before["Z"].clone(), before["W"].clone()
    local, inside = _overlap(params["to"], box, x.shape)
    added[inside] += loaded[local]
    stored[inside] = loaded[local]
    equal(after["Z"], added, "reduced")
    equal(after["W"], stored, "stored")


def spans(before, after, params) -> None:
    equal(after["Y"].double(), before["Y"].double() + 2 * before["X"].double(), "reduced")
    equal(after["Z"].double(), 2 * before["X"].double(), "stored")


_MATH = {
    "absf": torch.abs, "roundeven": torch.round, "rsqrt": torch.rsqrt, "erf": torch.special.erf, "erfc": torch.special.erfc,
    "cbrt": lambda x: x.sign() * x.abs() ** (1 / 3), "round": lambda x: x.sign() * (x.abs() + 0.5).floor(), "powf": torch.pow,
    "remf": torch.fmod, "divf": torch.div, "atan2": torch.atan2, "copysign": torch.copysign,
}  # fmt: skip
_TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-8, torch.float16: 2**-10}


def math(before, after, params) -> str:
    dtype = after["Y"].dtype
    relative = 5e-3 if params["fast"] else _TOLERANCES[dtype]
    worst = []
    for row, name in enumerate(params["functions"]):
        if params["fast"] and name in ("sin", "cos", "tan"):
            continue  # the approximation has no bound for large arguments
        inputs = [before[key][row].double() for key in ("X", "X2") if key in before]
        reference = _MATH[name] if name in _MATH else getattr(torch, name)
        expected = reference(*inputs)
        # f64 functions of torch are themselves accurate to a few units in the last place only.
        slack = 4 if dtype is torch.float64 else 1
        absolute = {torch.float32: 1e-7, torch.float64: 1e-14}.get(dtype, 1e-6) * (50 if params["fast"] else 1)
        worst.append((close(after["Y"][row], expected, slack * relative, absolute, name), name))
    worst.sort(reverse=True)
    return "largest errors " + ", ".join(f"{name} {error:.1e}" for error, name in worst[:4])


def arithmetic(before, after, params) -> None:
    dtype = after["Y"].dtype
    step = torch.finfo(dtype).eps
    operations = {
        "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "max": torch.maximum, "min": torch.minimum,
        "less": torch.minimum, "fma": lambda a, b: a * b + a,
    }  # fmt: skip
    for row, name in enumerate(params["functions"]):
        a, b = before["X"][row].double(), before["X2"][row].double()
        exact = name in ("max", "min", "less")
        tiny = 4 * step * a.abs().max().item() if name == "fma" and dtype is torch.float64 else 2**-24
        close(after["Y"][row], operations[name](a, b), 0 if exact else step, 0 if exact else tiny, name)


def integers(before, after, params) -> None:
    operations = {
        "add": torch.add, "mul": torch.mul, "div": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "rem": torch.fmod,
        "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"), "max": torch.maximum, "min": torch.minimum,
        "xor": torch.bitwise_xor, "shift": lambda a, b: a >> (b & 7), "less": lambda a, b: torch.where(a < b, a, b * 2),
    }  # fmt: skip
    for row, name in enumerate(params["functions"]):
        equal(after["Y"][row], operations[name](before["X"][row], before["X2"][row]), name)


def conversions(before, after, params) -> None:
    types = {
        "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64,
        "i16": torch.int16, "i8": torch.int8,
    }  # fmt: skip
    for row, name in enumerate(params["types"]):
        equal(after["Y"][row], before["X"][row].to(types[name]).float(), name)


def atomics(before, after, params) -> None:
    total = 8 * 128

    def like(name, numbers):
        return torch.tensor(numbers, device="cuda", dtype=after[name].dtype)

    equal(after["f32"], like("f32", [total, 0, total, total, total, total, total, total]), "f32")
    equal(after["f64"], like("f64", [total]), "f64")
    for name in ("bf16", "f16"):
        equal(after[name], like(name, [8, 8, 0, 0] + [8] * 12), name)
    equal(after["i32"], like("i32", [total, -total]), "i32")
    equal(after["i64"], like("i64", [total << 40]), "i64")
    equal(after["misc"][:6], like("misc", [total - 1, 0, total - 1, 0, 0, total]), "max, min, or, xor, and, add")
    assert after["misc"][6:7].view(torch.float32).item() == total, "f32 atom.add"
    assert 0 <= after["misc"][7].item() < total, "exch"
    equal(after["seen"], torch.ones_like(after["seen"]), "the values that atom.add returned")


def lanes(before, after, params) -> None:
    x = before["X"].view(4, 32)
    lane = torch.arange(32, device="cuda")
    bits = ((x > 0).long() << lane).sum(1, keepdim=True).expand(4, 32)
    expected = [x[:, lane ^ 5], x[:, lane ^ 3], x[:, lane ^ 16], x[:, (lane + 1) & 31], bits.float()]
    for row, values in enumerate(expected):
        equal(after["Y"][row], values.reshape(128), f"result {row}")
    loaded = before["X"].view(32, 4).repeat_interleave(4, 0).clone()
    loaded[64:] = 0
    equal(after["copies"], loaded, "cp.async")
    equal(after["Y"][5], loaded.sum(1), "hinted load")


def relay(before, after, params) -> None:
    numbers = torch.arange(65, device="cuda")
    expected = (numbers * (numbers - 1) // 2)[:, None].expand(65, 128)
    equal(after["data"].view(65, 128), expected, "data")
    assert after["semaphore"][0].item() == 64, "the semaphore's count"
    assert not after["record"].any(), "the watchdog spoke"
