"""Convolutions on a GPU, in two steps, so that the machine with the GPU needs no compiler.

    python -m test.gpu.conv_programs build DIR [names...]                     compile to packages (needs no GPU)
    python -m test.gpu.conv_programs run DIR [--time] [--json FILE]           check and time them (needs a Hopper GPU)

`run` compares with float64 on fresh random inputs, and with cuDNN (both memory formats, `cudnn.benchmark`) in CUDA graphs,
one replay of each in turn. One worker process runs the cases; one that hangs or crashes costs only itself.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
import zlib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from test.gpu.driver import answers, program_main, spilled_bytes

LIMITS = {"bf16": 2e-2, "f16": 3e-3, "f32": 1e-5, "tf32": 1e-3}
"""Of ‖out - ref‖ / ‖ref‖; a tf32 number has a relative error of 2^-11, a product of two twice that."""
SECONDS = 40
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "tf32": torch.float32}
"""tf32: tensors are f32, and convolutions may round them to TF32."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A convolution with what follows it.

    Attributes:
        batch, channels, height, width, features: of image and result.
        kernel, stride, padding, dilation, groups: of the convolution.
        bias, relu, residual: what follows; a residual is a second input.
        last: images are in channels-last memory.
        timed: a benchmark: its ratio counts.
    """

    batch: int
    channels: int
    height: int
    width: int
    features: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1
    bias: bool = False
    relu: bool = False
    residual: bool = False
    last: bool = True
    dtype: str = "bf16"
    timed: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Of the compiler."""
        return {"convolution_precision": "high" if self.dtype == "tf32" else "highest"}

    def model(self) -> Block:
        """The model, its weights from a fixed seed."""
        torch.manual_seed(0)
        made = Block(self).eval().to(DTYPES[self.dtype])
        return in_format(made, torch.channels_last) if self.last else made

    def inputs(self, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        """Random inputs."""
        shapes = [(self.batch, self.channels, self.height, self.width)]
        if self.residual:
            rows, cols = (
                (extent + 2 * self.padding - self.dilation * (self.kernel - 1) - 1) // self.stride + 1
                for extent in (self.height, self.width)
            )
            shapes.append((self.batch, self.features, rows, cols))
        made = [torch.randn(*shape, device=device).to(DTYPES[self.dtype]) for shape in shapes]
        return tuple(x.to(memory_format=torch.channels_last) if self.last else x for x in made)


def in_format(model: nn.Module, form: torch.memory_format) -> Any:
    """The model with its weights in a memory format (torch's type stubs do not know this use of `to`)."""
    return model.to(memory_format=form)  # type: ignore[call-overload]


class Block(nn.Module):
    """A convolution, a residual added, a ReLU."""

    def __init__(self, case: Case):
        super().__init__()
        self.relu = case.relu
        self.convolution = nn.Conv2d(
            case.channels, case.features, case.kernel, case.stride, case.padding, case.dilation, case.groups, case.bias
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        made = self.convolution(x)
        if residual is not None:
            made = made + residual
        return torch.relu(made) if self.relu else made


@dataclasses.dataclass(frozen=True)
class Inverted(Case):
    """MobileNet's inverted residual: 1×1 to six times the channels, depthwise, 1×1 back, a residual; all in one launch."""

    def model(self) -> Any:
        torch.manual_seed(0)
        made = InvertedResidual(self.channels, 6 * self.channels, self.kernel, self.padding).eval().to(DTYPES[self.dtype])
        return in_format(made, torch.channels_last) if self.last else made


class InvertedResidual(nn.Module):
    """See `Inverted`."""

    def __init__(self, channels: int, wide: int, kernel: int, padding: int):
        super().__init__()
        self.convolution = nn.Conv2d(channels, wide, 1)
        self.depthwise = nn.Conv2d(wide, wide, kernel, 1, padding, groups=wide)
        self.narrow = nn.Conv2d(wide, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = nn.functional.relu6(self.depthwise(nn.functional.relu6(self.convolution(x))))
        return x + self.narrow(between)


@dataclasses.dataclass(frozen=True)
class Line(Case):
    """A convolution along one dimension, the width; its images have no memory format."""

    def model(self) -> Any:
        torch.manual_seed(0)
        made = Block(self)
        made.convolution = nn.Conv1d(
            self.channels, self.features, self.kernel, self.stride, self.padding, self.dilation, self.groups, self.bias
        )
        return made.eval().to(DTYPES[self.dtype])

    def inputs(self, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        return (torch.randn(self.batch, self.channels, self.width, device=device).to(DTYPES[self.dtype]),)


def _grouped(batch: int, size: int, groups: int, width: int, **more: Any) -> Case:
    """A timed convolution of so many groups of so many channels."""
    return Case(batch, groups * width, size, size, groups * width, groups=groups, bias=True, relu=True, timed=True, **more)


CASES: dict[str, Case] = {
    **{
        f"resnet_{size}x{channels}_b{batch}": Case(batch, channels, size, size, channels, timed=True)
        for size, channels in ((56, 64), (28, 128), (14, 256), (7, 512))
        for batch in (1, 8, 32)
    },
    "fused_56x64_b8": Case(8, 64, 56, 56, 64, bias=True, relu=True, residual=True),
    "one_256_64": Case(8, 256, 56, 56, 64, kernel=1, padding=0),
    "one_64_256": Case(8, 64, 56, 56, 256, kernel=1, padding=0),
    "stride_64_128": Case(8, 64, 56, 56, 128, stride=2),
    "one_stride": Case(8, 64, 56, 56, 128, kernel=1, padding=0, stride=2),
    "stem": Case(8, 3, 224, 224, 64, kernel=7, stride=2, padding=3),
    "stem_odd": Case(1, 3, 33, 29, 24, kernel=7, stride=2, padding=3, bias=True),
    "few_channels": Case(2, 3, 19, 23, 40, kernel=5, padding=2, bias=True, relu=True),
    "few_inside": Case(2, 8, 11, 40, 16, padding=0),
    "first": Case(8, 128, 28, 28, 128, last=False),
    "odd": Case(1, 8, 7, 9, 3, bias=True, relu=True),
    "odd_channels": Case(2, 40, 13, 11, 27, bias=True),
    "wide": Case(1, 16, 5, 129, 24),
    "long": Case(1, 8, 3, 1000, 16, bias=True, residual=True),
    "one_pixel": Case(1, 64, 1, 1, 64, bias=True),
    "one_pixel_12": Case(8, 12, 1, 1, 120, kernel=1, padding=0, bias=True, relu=True),
    "one_pixel_30_b1": Case(1, 30, 1, 1, 120, kernel=1, padding=0, bias=True),
    "no_padding": Case(3, 32, 17, 19, 96, padding=0, relu=True),
    "dilated": Case(2, 32, 20, 20, 48, padding=2, dilation=2, bias=True),
    "five": Case(2, 24, 14, 14, 80, kernel=5, padding=2),
    "three_images": Case(7, 48, 7, 7, 130, bias=True, residual=True),
    "half": Case(2, 64, 14, 14, 64, dtype="f16", bias=True),
    "first_odd": Case(3, 16, 9, 7, 40, last=False, bias=True, relu=True, residual=True),
    "depthwise_56": Case(8, 64, 56, 56, 64, groups=64, bias=True),
    "grouped_56": Case(8, 64, 56, 56, 64, groups=4, bias=True),
    **{
        f"{net}_{size}x{groups}x{width}_b{batch}{'' if last else '_nchw'}": _grouped(batch, size, groups, width, last=last)
        for net, size, groups, width in (
            *(("resnext", size, 32, width) for size, width in ((56, 4), (28, 8), (14, 16), (7, 32))),
            *(
                ("regnet", size, groups, width)
                for size, groups, width in ((28, 5, 24), (14, 14, 24), (14, 7, 48), (14, 16, 56))
            ),
            ("regnet", 7, 8, 112),
            ("breadth", 28, 4, 32),
        )
        for batch, last in ((1, True), (16, True), (16, False))
    },
    "regnet_stride": _grouped(16, 28, 14, 24, stride=2),
    "groups_2x232": _grouped(8, 14, 2, 232),
    "wav2vec2": Line(2, 768, 1, 499, 768, kernel=128, padding=64, groups=16, bias=True, timed=True),
    "wav2vec2_b1_f16": Line(1, 768, 1, 999, 768, kernel=128, padding=64, groups=16, bias=True, dtype="f16"),
    "line_groups_odd": Line(3, 12, 1, 129, 20, kernel=5, padding=2, groups=4, bias=True),
    "line_groups_dilated": Line(2, 96, 1, 1000, 48, kernel=3, padding=4, dilation=4, groups=6, bias=True, relu=True),
    "groups_dilated": Case(2, 48, 20, 20, 96, groups=3, padding=2, dilation=2, bias=True, residual=True),
    "groups_five_odd": Case(3, 56, 9, 13, 35, groups=7, kernel=5, padding=2, relu=True, last=False),
    "groups_multiplier": Case(2, 16, 13, 13, 48, groups=16, bias=True),
    "groups_129": Case(1, 7 * 24, 129, 7, 7 * 24, groups=7, padding=0, stride=2, residual=True),
    "groups_one_tap": Case(2, 64, 14, 14, 96, groups=4, kernel=1, padding=0, bias=True),
    "depthwise": Case(2, 32, 14, 14, 32, groups=32, bias=True),
    "grouped": Case(2, 32, 14, 14, 64, groups=4, bias=True),
    "stride_odd": Case(2, 16, 15, 13, 33, stride=2, bias=True),
    **{
        f"depthwise_{size}x{channels}_b{batch}{'_s2' * (stride - 1)}{'' if last else '_nchw'}": Case(
            batch, channels, size, size, channels, groups=channels, stride=stride, last=last
        )
        for size, channels in ((112, 32), (56, 128), (14, 512))
        for batch in (1, 32)
        for stride, last in ((1, True), (2, True), (1, False))
    },
    "depthwise_fused": Case(2, 64, 14, 14, 64, groups=64, bias=True, relu=True, residual=True),
    "depthwise_odd": Case(3, 7, 9, 13, 7, groups=7, bias=True),
    "depthwise_129": Case(1, 129, 7, 5, 129, groups=129, stride=2),
    "depthwise_20": Case(2, 20, 1, 1000, 20, groups=20, kernel=3, bias=True),
    "depthwise_five": Case(2, 48, 14, 14, 48, groups=48, kernel=5, padding=2, dilation=1, bias=True),
    "depthwise_five_odd": Case(3, 7, 9, 13, 7, groups=7, kernel=5, stride=2, padding=2),
    "depthwise_seven_f32": Case(1, 20, 17, 9, 20, groups=20, kernel=7, padding=3, bias=True, dtype="f32"),
    "depthwise_5x5_33x64_b8": Case(8, 64, 33, 33, 64, groups=64, kernel=5, padding=2, bias=True, relu=True, timed=True),
    "depthwise_7x7_56x96_b8": Case(8, 96, 56, 56, 96, groups=96, kernel=7, padding=3, bias=True, timed=True),
    "depthwise_7x7_14x384_b8": Case(8, 384, 14, 14, 384, groups=384, kernel=7, padding=3, bias=True, timed=True),
    "depthwise_dilated": Case(2, 72, 20, 20, 72, groups=72, padding=2, dilation=2),
    "depthwise_inside": Case(1, 40, 17, 19, 40, groups=40, padding=0, stride=2),
    "inverted_24_b2": Inverted(2, 24, 28, 28, 24),
    "inverted_32_b32": Inverted(32, 32, 28, 28, 32, kernel=5, padding=2),
    "inverted_7_nchw": Inverted(1, 7, 13, 9, 7, last=False),
    "inverted_24_f32": Inverted(2, 24, 14, 14, 24, dtype="f32"),
    "depthwise_f32": Case(2, 36, 15, 15, 36, groups=36, bias=True, dtype="f32"),
    "depthwise_f16": Case(2, 36, 15, 15, 36, groups=36, bias=True, dtype="f16"),
    **{
        f"{name}_{dtype}": dataclasses.replace(case, dtype=dtype)
        for dtype in ("f32", "tf32")
        for name, case in {
            "wide": Case(8, 64, 56, 56, 64),
            "deep": Case(1, 512, 7, 7, 512),
            "odd": Case(1, 7, 9, 13, 3, bias=True, relu=True),
            "odd_channels": Case(1, 129, 7, 7, 1, bias=True),
            "long": Case(1, 1000, 7, 5, 129, residual=True, bias=True),
            "first": Case(2, 3, 57, 61, 40, kernel=7, stride=2, padding=3, last=False, bias=True),
            "one_pixel": Case(1, 64, 1, 1, 64, bias=True),
            "one": Case(7, 20, 14, 14, 130, kernel=1, padding=0, relu=True),
            "stride": Case(2, 16, 15, 13, 33, stride=2, bias=True),
            "dilated": Case(2, 32, 20, 20, 48, padding=2, dilation=2, bias=True),
            "grouped": Case(2, 32, 14, 14, 64, groups=4, bias=True),
            "groups_24": Case(2, 96, 14, 14, 96, groups=4, bias=True, relu=True),
            "groups_64_s2": Case(3, 192, 15, 7, 192, groups=3, stride=2, residual=True),
        }.items()
    },
}


def build(folder: Path, names: Sequence[str]) -> int:
    """Compile cases to `NAME.kit`, without weights; the number of those that failed or spill."""
    import kitsune_mlir
    import kitsune_mlir.errors

    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names or list(CASES):
        case = CASES[name]
        try:
            program = kitsune_mlir.compile(case.model(), case.inputs(), target="sm_90a", options=case.options)
        except kitsune_mlir.errors.KitsuneError as error:
            print(f"FAIL {name}: {error}")
            failed += 1
            continue
        program.save(folder / f"{name}.kit", weights=False)
        kernel = program.summary["kernels"][0]
        spilled = spilled_bytes(program)
        failed += spilled > 0
        stages = ", ".join(f"{c['task']}:{c['engine']}" for c in program.summary["engines"])
        tiles = [s["tile"] for s in program.summary["stages"]]
        print(
            f"{'BAD  ' if spilled else ''}{name}: {kernel['registers']} registers, {spilled} spilled; {stages} {tiles}",
            flush=True,
        )
    return failed


def check(folder: Path, name: str, timed: bool) -> dict:
    """Run one package on fresh inputs against float64; time it, and cuDNN, if asked."""
    import kitsune_mlir

    case = CASES[name]
    model = case.model().cuda()
    torch.manual_seed(zlib.crc32(name.encode()))
    inputs = case.inputs("cuda")
    program = kitsune_mlir.load(folder / f"{name}.kit", weights=dict(model.named_parameters()))
    errors = []
    with torch.no_grad():
        for _ in range(2):  # other weights, changed in place, the second time
            exact = case.model().cuda().double()
            exact.load_state_dict({key: value.double() for key, value in model.state_dict().items()})
            wanted = exact(*(x.double() for x in inputs))
            got = program(*inputs)
            torch.cuda.synchronize()
            errors.append(((got.double() - wanted).norm() / wanted.norm().clamp_min(1e-30)).item())
            model.convolution.weight.mul_(0.5)
        last = got.dim() == 4 and got.is_contiguous(memory_format=torch.channels_last)
        layout = "channels last" if last else "usual"
    result = {"case": name, "errors": errors, "layout": layout, "ok": all(e <= LIMITS[case.dtype] for e in errors)}
    if timed:
        result["microseconds"] = time_case(case, model, inputs, program)
    return result


def time_case(case: Case, model: Block, inputs: tuple[torch.Tensor, ...], program) -> dict[str, float]:
    """Median microseconds of one replay: ours, and cuDNN's in both memory formats."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = case.dtype == "tf32"
    calls = {"kitsune": lambda: program(*inputs)}
    for name, form in (("cudnn", torch.contiguous_format), ("cudnn_last", torch.channels_last)):
        peer = in_format(case.model().cuda(), form)
        given = [x.contiguous(memory_format=form) if x.dim() == 4 else x for x in inputs]
        calls[name] = lambda peer=peer, given=given: peer(*given)
    with torch.no_grad():
        graphs = {name: captured(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(60):
        for name, (graph, _) in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def captured(call) -> tuple:
    """A graph of one call, and what it made (which must live as long)."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()
    return graph, kept


def run(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Check the packages of a folder; the number of cases that failed."""
    wanted = list(names) or sorted((p.stem for p in folder.glob("*.kit")), key=list(CASES).index)
    results: list[dict] = []
    for result in answers("test.gpu.conv_programs", folder, wanted, SECONDS, ["--time"] * given.time):
        report(result)
        results.append(result)
    bad = sum(not result["ok"] for result in results)
    ratios = [ratio_of(r) for r in results if "microseconds" in r and CASES[r["case"]].timed]
    if ratios:
        print(f"geometric mean of {len(ratios)} ratios to cuDNN: {math.exp(statistics.mean(map(math.log, ratios))):.2f}")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({"results": results}, indent=1))
    print(f"{len(results) - bad} passed, {bad} failed")
    return bad


def ratio_of(result: dict) -> float:
    """cuDNN's better time by ours."""
    times = result["microseconds"]
    return min(times["cudnn"], times["cudnn_last"]) / times["kitsune"]


def report(result: dict) -> None:
    """One line of a result."""
    line = " ".join(f"{key} {value:.2f}" for key, value in result.get("microseconds", {}).items())
    if line:
        line += f" ratio {ratio_of(result):.2f}"
    errors = " ".join(f"{e:.1e}" for e in result.get("errors", []))
    print(f"{'ok  ' if result['ok'] else 'FAIL'} {result['case']:22s} {errors} {line} {result.get('error', '')}", flush=True)


def part(folder: Path, names: Sequence[str], given: Namespace) -> int:
    """Print one line of JSON a case. An error of the driver ends the process: nothing can be trusted after it."""
    for name in names:
        try:
            print(json.dumps(check(folder, name, given.time)), flush=True)
        except Exception as error:
            text = str(error).split("\n")[0]
            print(json.dumps({"case": name, "ok": False, "error": f"{type(error).__name__}: {text}"}), flush=True)
            if "CUDA" in text or "illegal" in text:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(program_main(__doc__, build, run, part, {"time": "beside cuDNN, in both memory formats"}))
